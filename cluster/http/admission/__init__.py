"""Limits on callers: connections, concurrent requests, bodies, slow readers."""
