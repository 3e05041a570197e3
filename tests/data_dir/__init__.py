"""Tests of a node's data directory: what it refuses, and that nothing acknowledged is lost in silence."""
