"""The built-in state machines, and the registry that finds a machine by name."""
