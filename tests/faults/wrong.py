"""What the verdict on a scenario raises."""


class Wrong(AssertionError):
    """What must never be; the text says what, with its values."""


class Late(Wrong):
    """The first acknowledgement after healing came too late, and nothing else was wrong."""
