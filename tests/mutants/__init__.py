"""Mistakes that a tool draws, or a person without looking at the tests, and which of them the tests find."""
