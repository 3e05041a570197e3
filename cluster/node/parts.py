"""What a node consists of once it belongs to a cluster, and how it is put together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quire.log import FrameHeader, Log
from quire.replication import Disk, Replica, ReplicaOptions
from quire.replication.core import CoreOptions
from quire.replication.replica import NodeAbove
from quire.sm import Applied, Applier, ApplyFailed

from ..compaction.compaction import Makers, Upkeep
from ..data_dir.genesis import Genesis
from ..errors import ClusterError, NodeStopping
from .applying import Applying
from .opened import Opened
from .reading import Reading

COALESCED_BYTES = 1 << 20  # DESIGN 3: whatever waits is one frame, up to here.


@dataclass(frozen=True, slots=True)
class Parts:
    """What a node consists of once it belongs to a cluster."""

    genesis: Genesis
    log: Log
    replica: Replica
    applying: Applying
    reading: Reading
    upkeep: Upkeep


class PartsOwner(NodeAbove, Protocol):
    """What the parts tell the node, beside what its replica does."""

    def applied(self, applied: Applied) -> None:
        """A frame was applied."""
        ...

    def apply_failed(self, failure: ApplyFailed) -> None:
        """The machine can apply no more; the log goes on."""
        ...

    def at_boundary(self, header: FrameHeader) -> None:
        """A frame was applied and answered."""
        ...


def put_together(
    opened: Opened,
    genesis: Genesis,
    applier: Applier,
    owner: PartsOwner,
    not_leader: Callable[[], ClusterError | None],
) -> Parts:
    """The parts, none of them begun. `applier` is `Opened.restored`'s, `not_leader` as `Reading` has it."""
    config, data_dir, log = opened.config, opened.data_dir, opened.data_dir.log
    if log is None:
        raise NodeStopping
    options = ReplicaOptions(
        address=config.members[config.node],
        genesis=data_dir.genesis_frame(),
        urls=opened.urls,
        core=CoreOptions(
            heartbeat_us=config.heartbeat_ms * 1000,
            election_timeout_us=config.election_timeout_ms * 1000,
            window_bytes=config.stream_window_bytes,
            frame_bytes=min(COALESCED_BYTES, genesis.payload_bytes),
        ),
        max_frame_bytes=genesis.limits["max_frame_bytes"],
        secret=opened.secret,
    )
    disk = Disk(log, data_dir.promises, snapshots=data_dir.snapshots, older_epochs=applier.boundary.epochs)
    replica = Replica(opened.identity, genesis.cluster_id, disk, owner, options)
    applying = Applying(log, applier, owner.applied, owner.apply_failed, owner.failed, owner.at_boundary)
    makers = Makers(lambda: opened.machine_type(genesis.initial), genesis.new_sessions)
    dial = opened.http, opened.secret
    upkeep = Upkeep(data_dir.snapshots, disk, replica, applying, makers, dial, config, owner.failed)
    return Parts(genesis, log, replica, applying, Reading(log, replica, applying, not_leader), upkeep)
