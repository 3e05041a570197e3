"""A simulated node: the machine, which outlives a crash, and its process, which does not."""
