"""What the verdict on a scenario raises."""


class Wrong(AssertionError):
    """What must never be; the text says what, with its values."""
