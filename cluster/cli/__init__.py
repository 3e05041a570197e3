"""The command line: `quire`."""
