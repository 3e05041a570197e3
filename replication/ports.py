"""What the driver and the network need of others: one small protocol for each purpose.

    of the node       WriteEvents, ReadEvents, Machine, RoleEvents, ChangeEvents, Installs, PeerEvents, Health
    of the network    Links, Streams
    of the process    Device

Each is implemented by the object that does the work. Every method but `Installs.place_snapshot` is called on the
driver's thread, and none may block. `OwnerT` is the type of the owner of a `Write`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .core import Members, Reason, actions
from .core.membership.changing import Outcome
from .core.messages import Ack, CrcMismatch, Open, OpenAnswer, PeerMessage
from .disk import OwnerT, Placed, Write
from .net.hello import PeerInfo
from .net.wire import Shipment

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class WriteEvents(Protocol[OwnerT_contra]):
    """What happens to the writes that were proposed here."""

    def placed(self, placed: Placed[OwnerT_contra]) -> None:
        """A frame of writes was appended to this leader's file; or perhaps it was, and the node halts."""
        ...

    def rejected(self, write: Write[OwnerT_contra], reason: Reason) -> None:
        """A write was not appended and never will be."""
        ...

    def flushed(self, durable_index: int) -> None:
        """Every record below `durable_index` is durable here."""
        ...

    def committed(self, commit_index: int) -> None:
        """Every record below `commit_index` is committed and durable here."""
        ...


class ReadEvents(Protocol):
    """What happens to reads."""

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A linearizable read may be answered at `index`; with None, this node cannot answer it."""
        ...


class Machine(Protocol):
    """The machine that applies what is committed."""

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied."""
        ...

    @property
    def digest(self) -> bytes:
        """The digest at `applied_index`."""
        ...

    @property
    def machine_failed(self) -> bool:
        """Whether the machine has stopped applying."""
        ...

    @property
    def features(self) -> frozenset[str]:
        """The features in use at `applied_index`."""
        ...

    def apply_to(self, index: int) -> None:
        """Apply every record below `index`, now or later."""
        ...


class RoleEvents(Protocol):
    """What happens to this node's role and to the members."""

    def role_changed(self, role: actions.RoleChanged) -> None:
        """The role, the epoch or the leader changed."""
        ...

    def transfer_ended(self, reason: str) -> None:
        """A transfer failed; this node continues as before."""
        ...

    def members_changed(self, members: Members) -> None:
        """The members in the log changed."""
        ...


class ChangeEvents(Protocol):
    """What happens to changes of members."""

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        """The outcome of the change that was requested under `ask_id`."""
        ...


class Installs(Protocol):
    """Fetches a leader's snapshot, and continues from it."""

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """Begin to fetch a leader's snapshot; the event `SnapshotFetched` or `FetchFailed` follows."""
        ...

    def place_snapshot(self, index: int) -> None:
        """Make the fetched snapshot valid, durably. Blocks; called in the writer's thread.

        Raises:
            ResourcesExhausted: the process can open no more files; call it again.
            OSError: the device failed.
        """
        ...

    def snapshot_installed(self, index: int) -> None:
        """The log now begins at the fetched snapshot: the machine must continue from there, too."""
        ...


class PeerEvents(Protocol):
    """What happens to the links to peers."""

    def peer_linked(self, node_id: str) -> None:
        """Messages to this peer can arrive now."""
        ...

    def peer_unlinked(self, node_id: str) -> None:
        """Messages to this peer are lost from now on."""
        ...

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        """A message of a peer's control plane arrived."""
        ...


class Health(Protocol):
    """Gets what an operator must know."""

    def alarmed(self, text: str) -> None:
        """An alarm; the node continues."""
        ...

    def halted(self, reason: str) -> None:
        """The node must stop."""
        ...

    def removed(self, index: int) -> None:
        """The record at `index` removed this node's disk from the cluster: the node must stop for good."""
        ...

    def failed(self, error: Exception) -> None:
        """A bug in this program: the node must stop."""
        ...


class Links(Protocol):
    """Links to peers, by node id."""

    def send(self, node_id: str, message: PeerMessage) -> None:
        """Send on the link to a node; without one, the message is dropped silently."""
        ...


class Streams(Protocol):
    """Streams, by stream id. A message without one is dropped silently."""

    def dial_stream(self, action: actions.DialStream) -> None:
        """Dial the leader's stream."""
        ...

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        """Send to the leader on a stream."""
        ...

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> bool:
        """Send to a follower on a stream; return whether it was taken at once. If not, `Shipped` follows a shipment."""
        ...

    def close_stream(self, stream_id: int) -> None:
        """Hang up a stream."""
        ...


Done = Callable[[BaseException | None, int], None]
"""Gets the exception of a block, or None, and how many microseconds it ran in its thread."""


class Device(Protocol):
    """Clocks, and threads for operations that block on the disk. All callbacks run on the driver's thread."""

    def now(self) -> int:
        """Monotonic microseconds."""
        ...

    def clock(self) -> int:
        """This node's wall clock: microseconds since the Unix epoch."""
        ...

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        """Call `then` after about `delay_us`; 0: in the next turn of the loop."""
        ...

    def write(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the writer's thread, in order; then call `done`."""
        ...

    def sync_mark(self, block: Callable[[], None], done: Done) -> None:
        """Run a sync of the mark beside the writer's thread; then call `done`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports(Generic[OwnerT]):
    """What a driver needs of its node."""

    writes: WriteEvents[OwnerT]
    reads: ReadEvents
    machine: Machine
    role: RoleEvents
    changes: ChangeEvents
    installs: Installs
    health: Health
