"""The minimum size of a value, before it is encoded."""

from typing import Any

VALUES_LIMIT = 500_000
"""Values in one answer: counting more would block the event loop."""


def size_up_to(value: Any, limit: int) -> int:
    """The minimum size of the value in JSON or msgpack, in bytes; counting stops soon above the limit.

    A value of more than VALUES_LIMIT parts counts as above the limit, too.
    """
    size, seen = 0, 0
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        kind = part.__class__
        if kind is str or kind is bytes:
            size += len(part)
        elif kind is dict or kind is list or kind is tuple:
            count = 2 * len(part) if kind is dict else len(part)
            size, seen = size + count, seen + count
            if seen > VALUES_LIMIT:
                return max(size, limit + 1)
            if kind is dict:
                waiting += part
                waiting += part.values()
            else:
                waiting += part
        if size > limit:
            return size
    return size
