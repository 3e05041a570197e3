"""The bytes on links and streams. A message that does not decode is the peer's fault (`BadMessage`): its link closes.

A message is one msgpack array, [type, field, ...]; each field is checked. A leader's messages on a stream have one more
byte in front, since a shipment is raw frame bytes and not msgpack:

    0 u8, an OpenAnswer | 1 u8, commit_index u64, durable_index u64, clock u64, frame bytes

A larger shipment is split at any byte. `FrameAssembler` joins the messages: only whole frames count (rule 8).
"""

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from quire.log import HEADER_BYTES, FrameInvalid, PayloadInvalid, UnknownVersion, decode_header, pack, unpack

from ..address import is_address
from ..core.members import MAX_MEMBERS, NODE_ID
from ..core.messages import (
    Ack,
    Campaign,
    ControlMessage,
    CrcMismatch,
    Directory,
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
    Promise,
    Removal,
    StreamMessage,
    VoteAnswer,
    VoteRequest,
)
from ..errors import ReplicationError

MAX_U64 = 2**64 - 1
MAX_U32 = 2**32 - 1
MAX_EPOCHS = 10_000
MAX_GENESIS_BYTES = 1 << 20
MAX_REASON = 1_000
MAX_CONTROL_BYTES = 1 << 14
MAX_MESSAGE_BYTES = (1 << 20) + 4096

SHIPMENT = struct.Struct("<QQQ")
SHIPMENT_BYTES = 1 << 18  # So that progress is visible on a slow link: a follower acknowledges pieces, too.
ANSWER, FRAMES = b"\0", b"\1"

M = TypeVar("M")


class BadMessage(ReplicationError):
    """A peer sent bytes that are not a message of this protocol."""


