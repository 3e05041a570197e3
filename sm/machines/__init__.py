"""The built-in state machines, and the registry that finds one by name."""
