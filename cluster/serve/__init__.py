"""`quire serve` as a process: flags, logging, startup, signals, a clean stop."""
