"""One simulated node: the shipped driver, core, log, applier and sessions on a simulated disk and network.

A `Node` is the machine: its disk and clocks survive a crash. A `Process` does not. `Node.life` counts the processes, so
that a call meant for an earlier one is dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from quire.log import Directory, Expiry, FrameHeader, Log, LogError, LogOptions, NoRoom, walk_frames
from quire.log.simulated import faulty
from quire.replication import Disk, Placed, Ports, PromiseFile, Reason, Write
from quire.replication.core import Core, CoreOptions, Identity, Members, NodeRole, State, actions, events
from quire.replication.core.changing import Outcome
from quire.replication.core.messages import Ack, CrcMismatch, Open, OpenAnswer, PeerMessage, Snapshot
from quire.replication.net.hello import PeerInfo
from quire.replication.net.wire import Shipment
from quire.sm import ApplyFailed, Boundary, Owner, Sessions, SnapshotPart, SnapshotStore, restore_newest, write_snapshot

from ..compaction.retention import Limits, Retention
from .checks import Checks, Violation
from .clock import MILLISECOND, SECOND, Clocks, Schedule
from .disks import Latency, SimDevice, SimDisk
from .machine import Tally
from .network import Network, Stream
from .process import Process, Proposer, Reader, WatchedDriver
from .shadow import Named, Shadow

APPLY_BYTES = 1 << 16
CHUNK_BYTES = 100
SNAPSHOT_US = 100 * MILLISECOND
EXPIRY_US = 150 * MILLISECOND


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


class Node:
    """A machine on which a node runs, crashes and restarts. Implements the ports of replication and `Sockets`."""

    def __init__(self, node_id: str, form: Form, schedule: Schedule, network: Network, seed: str) -> None:
        self.node_id = node_id
        self.form = form
        self.schedule = schedule
        self.network = network
        self.random = Random(f"{seed}/{node_id}")
        self.snapshot_random = Random(f"{seed}/{node_id}/snapshots")
        self.seed = seed
        self.life = 0
        self.process: Process | None = None
        self.clocks = Clocks(schedule, 1.0, 0)
        self.latency = Latency(50, 1_000)
        self.apply_us = 0
        self.upstreams: dict[int, Stream] = {}
        self.downstreams: dict[int, Stream] = {}
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.fuse: int | None = None
        self.trigger: str | None = None
        """The fuse starts to burn at the next action whose name starts with this."""
        self.armed_fuse = 0
        self.nominated = False
        self.disk_failing = False
        self.machine_is_broken = False
        self.is_faulty = False
        """It has a permanent fault, and may report it."""
        self.halt_reason = ""
        self.ended: Callable[[Node, str], None] = lambda *_: None
        self.changed: Callable[[int, Outcome], None] = lambda *_: None
        self.checks: Checks
        self.disks = 0
        self.insert_disk()

    def insert_disk(self) -> None:
        """Insert a new, empty disk, and write the genesis and a fresh promise to it."""
        self.disks += 1
        self.disk_id = f"{self.node_id}/{self.disks}".encode().ljust(16, b"\0")
        self.disk = SimDisk(f"{self.seed}/{self.node_id}/{self.disks}", self.act)
        self.shadow = Shadow(self.disk, self.form.named)
        self._counted = self.form.members.is_voter(self.node_id, self.disk_id)
        self.shadow.below = lambda first, crc: self.checks.below(self, first, crc)
        directory = self.disk.directory()
        PromiseFile.create(directory, self.disk_id).close()
        log = self._open_log(directory)
        log.append_frames(self.form.genesis)
        log.flush()
        log.close()
        self.shadow.read_all()

    def _open_log(self, directory: Directory) -> Log:
        form = self.form
        return Log.open(directory, form.log, cluster_id=form.cluster_id, clock=self.clocks.clock, standalone=False)

    # Life and death

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        return self.process is not None

    @property
    def running(self) -> Process:
        """Its process; only while it runs."""
        if self.process is None:
            raise AssertionError(f"{self.node_id} is down")
        return self.process

    @property
    def leads(self) -> bool:
        """Whether it believes it is the leader."""
        return self.process is not None and self.process.core.leads

    @property
    def counts(self) -> bool:
        """Whether it is a voter according to its own log, when it last ran."""
        if self.process is not None:
            self._counted = self.process.status().is_voter
        return self._counted

    def _sessions(self) -> Sessions:
        return Sessions(max_sessions=self.form.max_sessions)

    def start(self) -> None:
        """Recover and run.

        Raises:
            OSError: the disk fails. So do `LogError` and `PromiseLost`.
            PowerLoss: the fuse burned down during recovery.
        """
        self.life += 1
        self.halt_reason, self.backlog = "", None
        directory = self.disk.directory()
        promises = PromiseFile.open(directory, self.disk_id)
        log = self._open_log(directory)
        snapshots = SnapshotStore.open(directory, Owner(self.form.cluster_id, (Tally.name, Tally.version)))
        SnapshotPart.resume(snapshots)
        applier = restore_newest(snapshots, self._new_machine, self._sessions)
        boundary = applier.boundary
        if boundary.tail.index:
            log.reset(boundary.tail, members_index=boundary.members_index)
        disk = Disk(log, promises, snapshots=snapshots, older_epochs=boundary.epochs)
        state = State(
            me=Identity(self.node_id, self.disk_id, self.random.getrandbits(63)),
            log=disk,
            options=self.form.core,
            promise=promises.promise,
            stored_promise=promises.promise,
            commit_index=disk.commit_index,
        )
        core = Core(state)
        life = self.life
        device = SimDevice(
            self.clocks,
            self.latency,
            self.random,
            lambda delay, call: self.schedule.later(delay, self.run, life, call),
            self.act,
        )
        ports = Ports[Proposer](self, self, self, self, self, self, self)
        driver = WatchedDriver(core, disk, ports, self, device)
        driver.watch = self._watched
        self.process = Process(log, disk, core, driver, applier, directory, snapshots, self._begin_expiry)
        self.checks.started(self)
        driver.step(events.Nominated(self.nominated))
        self._tick()
        self.schedule.later(self.random.randint(0, SECOND), self.run, life, self._sync_mark)
        self.schedule.later(EXPIRY_US, self.run, life, self._expire)
        self.network.came_up(self)

    def die(self, *, keep: faulty.Keep | None) -> None:
        """End the process: it is killed (`keep` is None: the page cache stays), or the machine loses power."""
        self.checks.died(self)
        self._counted = self.counts
        self.process, self.fuse, self.trigger, self.backlog = None, None, None, None
        self.upstreams.clear()
        self.downstreams.clear()
        if keep is not None:
            self.disk.lose_power(keep)
        self.network.went_down(self, noticed_at_once=keep is None)

    def stop_cleanly(self) -> None:
        """Stop as on SIGTERM."""
        self.running.driver.step(events.Stopped("this node is stopping"))
        self.running.log.close()

    def run(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call in the process with that number: now, or when it is resumed; never if it has ended."""
        if life != self.life or self.process is None:
            return
        if self.backlog is not None:
            self.backlog.append((call, arguments))
            return
        self.guarded(call, *arguments)

    def guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something during which the node may die."""
        try:
            call(*arguments)
        except faulty.PowerLoss:
            self.ended(self, "fuse")
        if self.halt_reason and self.process is not None:
            self.ended(self, "halted")

    def resume(self) -> None:
        """Continue after a pause: make all calls that are due, those from sockets before those from timers."""
        backlog, self.backlog = self.backlog or [], None
        for timers in (False, True):
            for call, arguments in backlog:
                if (call == self._tick) is timers:
                    self.run(self.life, call, *arguments)

    def act(self, what: str = "send") -> None:
        """Announce an externally visible action. If the fuse has burned down, the node dies before it.

        Raises:
            PowerLoss: it dies.
        """
        if self.trigger is not None and what.startswith(self.trigger):
            self.trigger, self.fuse = None, self.armed_fuse
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise faulty.PowerLoss("the fuse burnt down")

    def _tick(self) -> None:
        if self.process is not None and not self.halt_reason:
            self.process.driver.tick()
        delay = self.form.tick_us + self.random.randint(0, self.form.tick_us // 5)
        self.schedule.later(delay, self.run, self.life, self._tick)

    def _sync_mark(self) -> None:
        self.running.driver.sync_mark()
        self.checks.looked(self)
        self.schedule.later(SECOND, self.run, self.life, self._sync_mark)

    def step(self, event: events.Event) -> None:
        """Pass an event to the driver, unless the node has halted or died."""
        if self.process is not None and not self.halt_reason:
            self.process.driver.step(event)

    def _watched(self, event: events.Event | events.AppendResult) -> None:
        process = self.running
        process.invariants.check(process.core)
        self.checks.stepped(self, event)

    # What clients ask

    def propose(self, write: Write[Proposer]) -> None:
        """Propose a client's write, or reject it at once if this node does not serve."""
        role = self.running.role
        if role.role is not NodeRole.LEADER or not role.serving or self.halt_reason:
            write.owner.rejected(Reason.NOT_LEADER)
            return
        self.step(events.Proposed((write,)))

    def read(self, reader: Reader) -> None:
        """Begin a client's linearizable read."""
        process = self.running
        process.last_read += 1
        process.readers[process.last_read] = reader
        self.step(events.ReadRequested(process.last_read))

    # The ports of replication

    @property
    def applied_index(self) -> int:
        return self.running.applier.applied_index

    @property
    def digest(self) -> bytes:
        return self.running.applier.digest

    @property
    def features(self) -> frozenset[str]:
        """None: these nodes exchange messages, not their bytes."""
        return frozenset()

    @property
    def machine_failed(self) -> bool:
        return self.running.applier.failure is not None

    def committed(self, index: int) -> None:
        self.checks.commits(self)
        self.running.pending.committed(index)

    def grew(self) -> None:
        """Nobody waits for records here."""

    def apply_to(self, index: int) -> None:
        process = self.running
        process.apply_to = max(process.apply_to, index)
        if not self.apply_us:
            self._apply()
        elif not process.applying:
            process.applying = True
            self.schedule.later(self.random.randint(0, self.apply_us), self.run, self.life, self._apply)

    def _apply(self) -> None:
        process = self.running
        process.applying = False
        applier, log = process.applier, process.log
        while applier.applied_index < process.apply_to and log.failure is None and applier.failure is None:
            raw, _ = log.read_frames(applier.applied_index, APPLY_BYTES, to_index=process.apply_to)
            if not raw:
                raise Violation(
                    "what is to be applied can be read", self.node_id, applier.applied_index, process.apply_to
                )
            try:
                self._apply_frames(raw)
            except ApplyFailed:
                if not self.machine_is_broken:
                    raise
                for _, _, reader in process.reading:
                    reader.fail()
                process.reading.clear()
        while process.reading and process.reading[0][0] <= applier.applied_index:
            heappop(process.reading)[2].answer(applier.state(), applier.applied_index)

    def _apply_frames(self, raw: bytes) -> None:
        process = self.running
        for frame in walk_frames(raw):
            applied = process.applier.apply(frame)
            self.checks.applied(self, frame, applied, process.applier.digest)
            process.pending.applied(applied)
            self._at_boundary(frame.header)

    def break_machine(self) -> None:
        """From now on its machine raises an exception at each command, even after a restart."""
        self.machine_is_broken = True
        if self.process is not None and isinstance(self.process.applier.machine, Tally):
            self.process.applier.machine.is_broken = True

    def _new_machine(self) -> Tally:
        machine = Tally()
        machine.is_broken = self.machine_is_broken
        return machine

    def _at_boundary(self, header: FrameHeader) -> None:
        """Begin a snapshot of the current state if one is due; it is written while later frames are applied."""
        process, records = self.running, self.form.snapshot_records
        if not records or process.taking or header.index // records == header.next_index // records:
            return
        applier = process.applier
        process.taking = applier.applied_index
        boundary, content = applier.boundary, list(applier.content())
        pause = self.snapshot_random.randint(0, SNAPSHOT_US)
        self.schedule.later(pause, self.run, self.life, self._snapshot, boundary, content)

    def _snapshot(self, boundary: Boundary, content: list[bytes]) -> None:
        """Write the snapshot, as the forked child does."""
        process = self.running
        try:
            folder = process.snapshots.begin(process.taking)
            write_snapshot(folder, process.snapshots.owner, boundary, content, chunk_bytes=CHUNK_BYTES)
        except (OSError, NoRoom):
            process.taking = 0  # The parts that it left are harmless.
            return
        self.schedule.later(self.snapshot_random.randint(0, SNAPSHOT_US), self.run, self.life, self._complete)

    def _complete(self) -> None:
        process = self.running
        index, process.taking = process.taking, 0
        try:
            manifest = process.snapshots.complete(index)
            self.checks.snapshot_taken(self, manifest)
            leader = process.status().leader
            process.snapshots.retain(install.snapshot_index for install in (leader.installs if leader else ()))
        except OSError:
            if not self.disk_failing:
                raise

    def _expire(self) -> None:
        """Expire segments, with the shipped rules, on this node's clock."""
        process = self.running
        if self.form.retention_bytes and process.log.failure is None and not self.halt_reason:
            limits = Limits(self.form.retention_bytes, 0, self.form.retention_follower_bytes)
            retention = Retention(process.disk, process, lambda: process.snapshots.manifests, limits, self.clocks.clock)
            try:
                process.snapshots.check_newest()
                retention.expire(lambda _: None, checked=True)
            except LogError as error:
                process.driver.log_failed(error)
                return
        self.schedule.later(EXPIRY_US, self.run, self.life, self._expire)

    def _begin_expiry(self, begin: Callable[[], Expiry | None]) -> Expiry | None:
        before, needed = self.running.log.bounds.lowest_index, self.checks.needed(self)
        expiry = begin()
        self.checks.expired(self, before, needed)
        return expiry

    # Installs

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        process = self.running
        process.fetching = action.stream_id
        self.network.fetch(self, action, None, self._fetched_manifest)

    def _fetched_manifest(self, action: actions.FetchSnapshot, raw: bytes | None) -> None:
        process = self.running
        if process.fetching != action.stream_id:
            return
        if raw is None:
            self.step(events.FetchFailed(action.stream_id, "the leader is gone, or its snapshot"))
            return
        try:
            process.part = SnapshotPart.begin(process.snapshots, raw)
            process.missing = process.part.missing()
        except (OSError, NoRoom) as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        self._fetch_next(action)

    def _fetch_next(self, action: actions.FetchSnapshot) -> None:
        process = self.running
        if process.missing:
            self.network.fetch(self, action, process.missing[0], self._fetched_chunk)
            return
        if process.part is None:
            raise AssertionError("no part was begun")
        try:
            process.fetched = process.part.restore(self._new_machine, self._sessions)
        except OSError as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        boundary = process.fetched.boundary
        snapshot = Snapshot(*boundary.tail, boundary.members_index, boundary.epochs)
        self.step(events.SnapshotFetched(action.stream_id, snapshot))

    def _fetched_chunk(self, action: actions.FetchSnapshot, data: bytes | None) -> None:
        process = self.running
        if process.fetching != action.stream_id or process.part is None:
            return
        try:
            if data is None:
                raise OSError("the leader is gone, or its snapshot")
            process.part.put(process.missing[0], data)
        except (OSError, NoRoom) as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        del process.missing[0]
        self._fetch_next(action)

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        store = self.running.snapshots
        manifest = next((manifest for manifest in store.manifests if manifest.index == index), None)
        if manifest is None or self.backlog is not None:
            return None
        return manifest.encode() if number is None else store.chunk(manifest, number)

    def place_snapshot(self, index: int) -> None:
        part = self.running.part
        if part is None or part.manifest.index != index:
            raise Violation("what is installed was fetched", self.node_id, index)
        part.complete()

    def snapshot_installed(self, index: int) -> None:
        process = self.running
        applier, process.fetched, process.part = process.fetched, None, None
        if applier is None or applier.applied_index != index:
            raise Violation("what is installed was read", self.node_id, index)
        process.applier = applier
        process.apply_to = max(process.apply_to, index)
        process.snapshots.remove_all([kept for kept in process.snapshots.indices if kept < index])
        self.checks.installed(self, index)

    def placed(self, placed: Placed[Proposer]) -> None:
        self.running.pending.placed(placed)

    def rejected(self, write: Write[Proposer], reason: Reason) -> None:
        write.owner.rejected(reason)

    def role_changed(self, role: actions.RoleChanged) -> None:
        process = self.running
        was, process.role = process.role, role
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            process.pending.lost(process.core.commit_index, role.reason)

    def members_changed(self, members: Members) -> None:
        """There is no control plane to rebuild: the plan nominates."""

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        self.changed(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """Nobody waits for a transfer here."""

    def peer_linked(self, node_id: str) -> None:
        """No control plane runs here."""

    def peer_unlinked(self, node_id: str) -> None:
        """No control plane runs here."""

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        """No control plane runs here."""

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """The checks compare the digests of all nodes."""

    def alarmed(self, text: str) -> None:
        if self.is_faulty or (self.checks.is_lied_to and "used up" not in text):
            return
        raise Violation("nothing here should alarm an operator", self.node_id, text)

    def read_ready(self, read_id: int, index: int | None) -> None:
        process = self.running
        reader = process.readers.pop(read_id)
        if index is None or process.applier.failure is not None:
            reader.fail()
        elif process.applier.applied_index >= index:
            reader.answer(process.applier.state(), process.applier.applied_index)
        else:
            heappush(process.reading, (index, read_id, reader))

    def halted(self, reason: str) -> None:
        self.halt_reason = self.halt_reason or reason

    def failed(self, error: Exception) -> None:
        """The error is raised as well, and becomes the history's outcome."""

    def next_stream_id(self) -> int:
        return self.running.core.next_stream_id()

    # Sockets

    def send(self, node_id: str, message: PeerMessage) -> None:
        self.act()
        self.checks.sent(self, message)
        self.network.send(self, node_id, message)

    def dial_stream(self, action: actions.DialStream) -> None:
        self.act()
        self.network.dial_stream(self, action)

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        self.act()
        if (stream := self.upstreams.get(stream_id)) is not None:
            if isinstance(message, Ack):
                self.checks.acknowledged(self, stream, message)
            self.network.send_up(stream, message)

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> None:
        self.act()
        if (stream := self.downstreams.get(stream_id)) is not None:
            self.network.send_down(stream, message)

    def close_stream(self, stream_id: int) -> None:
        stream = self.upstreams.get(stream_id) or self.downstreams.get(stream_id)
        if stream is not None:
            self.network.close_stream(self, stream)
