"""A log that no process has open: inspect, verify and repair its files."""
