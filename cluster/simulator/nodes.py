"""One simulated node: the shipped driver, core, log, applier and sessions on a simulated disk and network.

It survives its process: `disk` and `shadow` are the machine's, the rest is one life's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from quire.log import Directory, DiskFull, FrameHeader, Log, LogError, LogOptions, walk_frames
from quire.log.simulated import faulty
from quire.replication import Disk, Placed, PromiseFile, Reason, Write
from quire.replication.core import Core, CoreOptions, Identity, Members, NodeRole, State, Status, actions, events
from quire.replication.core.changing import Outcome
from quire.replication.core.invariants import Invariants
from quire.replication.core.messages import Ack, CrcMismatch, Open, OpenAnswer, PeerMessage, Snapshot
from quire.replication.driver import Driver, Durations
from quire.replication.lag import Position
from quire.replication.net.hello import PeerInfo
from quire.replication.net.wire import Shipment
from quire.sm import Applier, Boundary, Owner, Sessions, SnapshotPart, SnapshotStore, restore_newest, write_snapshot

from ..compaction.retention import Limits, Retention
from ..node.pending import Pending, Waiter
from .checks import Checks, Violation
from .disks import Clocks, Latency, SimDevice, SimDisk
from .machine import Tally
from .network import Network, Stream
from .schedule import MILLISECOND, SECOND, Schedule
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
    """Every record of members that there ever was, by its crc32c."""


@dataclass
class Reader:
    """A client that waits for a linearizable read; `answer(state, applied_index)`, or `fail()`."""

    answer: Callable[[Any, int], None]
    fail: Callable[[], None]


@dataclass(eq=False)
class Life:
    """What a crash takes."""

    log: Log
    disk: Disk
    core: Core
    driver: "WatchedDriver"
    applier: Applier
    directory: Directory
    snapshots: SnapshotStore
    taking: int = 0
    fetching: int = 0
    """The stream for which a snapshot is fetched."""
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
        """What its core knows now."""
        return self.core.status()

    def expired(self) -> None:
        """End the streams that lack what is gone."""
        self.driver.step(events.Expired())


class Proposer(Waiter, Protocol):
    """The owner of a write: a client, which also hears why a write was not appended."""

    def rejected(self, reason: Reason) -> None:
        """Nothing of the write was appended."""
        ...


class WatchedDriver(Driver[Proposer]):
    """The driver; after each step of the core the checks look at its node."""

    watch: Callable[[events.Event], None]

    def handle(self, event: events.Event) -> None:
        """One step, and a look: also where the log could not go on with what the core asked for."""
        try:
            super().handle(event)
        except LogError:
            self.watch(event)
            raise
        self.watch(event)


class Node:
    """A machine on which a node runs, crashes and starts again. Implements `Owner`, `Sockets` and `End`."""

    def __init__(self, node_id: str, form: Form, schedule: Schedule, network: Network, seed: str) -> None:
        self.node_id = node_id
        self.form = form
        self.schedule = schedule
        self.network = network
        self.random = Random(f"{seed}/{node_id}")
        self.snapshot_random = Random(f"{seed}/{node_id}/snapshots")
        self.seed = seed
        self.life = 0
        self.lived: Life | None = None
        self.clocks = Clocks(schedule, 1.0, 0)
        self.latency = Latency(50, 1_000)
        self.apply_us = 0
        self.upstreams: dict[int, Stream] = {}
        self.downstreams: dict[int, Stream] = {}
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.fuse: int | None = None
        self.trigger: str | None = None
        """The fuse begins to burn when an action of this name is about to be done."""
        self.armed_fuse = 0
        self.nominated = False
        self.disk_failing = False
        self.halt_reason = ""
        self.ended: Callable[[Node, str], None] = lambda *_: None
        self.changed: Callable[[int, Outcome], None] = lambda *_: None
        self.checks: Checks
        self.disks = 0
        self.insert_disk()

    def insert_disk(self) -> None:
        """A new, empty disk; the node is formatted on it, as whoever finds its genesis is."""
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
        """Whether its process is there."""
        return self.lived is not None

    @property
    def it(self) -> Life:
        """Its life; only while it runs."""
        if self.lived is None:
            raise AssertionError(f"{self.node_id} is down")
        return self.lived

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self.lived is not None and self.lived.core.leads

    @property
    def counts(self) -> bool:
        """Whether it is a voter, as far as it knows, or knew when it ran last."""
        if self.lived is not None:
            self._counted = self.lived.status().is_voter
        return self._counted

    def _sessions(self) -> Sessions:
        return Sessions(max_sessions=self.form.max_sessions)

    def start(self) -> None:
        """Recover, and begin. Raises what the device says; the power may go on the way, too."""
        self.life += 1
        self.halt_reason, self.backlog = "", None
        directory = self.disk.directory()
        promises = PromiseFile.open(directory, self.disk_id)
        log = self._open_log(directory)
        snapshots = SnapshotStore.open(directory, Owner(self.form.cluster_id, (Tally.name, Tally.version)))
        SnapshotPart.resume(snapshots)
        applier = restore_newest(snapshots, Tally, self._sessions)
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
        driver = WatchedDriver(core, disk, self, self, device)
        driver.watch = self._watched
        self.lived = Life(log, disk, core, driver, applier, directory, snapshots)
        self.checks.started(self)
        driver.step(events.Nominated(self.nominated))
        self._tick()
        self.schedule.later(self.random.randint(0, SECOND), self.run, life, self._sync_mark)
        self.schedule.later(EXPIRY_US, self.run, life, self._expire)
        self.network.came_up(self)

    def die(self, *, keep: faulty.Keep | None) -> None:
        """The process is gone: killed (`keep` is None: the page cache stays), or its machine lost power."""
        self.checks.died(self)
        self._counted = self.counts
        self.lived, self.fuse, self.trigger, self.backlog = None, None, None, None
        self.upstreams.clear()
        self.downstreams.clear()
        if keep is not None:
            self.disk.lose_power(keep)
        self.network.went_down(self, hears_it=keep is None)

    def stop_cleanly(self) -> None:
        """What a node does that is told to stop."""
        self.it.driver.step(events.Stopped("this node is stopping"))
        self.it.log.close()

    def run(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Let that life do something: now, or when it is resumed; not if it is over."""
        if life != self.life or self.lived is None:
            return
        if self.backlog is not None:
            self.backlog.append((call, arguments))
            return
        self.guarded(call, *arguments)

    def guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        """Do something on the way of which the node may die."""
        try:
            call(*arguments)
        except faulty.PowerLoss:
            self.ended(self, "fuse")
        if self.halt_reason and self.lived is not None:
            self.ended(self, "halted")

    def resume(self) -> None:
        """Go on after a pause: all that came meanwhile happens at once, what came on sockets before the clocks."""
        backlog, self.backlog = self.backlog or [], None
        for timers in (False, True):
            for call, arguments in backlog:
                if (call == self._tick) is timers:
                    self.run(self.life, call, *arguments)

    def act(self, what: str = "send") -> None:
        """Something that the outside can see is about to be done; a burnt fuse ends the node before it."""
        if self.trigger is not None and what.startswith(self.trigger):
            self.trigger, self.fuse = None, self.armed_fuse
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise faulty.PowerLoss("the fuse is burnt")

    def _tick(self) -> None:
        self.step(events.Tick())
        delay = self.form.tick_us + self.random.randint(0, self.form.tick_us // 5)
        self.schedule.later(delay, self.run, self.life, self._tick)

    def _sync_mark(self) -> None:
        self.it.driver.sync_mark()
        self.checks.looked(self)
        self.schedule.later(SECOND, self.run, self.life, self._sync_mark)

    def step(self, event: events.Event) -> None:
        """Hand the driver an event; a node that has halted or just died hears none."""
        if self.lived is not None and not self.halt_reason:
            self.lived.driver.step(event)

    def _watched(self, event: events.Event) -> None:
        life = self.it
        life.invariants.check(life.core)
        self.checks.stepped(self, event)

    # What clients ask

    def propose(self, write: Write[Proposer]) -> None:
        """A client's write: taken, or its owner is told."""
        role = self.it.role
        if role.role is not NodeRole.LEADER or not role.serving or self.halt_reason:
            write.owner.rejected(Reason.NOT_LEADER)
            return
        self.step(events.Proposed((write,)))

    def read(self, reader: Reader) -> None:
        """A client's linearizable read."""
        life = self.it
        life.last_read += 1
        life.readers[life.last_read] = reader
        self.step(events.ReadRequested(life.last_read))

    # Owner

    @property
    def applied_index(self) -> int:
        return self.it.applier.applied_index

    @property
    def digest(self) -> bytes:
        return self.it.applier.digest

    def apply_to(self, index: int) -> None:
        life = self.it
        self.checks.commits(self)
        life.pending.committed(index)
        life.apply_to = max(life.apply_to, index)
        if not self.apply_us:
            self._apply()
        elif not life.applying:
            life.applying = True
            self.schedule.later(self.random.randint(0, self.apply_us), self.run, self.life, self._apply)

    def _apply(self) -> None:
        life = self.it
        life.applying = False
        applier, log = life.applier, life.log
        while applier.applied_index < life.apply_to and log.failure is None:
            raw, _ = log.read_frames(applier.applied_index, APPLY_BYTES, to_index=life.apply_to)
            if not raw:
                raise Violation("what is to be applied can be read", self.node_id, applier.applied_index, life.apply_to)
            for frame in walk_frames(raw):
                applied = applier.apply(frame)
                self.checks.applied(self, frame, applied, applier.digest)
                life.pending.applied(applied)
                self._at_boundary(frame.header)
        while life.reading and life.reading[0][0] <= applier.applied_index:
            heappop(life.reading)[2].answer(applier.state(), applier.applied_index)

    def _at_boundary(self, header: FrameHeader) -> None:
        """Take a snapshot if one is due: what it holds is as of now, whatever is applied while it is written."""
        life, records = self.it, self.form.snapshot_records
        if not records or life.taking or header.index // records == header.next_index // records:
            return
        applier = life.applier
        life.taking = applier.applied_index
        boundary, content = applier.boundary, list(applier.content())
        pause = self.snapshot_random.randint(0, SNAPSHOT_US)
        self.schedule.later(pause, self.run, self.life, self._snapshot, boundary, content)

    def _snapshot(self, boundary: Boundary, content: list[bytes]) -> None:
        """What a forked child does and, a while later, its parent."""
        life = self.it
        try:
            folder = life.snapshots.begin(life.taking)
            write_snapshot(folder, life.snapshots.owner, boundary, content, chunk_bytes=CHUNK_BYTES)
        except (OSError, DiskFull):
            life.taking = 0  # What it left is in nobody's way.
            return
        self.schedule.later(self.snapshot_random.randint(0, SNAPSHOT_US), self.run, self.life, self._complete)

    def _complete(self) -> None:
        life = self.it
        index, life.taking = life.taking, 0
        try:
            manifest = life.snapshots.complete(index)
            self.checks.snapshot_taken(self, manifest)
            leader = life.status().leader
            life.snapshots.retain(install.snapshot_index for install in (leader.installs if leader else ()))
        except OSError:
            if not self.disk_failing:
                raise

    def _expire(self) -> None:
        """What a node does by itself, again and again: with the shipped floor, on this world's clock."""
        life = self.it
        if self.form.retention_bytes and life.log.failure is None and not self.halt_reason:
            limits = Limits(self.form.retention_bytes, 0, self.form.retention_follower_bytes)
            retention = Retention(life.disk, life, lambda: life.snapshots.manifests, limits, self.clocks.clock)
            before, needed = life.log.bounds.lowest_index, self.checks.needed(self)
            try:
                retention.expire()
            except LogError as error:
                life.driver.log_failed(error)
                return
            self.checks.expired(self, before, needed)
        self.schedule.later(EXPIRY_US, self.run, self.life, self._expire)

    # Installs

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        life = self.it
        life.fetching = action.stream_id
        self.network.fetch(self, action, None, self._fetched_manifest)

    def _fetched_manifest(self, action: actions.FetchSnapshot, raw: bytes | None) -> None:
        life = self.it
        if life.fetching != action.stream_id:
            return
        if raw is None:
            self.step(events.FetchFailed(action.stream_id, "the leader is gone, or its snapshot"))
            return
        try:
            life.part = SnapshotPart.begin(life.snapshots, raw)
            life.missing = life.part.missing()
        except (OSError, DiskFull) as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        self._fetch_next(action)

    def _fetch_next(self, action: actions.FetchSnapshot) -> None:
        life = self.it
        if life.missing:
            self.network.fetch(self, action, life.missing[0], self._fetched_chunk)
            return
        if life.part is None:
            raise AssertionError("a part was begun")
        try:
            life.fetched = life.part.restore(Tally, self._sessions)
        except OSError as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        boundary = life.fetched.boundary
        snapshot = Snapshot(*boundary.tail, boundary.members_index, boundary.epochs)
        self.step(events.SnapshotFetched(action.stream_id, snapshot))

    def _fetched_chunk(self, action: actions.FetchSnapshot, data: bytes | None) -> None:
        life = self.it
        if life.fetching != action.stream_id or life.part is None:
            return
        try:
            if data is None:
                raise OSError("the leader is gone, or its snapshot")
            life.part.put(life.missing[0], data)
        except (OSError, DiskFull) as error:
            self.step(events.FetchFailed(action.stream_id, str(error)))
            return
        del life.missing[0]
        self._fetch_next(action)

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        store = self.it.snapshots
        manifest = next((manifest for manifest in store.manifests if manifest.index == index), None)
        if manifest is None or self.backlog is not None:
            return None
        return manifest.encode() if number is None else store.chunk(manifest, number)

    def place_snapshot(self, index: int) -> None:
        part = self.it.part
        if part is None or part.manifest.index != index:
            raise Violation("what is installed was fetched", self.node_id, index)
        part.complete()

    def snapshot_installed(self, index: int) -> None:
        life = self.it
        applier, life.fetched, life.part = life.fetched, None, None
        if applier is None or applier.applied_index != index:
            raise Violation("what is installed was read", self.node_id, index)
        life.applier = applier
        life.apply_to = max(life.apply_to, index)
        life.snapshots.remove_all([kept for kept in life.snapshots.indices if kept < index])
        self.checks.installed(self, index)

    def placed(self, placed: Placed[Proposer]) -> None:
        self.it.pending.placed(placed)

    def rejected(self, write: Write[Proposer], reason: Reason) -> None:
        write.owner.rejected(reason)

    def role_changed(self, role: actions.RoleChanged) -> None:
        life = self.it
        was, life.role = life.role, role
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            life.pending.lost(life.core.commit_index, role.reason)

    def members_changed(self, members: Members) -> None:
        """No control plane is rebuilt here: the histories nominate."""

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        self.changed(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """Nobody waits for it here: the histories go on either way."""

    def peer_linked(self, node_id: str) -> None:
        """No control plane runs here."""

    def peer_unlinked(self, node_id: str) -> None:
        """No control plane runs here."""

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        """No control plane runs here."""

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """The checks compare the digests of all nodes."""

    def alarmed(self, text: str) -> None:
        raise Violation("nothing here should alarm an operator", self.node_id, text)

    def read_ready(self, read_id: int, index: int | None) -> None:
        life = self.it
        reader = life.readers.pop(read_id)
        if index is None:
            reader.fail()
        elif life.applier.applied_index >= index:
            reader.answer(life.applier.state(), life.applier.applied_index)
        else:
            heappush(life.reading, (index, read_id, reader))

    def halted(self, reason: str) -> None:
        self.halt_reason = self.halt_reason or reason

    def failed(self, error: Exception) -> None:
        """A fault is raised, too, and is the history's outcome; so is the loss of power, which is none."""

    def next_stream_id(self) -> int:
        return self.it.core.next_stream_id()

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
