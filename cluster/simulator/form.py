"""What all nodes of a history share, and what is wrong with one of them."""

from dataclasses import dataclass, field

from quire.log import Directory, Log, LogOptions
from quire.replication.core import CoreOptions, Members

from .clock import Clocks
from .shadow import Named


@dataclass(frozen=True)
class Form:
    """What all nodes of a history share."""

    cluster_id: bytes
    genesis: bytes
    members: Members
    core: CoreOptions
    log: LogOptions
    tick_us: int
    snapshot_records: int
    max_sessions: int
    retention_bytes: int
    retention_follower_bytes: int
    named: dict[int, Named] = field(default_factory=dict)
    """Every record of members in this history, by its crc32c."""

    def open_log(self, directory: Directory, clocks: Clocks) -> Log:
        """The log of a node's disk, on the node's clock."""
        return Log.open(directory, self.log, cluster_id=self.cluster_id, clock=clocks.clock, standalone=False)


@dataclass(slots=True)
class Condition:
    """What is wrong with a machine. Outlives its processes."""

    apply_us: int = 0
    """Up to this long it takes to begin to apply what is committed."""
    disk_failing: bool = False
    machine_is_broken: bool = False
    runs_other_code: bool = False
    is_faulty: bool = False
    """It has a permanent fault, and may report it."""
