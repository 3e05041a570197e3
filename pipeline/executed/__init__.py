"""Which rows of a read executed: marks retries, in parallel."""
