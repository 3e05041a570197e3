"""What happens to a core. `Core.handle` takes one event at a time, with the time at which it happened."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from .membership.changing import Wanted
from .messages import Ack, CoreMessage, CrcMismatch, Open, OpenAnswer, Promise, Snapshot


class Reason(StrEnum):
    """Why a write was not appended and never will be."""

    NOT_LEADER = "not_leader"
    OVERLOADED = "overloaded"
    WRONG_INDEX = "wrong_index"
    DISK_FULL = "disk_full"
    OTHER_CODE = "other_code"
    """This leader's machine runs other code than a majority of the voters (`fitness/codes.py`)."""
    RESOURCES_EXHAUSTED = "resources_exhausted"
    """The process or the machine has no file descriptor or memory left. Elections treat this like a full disk."""


class Request(Protocol):
    """A client's write as the core sees it: opaque, with a size and a number of records."""

    @property
    def count(self) -> int:
        """Records that it adds to a frame."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it adds to a frame."""
        ...


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Sent at least every half heartbeat."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of how fit this node is to lead. Sent before each `Tick`.

    `flushes_us` are the durations of the flushes that ended since the last one, as measured in the thread that waited
    for the disk. `machine_failed`: the machine has stopped applying. `features` are those in use at `applied_index`.
    `rot`: the first rot that was found in the log; empty if there is none.
    """

    applied_index: int
    flushes_us: tuple[int, ...] = ()
    machine_failed: bool = False
    features: frozenset[str] = frozenset()
    rot: str = ""


@dataclass(frozen=True, slots=True)
class RoomProbed:
    """The answer to `ProbeRoom`. `has_reserve`: there is room at least for this node's own system records.

    `is_written`: all that was appended is in the file, to be flushed, even if the file cannot grow.
    """

    has_room: bool
    has_reserve: bool
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Nominated:
    """The control plane nominates this node, or no longer does. A level: it holds until the next one (rule 13)."""

    nominated: bool


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """Transfer leadership to `target`, or to the most up-to-date voter (None): for an operator, or before a stop."""

    target: str | None


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """Append the next change of members on the way to what is wanted, for an operator (rule 15).

    `ChangeEnded` with the same `ask_id`, which is not 0, answers.
    """

    ask_id: int
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Drained:
    """An operator drains this node: it lets others lead as long as one can. A level: it holds until the next one."""

    drained: bool


@dataclass(frozen=True, slots=True)
class CodeKnown:
    """The fingerprint of this node's code, empty if unknown, and those that an operator accepted as equal.

    A level: it holds until the next one.
    """

    own: bytes
    accepted: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node stops: everything that waits is refused, and nothing more is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """Clients' writes arrived at this node, in this order."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class ShippingDue:
    """More may be shipped: a shipment was taken at once, or `Core.announces_commit_after_us` passed without frames."""


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """A linearizable read arrived at this node (rule 12)."""

    read_id: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link that this node dialled to a peer is up: what is sent now can arrive.

    The peer's hello named its disk, the features that its program offers and the fingerprint of its machine's code.
    """

    node_id: str
    disk_id: bytes
    features: frozenset[str] = frozenset()
    code: bytes = b""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link that this node dialled to a peer is down. The peer may be, too: it is not heard until it sends again."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer, on the link that it dialled. Its hello named `disk_id`."""

    node_id: str
    disk_id: bytes
    message: CoreMessage


@dataclass(frozen=True, slots=True)
class StreamConnected:
    """The stream that this node dialled is connected; nothing was sent on it yet."""

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
    """A follower says that its frame differs from this leader's at the same (epoch, index) (rule 8)."""

    stream_id: int
    mismatch: CrcMismatch


@dataclass(frozen=True, slots=True)
class Shipped:
    """A `Ship` was handed to the socket, with whole frames up to `next_index`."""

    stream_id: int
    next_index: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A stream ended, at either end."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class ExpiryDue:
    """Segments of the log may be removed: `Expire` requests one after another, until there is none left."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment was taken out of the log, which begins higher than before; its files go next."""


@dataclass(frozen=True, slots=True)
class PromiseStored:
    """A `StorePromise` is on disk, in both slots."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class Truncated:
    """A `Truncate` is done and durable."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class TruncateRefused:
    """A `Truncate` was refused before it began, for want of a descriptor or memory: the log is as it was."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class InstallRefused:
    """An `Install` found no room for the beginning of a log: the log is as it was."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """A `FetchSnapshot` is done: the snapshot is whole, synced and readable by this machine, but not yet valid."""

    stream_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A `FetchSnapshot` failed; the part that was fetched is kept for the next one."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An `Install` is done and durable: the log begins where the snapshot ends."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append. It waits for nothing, so it is no `Event`: the driver passes it to `Core.append_done`.

    `is_made`: something is in the file, not yet on disk. `refused`: why a leader's own append was not made, or only in
    part. `error`: why a leader's frames were not appended here; `refused` says DISK_FULL for them, too. `stream_id` is
    0 for a leader's own append, `is_system` says whether that was a system record, and `index` is that record's.
    """

    stream_id: int = 0
    is_made: bool = True
    refused: Reason | None = None
    error: str = ""
    is_system: bool = False
    index: int = 0


@dataclass(frozen=True, slots=True)
class Flushed:
    """A `Flush` succeeded: everything written before it began is durable."""


@dataclass(frozen=True, slots=True)
class ExpiryEnded:
    """An `Expire` is done: the files of one segment are gone, or (`is_over`) there was none to remove."""

    is_over: bool


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """A flush or a write failed. That is final: which part of it is on disk is unknown."""

    reason: str


LeaderEvent = (
    AckArrived
    | CrcMismatchArrived
    | Shipped
    | StreamOpened
    | Proposed
    | ShippingDue
    | ReadRequested
    | TransferRequested
    | ChangeRequested
)
"""Events handled by a leadership; a node that does not lead refuses them."""

FollowerEvent = FramesArrived | OpenAnswered | StreamConnected | SnapshotFetched | FetchFailed
"""Events of the stream to a leader."""

DiskEvent = (
    Flushed
    | PromiseStored
    | Truncated
    | TruncateRefused
    | Installed
    | InstallRefused
    | ExpiryEnded
    | RoomProbed
    | DiskFailed
)
"""Results of disk actions."""

NodeEvent = (
    Received
    | StreamClosed
    | ExpiryDue
    | Expired
    | LinkUp
    | LinkDown
    | Nominated
    | Drained
    | CodeKnown
    | Stopped
    | Measured
    | Tick
)
"""Events that every node handles, whether it leads, follows or neither."""

Event = LeaderEvent | FollowerEvent | DiskEvent | NodeEvent

LEAVES_LOG = AckArrived | Proposed | Shipped | ShippingDue | Measured | Stopped
"""Before these the log has not changed since the last step. (A node may stop because its members cannot be read.)"""
