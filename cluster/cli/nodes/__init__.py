"""What `quire status` asks of every node, and how it shows what they answer."""
