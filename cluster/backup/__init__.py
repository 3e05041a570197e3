"""Backups of a cluster in a folder or an object store, and what is restored from them (docs/backup.md)."""
