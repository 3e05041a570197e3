"""Values as text."""

from typing import Any

from quire.log.json_text import to_json as encode


def printable(value: Any) -> str:
    """A value for people: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> str:
    """A value as one line of JSON; bytes as {"$bin": base64}."""
    return encode(value).decode()
