"""The error of the verdict on a scenario."""


class Wrong(AssertionError):
    """What must never be; the text says what, with its values."""
