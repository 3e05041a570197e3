"""The commands that write to a cluster and read from it."""
