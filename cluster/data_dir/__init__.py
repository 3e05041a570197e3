"""A node's data directory: its lock, identity and genesis, and the order in which it is opened."""
