"""The part of the results of commands that one answer may hold. The commands have executed all the same."""

from collections.abc import Callable
from typing import Any

from ..node.pending import WriteReply

JSON_GROWTH = 6
"""JSON is at most so many times as long as msgpack: a control character in a text becomes six."""
PIECE = 64


def positions_within(reply: WriteReply, limit: int, encode: Callable[[Any], bytes]) -> int:
    """How many positions of a reply, results and refusals, fit into `limit` bytes as `encode` writes them.

    No more than that, and one piece, is encoded to find out.
    """
    if reply.size * JSON_GROWTH <= limit:
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


def first_positions(reply: WriteReply, positions: int) -> WriteReply:
    """The reply's first positions."""
    return reply._replace(
        results=reply.results[:positions], refused=[refusal for refusal in reply.refused if refusal[0] < positions]
    )
