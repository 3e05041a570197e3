"""What a core requests from its driver, in order. Each disk action names the event that answers it."""

from collections.abc import Mapping
from dataclasses import dataclass

from .events import Reason, Request
from .members import Members
from .membership.changing import Outcome
from .messages import CoreMessage, CrcMismatch, Open, OpenAnswer, Promise, Snapshot
from .status import NodeRole

# Disk: carried out one at a time, in the order asked; only appends may run during a flush or an expiry (rule 2). The
# rules rely on the order: an append that was asked for before a promise or a truncation is in the file before that
# begins.


@dataclass(frozen=True, slots=True)
class StorePromise:
    """Write and fsync both promise slots, then `PromiseStored`."""

    promise: Promise


@dataclass(frozen=True, slots=True)
class AppendRequests:
    """Append these requests as one frame of `epoch`; its `AppendResult` goes back at once.

    Its timestamp is `time`, or the last frame's if that is later; so too of a system record (rule 5).
    """

    epoch: int
    time: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class AppendSystem:
    """Append one system record as a frame of `epoch`; its `AppendResult` goes back at once."""

    epoch: int
    time: int
    value: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AppendFrames:
    """Verify and append a leader's frames; their `AppendResult` goes back at once."""

    stream_id: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to a frame boundary, durably, then `Truncated`."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Install:
    """Make the fetched snapshot valid, durably, and reset the log to begin there, then `Installed`."""

    stream_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Flush:
    """Make everything appended so far durable, then `Flushed` or `DiskFailed`."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Remove the oldest segment, if it may go: `Expired` once it is out of the log, `ExpiryEnded` once it is gone."""


@dataclass(frozen=True, slots=True)
class ProbeRoom:
    """Find out whether a full disk has room again, writing only frames that wait for it; then `RoomProbed`."""


# Network


@dataclass(frozen=True, slots=True)
class Send:
    """Send on the link that this node dialled; dropped silently if there is none."""

    node_id: str
    message: CoreMessage


@dataclass(frozen=True, slots=True)
class DialStream:
    """Dial the leader's `/peer/stream`, then `StreamConnected` or `StreamClosed`."""

    stream_id: int
    leader_id: str


@dataclass(frozen=True, slots=True)
class SendOpen:
    """Open the stream: say what this node's log has."""

    stream_id: int
    open: Open


@dataclass(frozen=True, slots=True)
class AnswerOpen:
    """Answer a follower's opening."""

    stream_id: int
    answer: OpenAnswer


@dataclass(frozen=True, slots=True)
class Ship:
    """Send positions and whole frames from `from_index`, at most `max_bytes` or one frame, then `Shipped`."""

    stream_id: int
    from_index: int
    max_bytes: int
    commit_index: int
    durable_index: int


@dataclass(frozen=True, slots=True)
class SendAck:
    """Acknowledge on a stream. The driver adds what only it knows: the applied index and the digest."""

    stream_id: int
    durable_index: int
    plain_durable_index: int


@dataclass(frozen=True, slots=True)
class SendCrcMismatch:
    """Tell the leader that the logs contradict each other (rule 8)."""

    stream_id: int
    mismatch: CrcMismatch


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream; a `StreamClosed` need not follow."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch the leader's snapshot, whole and verified, without touching valid ones; then `SnapshotFetched` or
    `FetchFailed`.

    Parts fetched earlier are reused. A later `FetchSnapshot`, for another stream, replaces this one.
    """

    stream_id: int
    leader_id: str
    index: int


# The node above


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply up to `to_index`: every record below it is committed, and durable on this node (rule 7)."""

    to_index: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The node's role, epoch or leader changed. `serving`: it leads, and its `epoch_start` is committed (rule 6)."""

    role: NodeRole
    epoch: int
    leader_id: str | None
    serving: bool
    reason: str


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members in the log changed: a record was appended, truncated, or came with a snapshot (rule 15)."""

    members: Members


@dataclass(frozen=True, slots=True)
class ChangeEnded:
    """The answer to a `ChangeRequested`: at once if nothing changes, otherwise once the record is committed."""

    ask_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LeaveCluster:
    """Stop this node for good: the record at `index`, which is committed, removed its disk."""

    index: int


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A `TransferRequested` failed, and this node still leads. One that succeeds ends the leadership instead."""

    reason: str


@dataclass(frozen=True, slots=True)
class RejectRequest:
    """A proposed request was not appended and never will be."""

    request: Request
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A linearizable read may be answered from a state at or after `index`; None: this node cannot answer it."""

    read_id: int
    index: int | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm for the operator; the node continues. `Status.alarms` has it, too."""

    text: str


@dataclass(frozen=True, slots=True)
class Halt:
    """A broken rule or a failed disk: stop the node, and log the reason with its values."""

    reason: str


DiskAction = (
    StorePromise | AppendRequests | AppendSystem | AppendFrames | Truncate | Install | Flush | Expire | ProbeRoom
)
"""Actions on this node's disk."""

NetworkAction = Send | DialStream | SendOpen | AnswerOpen | Ship | SendAck | SendCrcMismatch | CloseStream
"""Actions on links and streams."""

NodeAction = (
    FetchSnapshot
    | RoleChanged
    | MembersChanged
    | ChangeEnded
    | LeaveCluster
    | TransferEnded
    | RejectRequest
    | ReadReady
    | Alarm
    | Halt
)
"""What is told to the node above."""

Action = DiskAction | NetworkAction | NodeAction | Apply
