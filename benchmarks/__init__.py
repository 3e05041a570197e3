"""What the project measures, each by a command; the figures of one machine stand in docs/benchmarks.md."""
