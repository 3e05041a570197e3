"""A node's data directory: lock, identity, genesis, and opening it in the right order."""
