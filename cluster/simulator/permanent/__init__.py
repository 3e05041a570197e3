"""Permanent faults: up to a minority of voters has them, and the healthy majority must make progress."""
