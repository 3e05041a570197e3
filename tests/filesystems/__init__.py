"""Real file systems, made in a file and mounted. The tests that use them are marked `full`: they need root."""
