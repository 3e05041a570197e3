"""Bytes of the messages: one msgpack array a message, [type, field, ...], checked field by field.

What does not decode is a peer's fault (`BadMessage`): the link is closed, nothing else happens. A stream's shipment
is the one message that is no msgpack: three u64 (commit_index, durable_index, clock) and raw frame bytes.
"""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

from quire.log import PayloadInvalid, pack, unpack

from ..core.messages import (
    Ack,
    Campaign,
    ControlMessage,
    CrcMismatch,
    GenesisOffer,
    Heartbeat,
    HeartbeatEcho,
    LagReport,
    Last,
    Open,
    OpenAnswer,
    OpenVerb,
    PeerMessage,
    PositionReport,
    PreVote,
    PreVoteAnswer,
    Probe,
    ProbeEcho,
    StreamMessage,
    VoteAnswer,
    VoteRequest,
)
from ..core.promise import NODE_ID, Promise

MAX_U64 = 2**64 - 1
MAX_EPOCHS = 10_000
MAX_GENESIS_BYTES = 1 << 20
MAX_REASON = 1_000
MAX_CONTROL_BYTES = 1 << 14
MAX_MESSAGE_BYTES = (1 << 20) + 4096

SHIPMENT = struct.Struct("<QQQ")

M = TypeVar("M")


class BadMessage(Exception):
    """A peer sent what is no message of this protocol."""


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise BadMessage(f"{value!r} is no u64")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage(f"{value!r} is no bool")
    return value


def _text(limit: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if type(value) is not str or len(value) > limit:
            raise BadMessage(f"{value!r:.80} is no text of at most {limit} characters")
        return value

    return check


def _node_id(value: Any) -> str:
    if type(value) is not str or not NODE_ID.fullmatch(value):
        raise BadMessage(f"{value!r:.80} is no node id")
    return value


def _octets(lowest: int, highest: int) -> Callable[[Any], bytes]:
    def check(value: Any) -> bytes:
        if type(value) is not bytes or not lowest <= len(value) <= highest:
            raise BadMessage(f"bytes of {lowest} to {highest} were expected")
        return value

    return check


def _row(value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise BadMessage(f"an array of {length} was expected")
    return value


def _promise(value: Any) -> Promise:
    epoch, candidate, incarnation = _row(value, 3)
    return Promise(_u64(epoch), _node_id(candidate), _u64(incarnation))


def _promise_or_none(value: Any) -> Promise | None:
    return None if value is None else _promise(value)


def _last(value: Any) -> Last:
    epoch, index = _row(value, 2)
    return Last(_u64(epoch), _u64(index))


def _epochs(value: Any) -> tuple[tuple[int, int], ...]:
    if type(value) is not list or len(value) > MAX_EPOCHS:
        raise BadMessage(f"an array of at most {MAX_EPOCHS} epochs was expected")
    pairs = [(_u64(epoch), _u64(start)) for epoch, start in (_row(pair, 2) for pair in value)]
    if any(later[0] <= sooner[0] or later[1] <= sooner[1] for sooner, later in pairwise(pairs)):
        raise BadMessage("epochs do not ascend")
    return tuple(pairs)


def _verb(value: Any) -> OpenVerb:
    try:
        return OpenVerb(value)
    except ValueError as error:
        raise BadMessage(f"{value!r:.80} is no answer to an opening") from error


_DIGEST = _octets(16, 16)
_REASON = _text(MAX_REASON)

# Type -> (class, its fields in order). A type is never used again for something else.
_PEER: dict[int, tuple[Callable[..., PeerMessage], tuple[Callable[[Any], Any], ...]]] = {
    1: (GenesisOffer, (_octets(64, MAX_GENESIS_BYTES), _flag)),
    2: (PreVote, (_u64, _last, _promise_or_none)),
    3: (PreVoteAnswer, (_u64, _flag, _u64, _last, _u64)),
    4: (VoteRequest, (_promise, _last)),
    5: (VoteAnswer, (_promise, _flag, _u64, _u64)),
    6: (Heartbeat, (_promise, _u64, _u64)),
    7: (HeartbeatEcho, (_u64, _u64, _u64)),
    8: (PositionReport, (_u64, _u64, _DIGEST)),
    9: (LagReport, (_u64, _u64, _u64)),
    10: (Campaign, (_promise_or_none,)),
    11: (Probe, (_u64,)),
    12: (ProbeEcho, (_u64,)),
    13: (ControlMessage, (_octets(1, MAX_CONTROL_BYTES),)),
}
_STREAM: dict[int, tuple[Callable[..., StreamMessage], tuple[Callable[[Any], Any], ...]]] = {
    32: (Open, (_promise, _epochs, _u64, _u64, _u64)),
    33: (OpenAnswer, (_verb, _u64, _u64, _REASON, _u64)),
    34: (Ack, (_u64, _u64, _u64, _DIGEST)),
    35: (CrcMismatch, (_u64, _u64)),
}
_TYPES: dict[Any, int] = {row[0]: number for table in (_PEER, _STREAM) for number, row in table.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Promise):
        return [value.epoch, value.candidate, value.incarnation]
    return str(value) if isinstance(value, OpenVerb) else value


def encode(message: PeerMessage | StreamMessage) -> bytes:
    """The bytes of a message."""
    fields = [_plain(getattr(message, name)) for name in type(message).__slots__]
    return pack([_TYPES[type(message)], *fields])


def decode_peer(data: bytes) -> PeerMessage:
    """The message of `/peer` in `data`.

    Raises:
        BadMessage: it is none.
    """
    return _decode(data, _PEER)


def decode_stream(data: bytes) -> StreamMessage:
    """The message of `/peer/stream` in `data`.

    Raises:
        BadMessage: it is none.
    """
    return _decode(data, _STREAM)


def _decode(data: bytes, table: dict[int, tuple[Callable[..., M], tuple[Callable[[Any], Any], ...]]]) -> M:
    try:
        row = unpack(data)
    except PayloadInvalid as error:
        raise BadMessage(str(error)) from error
    if type(row) is not list or not row or type(row[0]) is not int or row[0] not in table:
        raise BadMessage("an unknown type")
    build, checks = table[row[0]]
    fields = _row(row, len(checks) + 1)[1:]
    return build(*(check(field) for check, field in zip(checks, fields, strict=True)))
