"""Snapshots: manifest, content, and the store that writes, fetches and restores them."""
