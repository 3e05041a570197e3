"""The process of a simulated node: the shipped driver, core, log and applier, and other state that a crash loses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.log import Directory, Expiry, Log, LogError
from quire.replication import Disk, Reason
from quire.replication.core import Core, NodeRole, Status, actions, events
from quire.replication.core.invariants import Invariants
from quire.replication.driver import Driver, Durations
from quire.replication.lag import Position
from quire.sm import Applier, SnapshotPart, SnapshotStore

from ..node.pending import Pending, Waiter


@dataclass
class Reader:
    """A client that waits for a linearizable read. Gets `answer(state, applied_index)` or `fail()`."""

    answer: Callable[[Any, int], None]
    fail: Callable[[], None]


@dataclass(eq=False)
class Process:
    """A running node: all state that a crash loses."""

    log: Log
    disk: Disk
    core: Core
    driver: "WatchedDriver"
    applier: Applier
    directory: Directory
    snapshots: SnapshotStore
    watch_expiry: Callable[[Callable[[], Expiry | None]], Expiry | None]
    """Called to begin each removal of a segment."""
    taking: int = 0
    fetching: int = 0
    """The stream for which a snapshot is being fetched; 0: none."""
    part: SnapshotPart | None = None
    missing: list[int] = field(default_factory=list)
    fetched: Applier | None = None
    positions: dict[str, Position] = field(default_factory=dict)
    pending: Pending = field(default_factory=lambda: Pending(Durations()))
    readers: dict[int, Reader] = field(default_factory=dict)
    reading: list[tuple[int, int, Reader]] = field(default_factory=list)
    apply_to: int = 0
    applying: bool = False
    invariants: Invariants = field(default_factory=Invariants)
    last_read: int = 0
    role: actions.RoleChanged = field(
        default_factory=lambda: actions.RoleChanged(NodeRole.FOLLOWER, 0, None, False, "")
    )

    def status(self) -> Status:
        """The status of its core."""
        return self.core.status()

    def expire(self, begin: Callable[[], Expiry | None]) -> None:
        """Remove the segments that `begin` takes out of the log, each of them under the checks."""
        self.driver.expire(lambda: self.watch_expiry(begin))


class Proposer(Waiter, Protocol):
    """The owner of a write: a client, which also learns why a write was not appended."""

    def rejected(self, reason: Reason) -> None:
        """No part of the write was appended."""
        ...


class WatchedDriver(Driver[Proposer]):
    """A driver that runs the checks after each step of its core."""

    watch: Callable[[events.Event | events.AppendResult], None]

    def carry_out_step(self, cause: events.Event | events.AppendResult, step: list[actions.Action]) -> None:
        """Carry out one step, then check the node, even if the log failed."""
        try:
            super().carry_out_step(cause, step)
        except LogError:
            self.watch(cause)
            raise
        self.watch(cause)
