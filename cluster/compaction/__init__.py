"""Compaction, which keeps the log bounded: snapshots, expiry, and installs of a leader's snapshot."""
