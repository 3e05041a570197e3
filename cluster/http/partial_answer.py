"""The part of the results of commands that one answer may hold. The commands have executed all the same."""

from collections.abc import Callable
from typing import Any

from ..node.pending import WriteReply

JSON_GROWTH = 6
"""JSON is at most so many times as long as msgpack: a control character in a text becomes six."""
PIECE = 64


def places_within(reply: WriteReply, limit: int, encode: Callable[[Any], bytes]) -> int:
    """How many places of a reply, results and refusals, fit into `limit` bytes as `encode` writes them.

    No more than that, and one piece, is encoded to find out.
    """
    if reply.size * JSON_GROWTH <= limit:
        return len(reply.results)
    refusals = {place: [place, code, text] for place, code, text in reply.refused}
    size = 0
    for first in range(0, len(reply.results), PIECE):
        places = range(first, min(first + PIECE, len(reply.results)))
        parts = [[reply.results[place], refusals.get(place)] for place in places]
        piece = len(encode(parts))
        if size + piece <= limit:
            size += piece
            continue
        for place, part in zip(places, parts, strict=True):
            size += len(encode(part))
            if size > limit:
                return place
    return len(reply.results)


def first_places(reply: WriteReply, places: int) -> WriteReply:
    """The reply's first places."""
    return reply._replace(
        results=reply.results[:places], refused=[refusal for refusal in reply.refused if refusal[0] < places]
    )
