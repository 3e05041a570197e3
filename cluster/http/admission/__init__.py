"""Limits on callers: connections, concurrent requests, slow and stalled transfers."""
