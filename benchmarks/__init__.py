"""Benchmarks, each a command. docs/benchmarks.md has the figures of one machine."""
