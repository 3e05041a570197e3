"""Faults that stay: up to a minority of voters is ill for good, and the healthy majority must go on."""
