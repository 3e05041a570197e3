"""A valid example of each message between nodes, as true as a node can be told it at the moment, and its changes."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_type_hints

from quire.cluster.data_dir.genesis import GENESIS_FILE
from quire.log import (
    Kind,
    Log,
    Tail,
    decode_header,
    encode_frame,
    encode_records,
    encode_system,
    pack,
)
from quire.replication.core.messages import (
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
from quire.replication.net.hello import PeerInfo
from quire.replication.net.wire import ANSWER, FRAMES, SHIPMENT, encode
from tests.cluster.malformed.changed import Changed, changes_of_bytes, changes_of_row
from tests.cluster.running import RunningNode
from tests.packed import unpacked

CONTROL_ROWS: tuple[list[Any], ...] = ([1, 5, 1, 1], [2, 5], [3, 5, 1, 1, 1, [[2, 5]]], [4, 2, False, True])
"""Of each kind of message of the control plane (`control/envelope.py`)."""

NOTHING: Mapping[str, int] = MappingProxyType({})


class View(NamedTuple):
    """What a stranger knows of a node, and says of itself."""

    speaker: str
    incarnation: int
    promise: Promise
    epochs: tuple[tuple[int, int], ...]
    tail: int
    tail_epoch: int
    clock: int
    tail_crc32c: int
    genesis: bytes
    digest: bytes

    @property
    def last(self) -> Last:
        return Last(self.tail_epoch, self.tail)


def view_of(running: RunningNode, speaker: PeerInfo, *, next_epoch: bool = False) -> View:
    """As a node stands now; or what it has committed, and the promise to the speaker that leads in the next epoch."""
    parts, node = running.node.components, running.node
    promise, tail = parts.replica.core.status().promise, parts.log.tail
    if next_epoch:
        tail = committed_end(parts.log, parts.replica.core.commit_index)
        promise = Promise(promise.epoch + 1, speaker.node_id, speaker.incarnation)
    return View(
        speaker.node_id,
        speaker.incarnation,
        promise,
        tuple(parts.log.epochs),
        *tail,
        (running.config.data_dir / GENESIS_FILE).read_bytes(),
        node.components.applying.digest,
    )


def committed_end(log: Log, index: int) -> Tail:
    """The end of the frame before `index`, a boundary."""
    if index == log.origin.index:
        return log.origin
    raw, _ = log.read_frames(log.lookup.boundary_at_or_below(index - 1), 1, unflushed=True)
    header = decode_header(raw)
    return Tail(index, header.epoch, header.timestamp, header.crc32c)


def peer_examples(view: View) -> dict[type, list[PeerMessage]]:
    """Valid messages of `/peer`."""
    promise, last, clock = view.promise, view.last, view.clock
    next_one = Promise(promise.epoch + 1, view.speaker, view.incarnation)
    transferred = promise if promise.candidate else None
    found: list[PeerMessage] = [
        PreVote(1, last, transferred, 1),
        PreVote(0, last, None),
        PreVoteAnswer(1, True, promise.epoch, last, clock, 1),
        Campaign(transferred),
        Campaign(None),
        VoteRequest(next_one, last),
        VoteAnswer(next_one, True, promise.epoch, clock),
        VoteAnswer(promise, False, promise.epoch, clock),
        Heartbeat(next_one, 1, clock, 1),
        Heartbeat(Promise(promise.epoch, view.speaker, view.incarnation), 1, clock),
        HeartbeatEcho(promise.epoch, 1, promise.epoch, 1, clock),
        PositionReport(view.tail, view.tail, view.digest),
        LagReport(view.tail, 0, clock),
        Probe(1),
        ProbeEcho(1),
        GenesisOffer(view.genesis, committed=True),
        Removal(view.tail),
        Directory(view.tail, (("n1", "127.0.0.1:1"),)),
        *(ControlMessage(pack(row)) for row in CONTROL_ROWS),
    ]
    return _by_type(found)


def stream_examples(view: View) -> dict[type, list[StreamMessage]]:
    """Valid messages of a follower on `/peer/stream`."""
    found: list[StreamMessage] = [
        Open(view.promise, view.epochs, view.tail, view.tail, 0, "no room"),
        Open(view.promise, view.epochs, view.tail, view.tail),
        Ack(view.tail, view.tail, view.tail, view.digest),
        CrcMismatch(view.tail, view.tail_crc32c),
    ]
    return _by_type(found)


def answer_examples(view: View) -> list[OpenAnswer]:
    """Valid answers to an opening, one of each verb."""
    tail, crc32c = view.tail, view.tail_crc32c
    return [
        OpenAnswer(OpenVerb.RESUME, tail, crc32c, ""),
        OpenAnswer(OpenVerb.TRUNCATE, tail, crc32c, ""),
        OpenAnswer(OpenVerb.INSTALL, tail, 0, "", tail + 10),
        OpenAnswer(OpenVerb.LOST_DATA, tail, 0, "this disk acknowledged more"),
        OpenAnswer(OpenVerb.REFUSE, 0, 0, "this node does not lead"),
    ]


def changes_of(message: PeerMessage | StreamMessage, chance: random.Random) -> Iterator[Changed]:
    """Each change of each field; where a field has bytes of another codec, of that codec's fields, too."""
    row = unpacked(encode(message))
    yield from changes_of_row(row, names_of(type(message)), chance)
    if isinstance(message, ControlMessage):
        for change in changes_of_row(unpacked(message.data), [(f"{n}", []) for n in range(1, 7)], chance):
            yield Changed(f"data.{change.where}", change.how, encode(ControlMessage(change.data or b"\0")))