def _u64(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise BadMessage(f"{value!r:.80} is not a u64")
    return value


def _u32(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U32:
        raise BadMessage(f"{value!r:.80} is not a u32")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise BadMessage(f"{value!r:.80} is not a bool")
    return value


def _text(limit: int) -> Callable[[object], str]:
    def check(value: object) -> str:
        if type(value) is not str or len(value) > limit:
            raise BadMessage(f"{value!r:.80} is not text of at most {limit} characters")
        return value

    return check


def _node_id(value: object) -> str:
    if type(value) is not str or not NODE_ID.fullmatch(value):
        raise BadMessage(f"{value!r:.80} is not a node id")
    return value


def _octets(lowest: int, highest: int) -> Callable[[object], bytes]:
    def check(value: object) -> bytes:
        if type(value) is not bytes or not lowest <= len(value) <= highest:
            raise BadMessage(f"bytes of {lowest} to {highest} were expected")
        return value

    return check


def _row(value: object, length: int) -> list[object]:
    if type(value) is not list or len(value) != length:
        raise BadMessage(f"an array of {length} was expected")
    return value


def _promise(value: object) -> Promise:
    epoch, candidate, incarnation = _row(value, 3)
    return Promise(_u64(epoch), _node_id(candidate), _u64(incarnation))


def _promise_or_none(value: object) -> Promise | None:
    return None if value is None else _promise(value)


def _last(value: object) -> Last:
    epoch, index = _row(value, 2)
    return Last(_u64(epoch), _u64(index))


def _epochs(value: object) -> tuple[tuple[int, int], ...]:
    if type(value) is not list or len(value) > MAX_EPOCHS:
        raise BadMessage(f"an array of at most {MAX_EPOCHS} epochs was expected")
    pairs = [(_u64(epoch), _u64(start)) for epoch, start in (_row(pair, 2) for pair in value)]
    if any(later[0] <= sooner[0] or later[1] <= sooner[1] for sooner, later in pairwise(pairs)):
        raise BadMessage("epochs do not ascend")
    return tuple(pairs)


def _verb(value: object) -> OpenVerb:
    for verb in OpenVerb:
        if verb == value:
            return verb
    raise BadMessage(f"{value!r:.80} is not an answer to an opening")


def _addresses(value: object) -> tuple[tuple[str, str], ...]:
    if type(value) is not list or len(value) > MAX_MEMBERS:
        raise BadMessage(f"an array of at most {MAX_MEMBERS} addresses was expected")
    return tuple((_node_id(node), _address(address)) for node, address in (_row(pair, 2) for pair in value))


def _address(value: object) -> str:
    if not is_address(value):
        raise BadMessage(f"{value!r:.80} is not HOST:PORT")
    return str(value)


_DIGEST = _octets(16, 16)
_REASON = _text(MAX_REASON)

# Type -> (class, its fields in order). A type number is never reused.
_PEER: dict[int, tuple[Callable[..., PeerMessage], tuple[Callable[[object], object], ...]]] = {
    1: (GenesisOffer, (_octets(64, MAX_GENESIS_BYTES), _flag)),
    2: (PreVote, (_u64, _last, _promise_or_none, _u64)),
    3: (PreVoteAnswer, (_u64, _flag, _u64, _last, _u64, _u64)),
    4: (VoteRequest, (_promise, _last)),
    5: (VoteAnswer, (_promise, _flag, _u64, _u64)),
    6: (Heartbeat, (_promise, _u64, _u64, _u64)),
    7: (HeartbeatEcho, (_u64, _u64, _u64, _u64, _u64)),
    8: (PositionReport, (_u64, _u64, _DIGEST)),
    9: (LagReport, (_u64, _u64, _u64)),
    10: (Campaign, (_promise_or_none,)),
    11: (Probe, (_u64,)),
    12: (ProbeEcho, (_u64,)),
    13: (ControlMessage, (_octets(1, MAX_CONTROL_BYTES),)),
    14: (Removal, (_u64,)),
    15: (Directory, (_u64, _addresses)),
}
_STREAM: dict[int, tuple[Callable[..., StreamMessage], tuple[Callable[[object], object], ...]]] = {
    32: (Open, (_promise, _epochs, _u64, _u64, _u64, _REASON)),
    33: (OpenAnswer, (_verb, _u64, _u32, _REASON, _u64)),
    34: (Ack, (_u64, _u64, _u64, _DIGEST)),
    35: (CrcMismatch, (_u64, _u32)),
}
_TYPES: dict[Callable[..., object], int] = {
    row[0]: number for table in (_PEER, _STREAM) for number, row in table.items()
}


_ACK = _TYPES[Ack]


def _plain(value: Promise | OpenVerb) -> object:
    if isinstance(value, Promise):
        return [value.epoch, value.candidate, value.incarnation]
    return str(value)


def encode(message: PeerMessage | StreamMessage) -> bytes:
    """Encode a message."""
    row: list[object] = [_TYPES[type(message)]]
    for name in type(message).__slots__:
        field = getattr(message, name)
        row.append(_plain(field) if isinstance(field, Promise | OpenVerb) else field)
    return pack(row)


def decode_peer(data: bytes) -> PeerMessage:
    """Decode a message of `/peer`.

    Raises:
        BadMessage: it is not one.
    """
    return _decode(data, _PEER)


def decode_stream(data: bytes) -> StreamMessage:
    """Decode a message of `/peer/stream`.

    Raises:
        BadMessage: it is not one.
    """
    return _decode(data, _STREAM)


def _decode(data: bytes, table: dict[int, tuple[Callable[..., M], tuple[Callable[[object], object], ...]]]) -> M:
    try:
        row = unpack(data)
    except PayloadInvalid as error:
        raise BadMessage(str(error)) from error
    if type(row) is not list or not row or type(row[0]) is not int or row[0] not in table:
        raise BadMessage("an unknown type")
    if row[0] == _ACK and len(row) == 5:  # Two or more for each of a leader's frames: checked without a call.
        _, durable, plain, applied, digest = row
        if type(durable) is type(plain) is type(applied) is int and type(digest) is bytes and len(digest) == 16:
            if 0 <= durable <= MAX_U64 and 0 <= plain <= MAX_U64 and 0 <= applied <= MAX_U64:
                return table[_ACK][0](durable, plain, applied, digest)
    build, checks = table[row[0]]
    fields = _row(row, len(checks) + 1)[1:]
    return build(*[check(field) for check, field in zip(checks, fields, strict=True)])


# Shipments: a leader's frames on a stream


class Positions(NamedTuple):
    """The head of each shipment: the leader's commit_index, durable_index and clock."""

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
    """Yield its messages, each with at most `piece_bytes` of frames; at least one."""
    if isinstance(said, OpenAnswer):
        yield ANSWER + encode(said)
        return
    head = FRAMES + SHIPMENT.pack(*said.positions)
    raw = memoryview(said.raw)
    for begin in range(0, max(1, len(raw)), piece_bytes):
        yield b"".join((head, raw[begin : begin + piece_bytes]))


def from_message(data: bytes) -> OpenAnswer | Piece:
    """Decode a leader's message.

    Raises:
        BadMessage: it is not one.
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


class Assembled(NamedTuple):
    """Whole frames back to back, and the epoch of the last one (0 if none). Payloads are not verified."""

    raw: bytes
    last_epoch: int


class FrameAssembler:
    """Joins a stream's bytes into whole frames. Holds less than one frame of `max_frame_bytes` between calls."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._lacks = 0

    def feed(self, data: memoryview) -> Assembled:
        """Add a shipment's bytes; return the frames that are whole now.

        Raises:
            BadMessage: the bytes are not a frame, or the frame is above the limit.
        """
        if not self._buffer:
            end, epoch = self._whole(data)
            self._buffer += data[end:]
            return Assembled(bytes(data[:end]), epoch)
        self._buffer += data
        if len(self._buffer) < self._lacks:
            return Assembled(b"", 0)
        end, epoch = self._whole(memoryview(self._buffer))
        whole = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        return Assembled(whole, epoch)

    def _whole(self, view: memoryview) -> tuple[int, int]:
        """The end of the whole frames in `view`, and the last one's epoch; notes the size of the next one."""
        offset, epoch, self._lacks = 0, 0, 0
        while len(view) - offset >= HEADER_BYTES:
            try:
                header = decode_header(view, offset)
            except (FrameInvalid, UnknownVersion) as error:
                raise BadMessage(f"there is no frame at byte {offset} of a shipment: {error}") from error
            size = header.size
            if size > self._max_frame_bytes:
                raise BadMessage(f"a frame of {size} bytes, above the limit of {self._max_frame_bytes}")
            if offset + size > len(view):
                self._lacks = size
                break
            offset, epoch = offset + size, header.epoch
        return offset, epoch
