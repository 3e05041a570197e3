"""Consumers of a history and their cursors: who sets them, and a model of what becomes of each row."""