def names_of(kind: Any) -> list[tuple[str, Any]]:
    """The fields of a message in order, each with those of its own type, if that is one of ours."""
    if not (is_dataclass(kind) or hasattr(kind, "_fields")):
        inner = [names_of(argument) for argument in get_args(kind)]
        return next(filter(None, inner), [(str(place), []) for place in range(3)] if get_args(kind) else [])
    names = getattr(kind, "_fields", None) or [field.name for field in fields_of(kind)]
    hints = get_type_hints(kind)
    return [(name, names_of(hints[name])) for name in names]


def field_names(kind: Any) -> frozenset[str]:
    """The fields of a message, those of the messages' own types in it as `last.epoch`."""
    return frozenset(_dotted(names_of(kind)))


def _dotted(names: list[tuple[str, Any]]) -> Iterator[str]:
    for name, inner in names:
        yield name
        yield from (f"{name}.{below}" for below in _dotted(inner) if not below.isdigit())


def shipments(view: View, chance: random.Random) -> Iterator[Changed]:
    """A leader's shipments of one frame, with one thing changed in the head, or in the frame, whose crcs are right."""
    head = (0, view.tail, view.clock)
    whole = SHIPMENT.pack(*head)
    for name, place in (("commit_index", 0), ("durable_index", 1), ("clock", 2)):
        for number in (0, 1, view.tail - 1, view.tail + 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1):
            changed = [*head[:place], number, *head[place + 1 :]]
            yield Changed(f"Shipment.{name}", str(number), FRAMES + SHIPMENT.pack(*changed))
    for name, how, frame in _frames(view):
        yield Changed(f"Frame.{name}", how, FRAMES + whole + frame)
    frame = _frame(view, Kind.RECORDS, encode_records([["add", 0]]))
    for how, data in changes_of_bytes(frame, chance):
        yield Changed("Frame.bytes", how, FRAMES + whole + data)
    for how, data in changes_of_bytes(FRAMES + whole, chance):
        yield Changed("Shipment.bytes", how, data)
    for kind in (b"", ANSWER, b"\2", b"\xff"):
        yield Changed("Shipment.kind", kind.hex(), kind + whole + frame)


NARROW, WIDE = (0, 1, 2, 2**16, 2**31, 2**32 - 1), (0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)


def _frames(view: View) -> Iterator[tuple[str, str, bytes]]:
    records = encode_records([["add", 0]])
    for name, numbers in {
        "index": (*WIDE, view.tail - 1, view.tail + 1),
        "epoch": (*WIDE, view.promise.epoch + 1, view.tail_epoch - 1),
        "timestamp": (*WIDE, view.clock - 1),
        "count": NARROW,
        "prev_crc32c": NARROW,
        "session": WIDE,
        "sequence": WIDE,
        "kind": (1, 2, 3, 4, 255),
    }.items():
        for number in numbers:
            if number >= 0:
                yield name, str(number), _frame(view, Kind.RECORDS, records, {name: number})
    for kind, payloads in {
        Kind.RECORDS: (b"", b"\xc0", pack([]), pack([1, 2]), b"\xdd\xff\xff\xff\xff"),
        Kind.RUNS: (pack([[[1, 1, 1]], [1]]), pack([[[1, 2**64 - 1, 1]], [1]]), pack([[], []]), b"\xc0"),
        Kind.BLOB: (b"", b"\xff" * 4, b"\0\0\0\0"),
        Kind.SYSTEM: tuple(_system_payloads(view)),
    }.items():
        for payload in payloads:
            yield "payload", f"{kind.name} {payload!r:.60}", _frame(view, kind, payload)


def _system_payloads(view: View) -> Iterator[bytes]:
    voter = ["n1", bytes(16), "127.0.0.1:1", "voter"]
    observer = [*voter[:3], "observer"]
    rows: tuple[Any, ...] = (
        None,
        1,
        "n1",
        [],
        {},
        [[]],
        [voter[:3]],
        [observer],
        [voter, voter],
        [["N/1", *voter[1:]]],
        [["", *voter[1:]]],
        [["n1", b"", *voter[2:]]],
        [[*voter[:3], "emperor"]],
        [[*voter[:2], None, "voter"]],
        [voter] * 65,
    )
    yield from (encode_system({"type": "members", "members": members}) for members in rows)
    yield encode_system({"type": "members"})
    yield encode_system({"type": "genesis", "members": [observer]})
    yield encode_system({"type": "unheard-of"})
    kinds: tuple[Any, ...] = (None, 1, [], "", b"members", {})
    yield from (pack({"type": kind}) for kind in kinds)
    yield from (b"", b"\xc0", pack([]), pack(1), b"\xff", b"\x91" * 40)


FRAME_FIELDS = frozenset({"index", "epoch", "timestamp", "count", "prev_crc32c", "session", "sequence", "kind"})
"""The fields of a frame's header that `_frames` changes; the others follow from its payload."""


def _frame(view: View, kind: int, payload: bytes, changed: Mapping[str, int] = NOTHING) -> bytes:
    header: dict[str, int] = {
        "index": view.tail,
        "epoch": view.promise.epoch,
        "timestamp": view.clock,
        "count": 1,
        "prev_crc32c": view.tail_crc32c,
        "kind": kind,
    }
    return encode_frame(payload=payload, **{**header, **changed})


def _by_type(found: list[Any]) -> dict[type, list[Any]]:
    kinds: dict[type, list[Any]] = {}
    for message in found:
        kinds.setdefault(type(message), []).append(message)
    return kinds


ALL_PEER: frozenset[type] = frozenset(
    member for part in get_args(PeerMessage) for member in (get_args(part) or (part,))
)
ALL_STREAM: frozenset[type] = frozenset(get_args(StreamMessage))
