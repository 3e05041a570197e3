"""The network side of replication: WebSocket links and streams between nodes, and the bytes on them."""
