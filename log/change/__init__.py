"""The operations that change a log on disk, each with the order of its steps and the reason for that order."""
