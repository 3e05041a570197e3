"""What the checks see of a node, and no more: its disk, its clocks, and the positions of its process."""

from typing import Protocol

from quire.log import Log
from quire.replication.core import Core
from quire.sm import Applier, SnapshotStore

from .clock import Clocks
from .disks import SimDisk
from .form import Condition
from .shadow import Shadow


class ObservedMachine(Protocol):
    """The machine of a process."""

    applier: Applier
    """Another one after an install."""


class ObservedProcess(Protocol):
    """A running process."""

    log: Log
    core: Core
    snapshots: SnapshotStore

    @property
    def machine(self) -> ObservedMachine:
        """What it has applied."""
        ...


class ObservedNode(Protocol):
    """A node."""

    node_id: str
    disk_id: bytes
    disk: SimDisk
    shadow: Shadow
    clocks: Clocks
    condition: Condition

    @property
    def leads(self) -> bool:
        """Whether it believes it is the leader."""
        ...

    @property
    def process(self) -> ObservedProcess | None:
        """Its process; None while it is down."""
        ...

    @property
    def running(self) -> ObservedProcess:
        """Its process; only while it runs."""
        ...
