"""One running node of a cluster: its components, the write path, reads, membership and status."""
