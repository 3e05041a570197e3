"""What replication needs of the node around it: one small protocol for each purpose.

Each is implemented by the object that does the work. Every method but `Installs.place_snapshot` is called on the
driver's thread, and none may block. `OwnerT` is the type of the owner of a `Write`.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .coalesce import OwnerT, Write
from .core import Members, Reason, actions
from .core.changing import Outcome
from .disk import Placed
from .net.hello import PeerInfo

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class WriteEvents(Protocol[OwnerT_contra]):
    """What happens to the writes that were proposed here."""

    def placed(self, placed: Placed[OwnerT_contra]) -> None:
        """A frame of writes was appended to this leader's file."""
        ...

    def rejected(self, write: Write[OwnerT_contra], reason: Reason) -> None:
        """A write was not appended and never will be."""
        ...

    def committed(self, index: int) -> None:
        """Every record below `index` is committed and durable here."""
        ...


class ReadEvents(Protocol):
    """What happens to reads."""

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A linearizable read may be answered at `index`; with None, this node cannot answer it."""
        ...

    def grew(self) -> None:
        """More records may be read here: they are committed and durable, or a snapshot was installed."""
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
        """Begin to fetch a leader's snapshot; the events `SnapshotFetched` or `FetchFailed` follow."""
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

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """A peer reports how far it has applied, and its digest there."""
        ...


class Health(Protocol):
    """Gets what an operator must know."""

    def alarmed(self, text: str) -> None:
        """An alarm; the node continues."""
        ...

    def halted(self, reason: str) -> None:
        """The node must stop."""
        ...

    def failed(self, error: Exception) -> None:
        """A bug in this program: the node must stop."""
        ...


@dataclass(frozen=True, slots=True)
class Ports(Generic[OwnerT]):
    """One object for each of them."""

    writes: WriteEvents[OwnerT]
    reads: ReadEvents
    machine: Machine
    role: RoleEvents
    changes: ChangeEvents
    installs: Installs
    health: Health
