"""The Spark sink: exactly-once writes of rows as commands."""
