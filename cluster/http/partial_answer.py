"""The part of a batch's results that fits into one answer. All its commands have executed, whatever is left out."""

from collections.abc import Callable
from typing import Any

from ..node.writing import WriteReply

PIECE = 64


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
