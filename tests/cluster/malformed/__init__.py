"""Malformed input and its answers: a table that is asked of a real cluster, and the page that is made of it."""
