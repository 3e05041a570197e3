"""What a leader says on a stream, as messages: an opening's answer, or its positions and raw frame bytes.

    0 u8, an OpenAnswer | 1 u8, commit_index u64, durable_index u64, clock u64, frame bytes

A larger shipment than a message holds is cut anywhere: frames span messages, and the assembler joins them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ..core.messages import OpenAnswer
from .wire import SHIPMENT, BadMessage, decode_stream, encode

SHIPMENT_BYTES = 1 << 20
ANSWER, FRAMES = b"\0", b"\1"


class Positions(NamedTuple):
    """What each shipment opens with: the leader's commit_index, durable_index and clock."""

    commit_index: int
    durable_index: int
    clock: int


class Shipment(NamedTuple):
    """Whole frames to send, up to `next_index`."""

    positions: Positions
    raw: bytes
    next_index: int


class Piece(NamedTuple):
    """One message of a shipment: frame bytes, not whole frames."""

    positions: Positions
    raw: memoryview


def to_messages(said: OpenAnswer | Shipment, piece_bytes: int = SHIPMENT_BYTES) -> Iterator[bytes]:
    """The messages that say it, each with at most `piece_bytes` of frames; one even where there are none."""
    if isinstance(said, OpenAnswer):
        yield ANSWER + encode(said)
        return
    head = FRAMES + SHIPMENT.pack(*said.positions)
    raw = memoryview(said.raw)
    for begin in range(0, max(1, len(raw)), piece_bytes):
        yield b"".join((head, raw[begin : begin + piece_bytes]))


def from_message(data: bytes) -> OpenAnswer | Piece:
    """What a leader's message says.

    Raises:
        BadMessage: it is none.
    """
    kind, view = data[:1], memoryview(data)[1:]
    if kind == ANSWER:
        answer = decode_stream(bytes(view))
        if not isinstance(answer, OpenAnswer):
            raise BadMessage("an opening's answer was expected")
        return answer
    if kind == FRAMES and len(view) >= SHIPMENT.size:
        return Piece(Positions._make(SHIPMENT.unpack_from(view)), view[SHIPMENT.size :])
    raise BadMessage("neither an answer nor frames")
