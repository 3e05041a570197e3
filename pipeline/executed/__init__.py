"""Which rows of a read executed: retries marked, in parallel."""
