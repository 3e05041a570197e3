"""The events that a replica reports to the node that owns it."""

from typing import Protocol, TypeVar

from .coalesce import Write
from .core import Members, Reason, actions
from .core.changing import Outcome
from .disk import Placed
from .net.hello import PeerInfo

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class Owner(Protocol[OwnerT_contra]):
    """A node as its driver, its network and its replica see it. `OwnerT` is the type of the owner of a `Write`.

    Every method but `place_snapshot` is called on the driver's thread, and none may block.
    """

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

    # Writes and reads

    def placed(self, placed: Placed[OwnerT_contra]) -> None:
        """A frame of writes was appended to this leader's file."""
        ...

    def rejected(self, write: Write[OwnerT_contra], reason: Reason) -> None:
        """A write was not appended and never will be."""
        ...

    def apply_to(self, index: int) -> None:
        """Every record below `index` is committed and durable here."""
        ...

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A linearizable read may be answered at `index`; with None, this node cannot answer it."""
        ...

    # Leadership and members

    def role_changed(self, role: actions.RoleChanged) -> None:
        """The role, the epoch or the leader changed."""
        ...

    def members_changed(self, members: Members) -> None:
        """The members in the log changed."""
        ...

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        """The outcome of a `promote`."""
        ...

    def transfer_ended(self, reason: str) -> None:
        """A `transfer` failed; this node continues as before."""
        ...

    # Snapshots

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """Begin to fetch a leader's snapshot; answer with `Replica.snapshot_fetched` or `Replica.fetch_failed`."""
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

    # Peers

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

    # Failures

    def alarmed(self, text: str) -> None:
        """An alarm for the operator; the node continues."""
        ...

    def halted(self, reason: str) -> None:
        """The node must stop."""
        ...

    def failed(self, error: Exception) -> None:
        """A bug in this program: the node must stop."""
        ...
