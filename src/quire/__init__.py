"""A replicated state-machine cluster: one log, and on every node the same answer."""

__version__ = "0.1.0"
