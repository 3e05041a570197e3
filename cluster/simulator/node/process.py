"""The process of a simulated node: the shipped driver, core, log and applier, and other state that a crash loses."""

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.log import Directory, Log, LogError
from quire.replication import Disk, Ports, PromiseFile
from quire.replication.core import Core, Identity, State, actions, events
from quire.replication.core.invariants import Invariants
from quire.replication.core.membership.changing import Outcome
from quire.replication.driver import Driver
from quire.replication.ports import Device
from quire.sm import Owner, SnapshotPart, SnapshotStore, restore_newest

from ...node.writing import Pending, WriteCounts
from ..machine import Tally
from ..network import Network
from .applying import Applying
from .expiring import Expiring
from .installing import Installing
from .life import Life
from .reads import Queue, Reads
from .role import Health, RoleState
from .snapshotting import Snapshotting
from .sockets import SimSockets
from .writes import Proposer, Writes


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


@dataclass(eq=False)
class Process:
    """A running node: all state that a crash loses."""

    log: Log
    core: Core
    driver: WatchedDriver
    snapshots: SnapshotStore
    machine: Applying
    writes: Writes
    reads: Reads
    role_state: RoleState
    health: Health
    expiring: Expiring
    next_stream_id: Callable[[], int]
    invariants: Invariants = field(default_factory=Invariants)


def recover(
    life: Life,
    directory: Directory,
    network: Network,
    device: Device,
    act: Callable[[], None],
    changed: Callable[[int, Outcome], None],
) -> Process:
    """A process with what a disk holds. `act` announces each action, `changed` gets the outcome of each change.

    Raises:
        OSError: the disk fails. So do `LogError` and `PromiseLost`.
        PowerLoss: the fuse burned down.
    """
    form, node = life.form, life.node
    promises = PromiseFile.open(directory, node.disk_id)
    log = form.open_log(directory, node.clocks)
    snapshots = SnapshotStore.open(directory, Owner(form.cluster_id, (Tally.name, Tally.version)))
    SnapshotPart.resume(snapshots)
    applier = restore_newest(snapshots, life.new_machine, life.new_sessions)
    boundary = applier.boundary
    if boundary.tail.index:
        log.reset(boundary.tail, members_index=boundary.members_index)
    disk = Disk(log, promises, snapshots=snapshots, older_epochs=boundary.epochs)
    state = State(
        me=Identity(node.node_id, node.disk_id, life.random.getrandbits(63)),
        log=disk,
        options=form.core,
        promise=promises.promise,
        stored_promise=promises.promise,
        commit_index=disk.commit_index,
    )
    core, health, pending, readers = (
        Core(state),
        Health(life),
        Pending(WriteCounts(), lambda: None, lambda: log.tail.index, lambda: core.other_code),
        Queue(),
    )
    role_state = RoleState(core, pending, changed)
    writes = Writes(life, pending, role_state, health)
    machine = Applying(life, log, applier, pending, readers, Snapshotting(life, core, snapshots))
    reads = Reads(life, readers, machine)
    installing = Installing(life, network, snapshots, machine)
    ports: Ports[Proposer] = Ports(writes, reads, machine, role_state, role_state, installing, health)
    sockets = SimSockets(life, network, act)
    driver = WatchedDriver(core, disk, sockets, sockets, device)
    driver.connect(ports)
    expiring = Expiring(life, disk, core, driver, snapshots, health)
    return Process(
        log, core, driver, snapshots, machine, writes, reads, role_state, health, expiring, state.next_stream_id
    )
