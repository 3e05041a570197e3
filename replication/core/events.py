"""What happens to a core. `Core.handle` takes one event at a time, with the time at which it happened."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from .messages import Ack, CoreMessage, CrcMismatch, Open, OpenAnswer, Promise, Snapshot


class Reason(StrEnum):
    """Why a write was not appended and never will be."""

    NOT_LEADER = "not_leader"
    OVERLOADED = "overloaded"
    WRONG_INDEX = "wrong_index"
    DISK_FULL = "disk_full"


class Request(Protocol):
    """A client's write as the core sees it: opaque, with a size."""

    @property
    def size(self) -> int:
        """Bytes that it adds to a frame."""
        ...


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Sent at least every half heartbeat."""


@dataclass(frozen=True, slots=True)
class Nominated:
    """The control plane's level: whether this node should try to lead (rule 13)."""

    nominated: bool


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """An operator, or this node's own stop, asks the leader to hand over: to a voter, or to the best one (None)."""

    target: str | None


@dataclass(frozen=True, slots=True)
class PromoteRequested:
    """An operator asks that a node become a voter: for the next change on the way there (rule 15).

    `address` is where its row will say that it is; `ChangeEnded` with the same `ask_id` answers.
    """

    ask_id: int
    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node stops: what waits is given back, and nothing is done any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """Clients' writes arrived at this node, in this order."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """A linearizable read arrived at this node (rule 12)."""

    read_id: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link that this node dialled to a peer stands: what is sent now can arrive. Its hello named the disk."""

    node_id: str
    disk_id: bytes


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link that this node dialled to a peer is gone, so the peer may be: it is not heard until it speaks again."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer, over the link that it dialled. `disk_id` is the one its hello named."""

    node_id: str
    disk_id: bytes
    message: CoreMessage


@dataclass(frozen=True, slots=True)
class StreamConnected:
    """The stream that this node asked for stands; nothing was said on it."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A follower opened a stream to this node."""

    stream_id: int
    node_id: str
    disk_id: bytes
    open: Open


@dataclass(frozen=True, slots=True)
class OpenAnswered:
    """The leader answered the opening."""

    stream_id: int
    answer: OpenAnswer


@dataclass(frozen=True, slots=True)
class FramesArrived:
    """Whole frames (or none) arrived on a stream, with the leader's positions. `last_epoch` is that of the last one."""

    stream_id: int
    raw: bytes
    last_epoch: int
    commit_index: int
    durable_index: int


@dataclass(frozen=True, slots=True)
class AckArrived:
    """A follower acknowledged on a stream."""

    stream_id: int
    ack: Ack


@dataclass(frozen=True, slots=True)
class CrcMismatchArrived:
    """A follower says that its frame contradicts this leader's (rule 8)."""

    stream_id: int
    mismatch: CrcMismatch


@dataclass(frozen=True, slots=True)
class Shipped:
    """A `Ship` was handed to the socket: whole frames up to `next_index`."""

    stream_id: int
    next_index: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A stream ended, whoever ended it."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The log begins higher than before: segments were removed."""


@dataclass(frozen=True, slots=True)
class PromiseStored:
    """A `StorePromise` is on disk, in both slots."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class Appended:
    """An append reached the file (not the disk), in the order asked; `stream_id` 0 means this node's own."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """A leader's own append was not made, or only in part.

    Requests for which there was room are in the file: `Appended` comes first, and counts them.
    """

    reason: Reason


@dataclass(frozen=True, slots=True)
class FramesRefused:
    """An `AppendFrames` was not carried out: the frames failed their checks, or the disk is full."""

    stream_id: int
    error: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """A `Truncate` is done and durable."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """A `FetchSnapshot` is done: the snapshot is whole, synced and readable by this machine, and does not count yet."""

    stream_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A `FetchSnapshot` came to nothing; what was fetched is kept for the next one."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An `Install` is done and durable: the log begins where the snapshot ends."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A `Flush` ended well: what was written before it began is durable."""


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """A flush or a write failed: final, since nobody knows what of it is on disk."""

    reason: str


LeaderEvent = (
    AckArrived
    | CrcMismatchArrived
    | Shipped
    | StreamOpened
    | Proposed
    | ReadRequested
    | TransferRequested
    | PromoteRequested
)
"""What a leadership handles; a node that does not lead refuses it."""

FollowerEvent = FramesArrived | OpenAnswered | StreamConnected | SnapshotFetched | FetchFailed
"""What happens on the stream to a leader."""

DiskEvent = Appended | Flushed | PromiseStored | Truncated | Installed | AppendRefused | FramesRefused | DiskFailed
"""What a disk action came to."""

Event = (
    LeaderEvent
    | FollowerEvent
    | DiskEvent
    | Received
    | StreamClosed
    | Expired
    | LinkUp
    | LinkDown
    | Nominated
    | Stopped
    | Tick
)
