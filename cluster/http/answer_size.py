"""How large an answer is: a value before it is encoded, and the part of a batch's results that fits into one."""

from collections.abc import Callable
from typing import Any

from ..node.writing import WriteReply

VALUES_LIMIT = 500_000
"""Values in one answer: counting more would block the event loop."""

PIECE = 64

_TEXTS = frozenset({str, bytes})
_NUMBERS = frozenset({int, float, bool, type(None)})


def results_within(reply: WriteReply, limit: int, encode: Callable[[Any], bytes]) -> int:
    """How many commands' results and refusals fit into `limit` bytes when encoded with `encode`.

    Finding out encodes no more than those and one further piece.
    """
    if reply.surely_fits(limit):
        return len(reply.results)
    refusals = {position: [position, code, text] for position, code, text in reply.refused}
    size = 0
    for first in range(0, len(reply.results), PIECE):
        positions = range(first, min(first + PIECE, len(reply.results)))
        parts = [[reply.results[position], refusals.get(position)] for position in positions]
        piece = len(encode(parts))
        if size + piece <= limit:
            size += piece
            continue
        for position, part in zip(positions, parts, strict=True):
            size += len(encode(part))
            if size > limit:
                return position
    return len(reply.results)


def first_results(reply: WriteReply, count: int) -> WriteReply:
    """The reply cut to its first `count` commands."""
    return reply._replace(
        results=reply.results[:count], refused=[refusal for refusal in reply.refused if refusal[0] < count]
    )


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
            for inner in (part, part.values()) if kind is dict else (part,):
                kinds = set(map(type, inner))
                if kinds <= _TEXTS:  # As the keys of most maps: much faster than one by one.
                    size += sum(map(len, inner))
                elif not kinds <= _NUMBERS:
                    waiting += inner
        if size > limit:
            return size
    return size
