"""A small deterministic world: several cores with real logs on simulated disks, one clock, one network.

Everything that happens is an entry of one queue, ordered by time and then by insertion, so each run is the same. Tests
cut links, hold flushes, crash and restart nodes. Everything but clock, network and storage is the shipped code.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from quire.log import (
    FEATURES,
    Directory,
    FrameInvalid,
    Kind,
    Log,
    LogOptions,
    encode_frame,
    encode_records,
    encode_system,
    walk_frames,
)
from quire.log.simulated import faulty
from quire.replication import Member, Members, PromiseFile, Role, Write
from quire.replication.core import Core, CoreOptions, Identity, Reason, State, actions, events
from quire.replication.core.following import Following, Upstream
from quire.replication.core.invariants import Invariants
from quire.replication.core.leading import Leading
from quire.replication.core.membership.changing import Outcome, Promote, Wanted
from quire.replication.core.messages import Ack, CoreMessage, CrcMismatch, Open, OpenAnswer
from quire.replication.disk import Disk
from quire.replication.net.wire import decode_peer, decode_stream, encode
from tests.replication.disks import Snapshots, refusal_of, shippable, truncated

MILLISECOND = 1_000
MESSAGE_US = MILLISECOND
FLUSH_US = MILLISECOND // 2
TICK_US = 50 * MILLISECOND
CLUSTER_ID = bytes(range(16))
START_CLOCK = 1_700_000_000_000_000
T = TypeVar("T")
Event = events.Event

LIMIT_STEPS = 200_000
SMALL_LOG = LogOptions(segment_bytes=1 << 16, max_frame_bytes=1 << 15)


def disk_id(node_id: str) -> bytes:
    """A node's disk in this world."""
    return node_id.encode().ljust(16, b"\0")


def voters(*node_ids: str) -> Members:
    """Members that all count."""
    return Members(tuple(Member(node, disk_id(node), f"{node}:1", Role.VOTER) for node in node_ids))


def genesis_frame(members: Members) -> bytes:
    """The first frame of every log in a world."""
    value = {
        "type": "genesis",
        "cluster_id": CLUSTER_ID,
        **members.to_record(),
        "machine": ["log", 1],
        "initial": None,
        "limits": {"max_frame_bytes": 8 << 20},
    }
    payload, kind = encode_system(value), Kind.SYSTEM
    return encode_frame(index=0, epoch=0, timestamp=START_CLOCK, count=1, prev_crc32c=0, kind=kind, payload=payload)


@dataclass(eq=False)
class SimNode:
    """One node: what survives a loss of power (its storage, as far as synced), and what does not."""

    world: "World"
    node_id: str
    storage: faulty.Disk = field(default_factory=faulty.Disk)
    incarnation: int = 0
    core: Core | None = None
    disk: Disk | None = None
    hold_flush: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)
    roles: list[actions.RoleChanged] = field(default_factory=list)
    apply_to: int = 0
    halted: str | None = None
    invariants: Invariants = field(default_factory=Invariants)
    checked: bool = True  # Off where a test puts the core into a state that the core itself never reaches.
    streams: dict[int, tuple[str, int]] = field(default_factory=dict)
    truncations: list[int] = field(default_factory=list)
    shipped_bytes: int = 0
    rejected: list[tuple[Write[None], Reason]] = field(default_factory=list)
    reads: dict[int, int | None] = field(default_factory=dict)
    nominated: bool = False
    transfers_ended: list[str] = field(default_factory=list)
    snapshots: Snapshots = field(default_factory=Snapshots)
    fetches: list[actions.FetchSnapshot] = field(default_factory=list)
    installs: list[actions.Install] = field(default_factory=list)
    hold_install: bool = False
    members_changed: list[Members] = field(default_factory=list)
    removed_at: int | None = None
    changes: dict[int, Outcome] = field(default_factory=dict)
    disk_id: bytes = b""
    flushes_us: list[int] = field(default_factory=list)  # What its next tick says of its disk.
    machine_failed: bool = False
    code: bytes = b""
    """The fingerprint of its machine's code, from its next start on."""
    disk_full: bool = False  # Appends are refused; `reserve`: its own system records still find room.
    reserve: bool = True
    probes: int = 0
    refused_appends: int = 0  # Shipments that found no room.
    alarms: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory: Directory = self.storage.directory()
        self.disk_id = disk_id(self.node_id)
        self.snapshots.members[0] = self.world.members.to_record()

    def wipe(self) -> None:
        """Replace the disk of a node that is down: what comes back is not the disk that the genesis names."""
        self.storage = faulty.Disk()
        self.directory = self.storage.directory()
        name = self.disk_id.rstrip(b"\0")
        self.disk_id = (name + (b"+" if b"/" in name else b"/new")).ljust(16, b"\0")

    @property
    def log(self) -> Log:
        """Its log, while it runs."""
        return self.running.log

    @property
    def state(self) -> State:
        """Its core's shared state, while it runs."""
        return self._needed(self.core).state

    @property
    def leads(self) -> bool:
        """Whether it leads."""
        return self.core is not None and self.core.leading is not None

    @property
    def leading(self) -> Leading:
        """Its leadership."""
        return self._needed(self._needed(self.core).leading)

    @property
    def start_index(self) -> int:
        """The index of its leadership's `epoch_start`."""
        return self._needed(self.leading.start_index)

    @property
    def following(self) -> Following:
        """Whom it follows."""
        return self._needed(self._needed(self.core).following)

    @property
    def has_stream(self) -> bool:
        """Whether it has a stream to its leader, in whatever state."""
        return self.core is not None and self.core.following is not None and self.core.following.stream is not None

    @property
    def upstream(self) -> Upstream:
        """The stream that it follows."""
        return self._needed(self.following.stream)

    def _needed(self, thing: T | None) -> T:
        if thing is None:
            raise AssertionError(f"{self.node_id} is not in that state: {self.world.describe()}")
        return thing

    @property
    def running(self) -> Disk:
        """Its disk, while it runs."""
        return self._needed(self.disk)

    def start(self) -> None:
        """Open the directory and begin."""
        self.incarnation = next(self.world.incarnations)
        clock = self.world.clock
        log = Log.open(self.directory, SMALL_LOG, cluster_id=CLUSTER_ID, clock=clock, standalone=False)
        if log.tail.index == 0:
            log.append_frames(genesis_frame(self.world.members))
            log.flush()
        if "promise" in self.directory.list():
            promises = PromiseFile.open(self.directory, self.disk_id)
        else:
            promises = PromiseFile.create(self.directory, self.disk_id)
        self.disk = Disk(log, promises, snapshots=self.snapshots)
        self.core = Core(
            State(
                me=Identity(self.node_id, self.disk_id, self.incarnation),
                log=self.disk,
                options=self.world.options,
                promise=promises.promise,
                stored_promise=promises.promise,
                commit_index=log.mark_commit_index,
            )
        )
        self.invariants, self.halted, self.apply_to = Invariants(), None, 0
        self._append_results: list[events.AppendResult] = []
        self.step(events.CodeKnown(self.code, frozenset()))
        self.step(events.Nominated(self.nominated))
        self.world.later(TICK_US, self._tick, self.incarnation)
        self.world.link_all()

    def crash(self, keep: faulty.Keep = faulty.Keep.NOTHING) -> None:
        """Lose power. Of what was not synced, `keep` says what survives."""
        self.core, self.disk, self.held, self.hold_flush = None, None, [], False
        self.storage.lose_power(keep)
        self.directory = self.storage.directory()
        self.world.forget(self.node_id)

    def _tick(self, incarnation: int) -> None:
        if self.core is not None and incarnation == self.incarnation:
            flushes, used = tuple(self.flushes_us), self.world.features
            self.step(events.Measured(self.apply_to, flushes, self.machine_failed, used, self.log.reader.rot))
            self.flushes_us.clear()
            self.step(events.Tick())
            self.world.later(TICK_US, self._tick, incarnation)

    def nominate(self) -> None:
        """The control plane names this node."""
        self.nominated = True
        self.step(events.Nominated(True))

    def promote(self, node_id: str) -> int:
        """An operator asks this node to make another a voter; return the key of the outcome in `changes`."""
        return self.change(Promote(node_id, f"{node_id}:1"))

    def change(self, wanted: Wanted) -> int:
        """An operator asks this node for a change of members; return the key of the outcome in `changes`."""
        ask_id = next(self.world.asks)
        self.step(events.ChangeRequested(ask_id, wanted))
        return ask_id

    def write(self, *values: object) -> Write[None]:
        """A client's write to this node."""
        write = Write(encode_records(list(values)), len(values), owner=None)
        self.step(events.Proposed((write,)))
        return write

    def step(self, event: events.Event) -> None:
        """One step of the core, its invariants, its actions."""
        if self.core is None or self.halted:
            return
        self._carry_out_step(event, self.core.handle(event, self.world.now, self.world.clock(self.node_id)))
        while self._append_results:
            self.append_done(self._append_results.pop(0))

    def append_done(self, result: events.AppendResult) -> None:
        """A step of the core by the result of an append."""
        if self.core is not None:
            clock = self.world.clock(self.node_id)
            self._carry_out_step(result, self.core.append_done(result, self.world.now, clock))

    def _carry_out_step(self, cause: events.Event | events.AppendResult, taken: list[actions.Action]) -> None:
        self.world.watch(self, cause, taken)
        for action in taken:
            self._carry_out(action)
        if self.checked and self.core is not None:
            self.invariants.check(self.core)

    def release(self) -> None:
        """Let held flushes end."""
        self.hold_flush = False
        held, self.held = self.held, []
        for finish in held:
            finish()

    def _soon(self, delay: int, event: events.Event) -> None:
        incarnation = self.incarnation
        self.world.later(delay, lambda: self.step(event) if incarnation == self.incarnation else None)

    def _carry_out(self, action: actions.Action) -> None:
        if isinstance(action, actions.ProbeRoom):
            self.probes += 1
            self._soon(0, events.RoomProbed(not self.disk_full, not self.disk_full or self.reserve))
        elif not (self.disk_full and self._refuse(action)):
            self._carry_out_with_room(action)

    def _refuse(self, action: actions.Action) -> bool:
        """Refuse an append for want of room; return whether it was one."""
        if (refused := refusal_of(action, reserve=self.reserve)) is None:
            return False
        if isinstance(action, actions.AppendRequests):
            self.rejected += ((write, Reason.DISK_FULL) for write in action.requests)  # type: ignore[misc]
        self.refused_appends += isinstance(action, actions.AppendFrames)
        self._append_results.append(refused)
        return True

    def _carry_out_with_room(self, action: actions.Action) -> None:
        match action:
            case actions.AppendRequests(epoch, time, writes):
                self.running.append_writes(epoch, time, writes)  # type: ignore[arg-type]
                self._append_results.append(events.AppendResult())
            case actions.AppendSystem(epoch, time, value):
                index = self.running.append_system(epoch, time, value)
                self._append_results.append(events.AppendResult(is_system=True, index=index))
            case actions.AppendFrames(stream_id, raw):
                try:
                    self.running.append_frames(raw)
                except FrameInvalid as error:
                    result = events.AppendResult(stream_id, is_made=False, error=str(error))
                else:
                    result = events.AppendResult(stream_id)
                self._append_results.append(result)
            case actions.Truncate(stream_id, index):
                outcome = truncated(self.running, stream_id, index)
                if isinstance(outcome, events.Truncated):
                    self.truncations.append(index)
                self._soon(0, outcome)
            case actions.Flush():
                self._flush()
            case actions.StorePromise(promise):
                incarnation = self.incarnation

                def stored() -> None:
                    if incarnation == self.incarnation and self.disk is not None:
                        self.disk.store_promise(promise)
                        self.step(events.PromiseStored(promise))

                self.world.later(FLUSH_US, stored)
            case _:
                self._tell(action)

    def _tell(self, action: actions.Action) -> None:
        match action:
            case actions.FetchSnapshot():
                self.fetches.append(action)
            case actions.Install():
                self._install(action)
            case actions.Apply(to_index):
                self.log.mark.commit_index = self.state.commit_index
                self.apply_to = to_index
            case actions.RoleChanged():
                self.roles.append(action)
            case actions.RejectRequest(request, reason):
                self.rejected.append((request, reason))  # type: ignore[arg-type]
            case actions.TransferEnded(reason):
                self.transfers_ended.append(reason)
            case actions.MembersChanged(members):
                self.members_changed.append(members)
            case actions.ChangeEnded(ask_id, outcome):
                self.changes[ask_id] = outcome
            case actions.ReadReady(read_id, index):
                self.reads[read_id] = index
            case actions.Alarm(text):
                self.alarms.append(text)
            case actions.Halt(why) | actions.LeaveCluster(why):
                self.halted, self.removed_at = (why, None) if isinstance(why, str) else (None, why)
            case _:
                self._send(action)

    def _install(self, action: actions.Install) -> None:
        self.installs.append(action)
        if self.disk_full:
            self._soon(0, events.InstallRefused(action.stream_id, "the disk is full"))
        elif not self.hold_install:
            self.running.install(action.snapshot)
            self._soon(0, events.Installed(action.stream_id, action.snapshot.index))

    def _flush(self) -> None:
        flush = self.log.begin_flush()
        incarnation = self.incarnation

        def finish() -> None:
            if incarnation != self.incarnation or self.disk is None:
                return
            if flush is not None:
                flush.run()
                self.log.end_flush(flush)
            self.step(events.Flushed())

        if self.hold_flush:
            self.held.append(finish)
        else:
            self.world.later(FLUSH_US, finish)

    def _send(self, action: object) -> None:
        world = self.world
        match action:
            case actions.Send(node_id, message):
                world.send(self.node_id, node_id, message)
            case actions.DialStream(stream_id, leader_id):
                world.dial(self, stream_id, leader_id)
            case actions.SendOpen(stream_id, opening):
                world.stream_send(self, stream_id, world.opening(opening))
            case actions.SendAck(stream_id, durable, plain):
                world.stream_send(self, stream_id, encode(Ack(durable, plain, self.apply_to, bytes(16))))
                self.acked.append((stream_id, durable))
            case actions.SendCrcMismatch(stream_id, differs):
                world.stream_send(self, stream_id, encode(differs))
            case actions.AnswerOpen(stream_id, answer):
                world.stream_send(self, stream_id, encode(answer))
            case actions.Ship(stream_id, from_index, max_bytes, commit_index, durable_index):
                raw, next_index, pause = shippable(self.log, from_index, max_bytes)
                self.shipped_bytes += len(raw)
                epochs = [frame.header.epoch for frame in walk_frames(raw)]
                arrival = (raw, epochs[-1] if epochs else 0, commit_index, durable_index)
                if not pause:
                    world.stream_send(self, stream_id, arrival)
                self._soon(pause, events.Shipped(stream_id, next_index, len(raw)))
            case actions.CloseStream(stream_id):
                world.close_stream(self, stream_id)
            case _:
                raise AssertionError(action)


class World:
    """Nodes, time and network. `run_until` moves time until a condition holds."""

    def __init__(self, *node_ids: str, observers: Iterable[str] = (), options: CoreOptions | None = None) -> None:
        """`node_ids` are the voters that the genesis names; `observers` replicate beside them."""
        self.members = voters(*node_ids)
        self.options = options or CoreOptions()
        self.now = 0
        self.incarnations = count(1)
        self.asks = count(1)
        self._order = count()
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self.stream_cut: set[tuple[str, str]] = set()
        self.clock_ahead: dict[str, int] = {}
        self._cut: set[tuple[str, str]] = set()
        self._streams: dict[tuple[str, int], tuple[str, int]] = {}
        self._stream_ids = count(1_000)
        self._silent: set[tuple[str, int]] = set()
        self.features: frozenset[str] = frozenset()  # In use, as far as any node has applied the log.
        self.nodes = {node: SimNode(self, node) for node in (*node_ids, *observers)}
        self.watch: Callable[[SimNode, Event | events.AppendResult, list[actions.Action]], None] = lambda *_: None
        self.opening: Callable[[Open], Open] = lambda opening: opening  # What of an opening reaches the leader.
        self.delay_us: Callable[[str, str], int] = lambda source, target: MESSAGE_US

    def __getitem__(self, node_id: str) -> SimNode:
        return self.nodes[node_id]

    def clock(self, node_id: str = "") -> int:
        """A node's wall clock."""
        return START_CLOCK + self.now + self.clock_ahead.get(node_id, 0)

    def start(self, *node_ids: str) -> None:
        """Start these nodes, or all."""
        for node_id in node_ids or self.nodes:
            self.nodes[node_id].start()

    def later(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        """Do something after a delay."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), call, arguments))

    def run_until(self, holds: Callable[[], bool], *, within_s: float = 60) -> None:
        """Move time until `holds`; fail if a deadline of simulated time passes first."""
        end = self.now + int(within_s * 1_000_000)
        for _ in range(LIMIT_STEPS):
            if holds():
                return
            if not self._queue or self._queue[0][0] > end:
                break
            self.now, _, call, arguments = heapq.heappop(self._queue)
            call(*arguments)
        raise AssertionError(f"not reached by {self.now} us: {self.describe()}")

    def run_for(self, seconds: float) -> None:
        """Move time by so much."""
        end = self.now + int(seconds * 1_000_000)
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            call(*arguments)
        self.now = end

    def describe(self) -> str:
        """One entry per node, for a failing test."""
        return "; ".join(
            f"{node.node_id}: {node.halted or ''} {node.core.state.promise if node.core else 'down'} "
            f"commit {node.core.state.commit_index if node.core else '-'} "
            f"tail {node.log.tail.index if node.disk else '-'}"
            for node in self.nodes.values()
        )

    # Network

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Drop what is sent from the first to the second of each pair."""
        self._cut.update(pairs)

    def isolate(self, node_id: str) -> None:
        """Drop everything sent from or to a node."""
        self.cut(*((a, b) for a in self.nodes for b in self.nodes if a != b and node_id in (a, b)))

    def heal(self) -> None:
        """Drop nothing more; connections that a cut broke are made again."""
        self._cut.clear()
        self.link_all()

    def silence_streams(self, node_id: str) -> None:
        """A node's streams carry nothing more, in either direction, not even their end. New ones do."""
        self._silent |= {end for one in self._streams.items() for end in one if node_id in (one[0][0], one[1][0])}

    def link_all(self) -> None:
        """Tell every running node which links are up."""
        for node in self._running():
            for other in self._running():
                if node is not other and (node.node_id, other.node_id) not in self._cut:
                    node.step(events.LinkUp(other.node_id, other.disk_id, FEATURES, other.code))

    def _running(self) -> Iterable[SimNode]:
        return [node for node in self.nodes.values() if node.core is not None]

    def forget(self, node_id: str) -> None:
        """A node is down: its streams end at the other side."""
        for (owner, stream_id), (peer, _) in list(self._streams.items()):
            if node_id in (owner, peer):
                self._streams.pop((owner, stream_id))
                if owner != node_id and (owner, stream_id) not in self._silent:
                    self.later(MESSAGE_US, self.nodes[owner].step, events.StreamClosed(stream_id))
        for node in self._running():
            node.step(events.LinkDown(node_id))

    def send(self, source: str, target: str, message: CoreMessage) -> None:
        """A message on a peer link, through its bytes."""
        received = decode_peer(encode(message))
        if (source, target) not in self._cut:
            self.later(self.delay_us(source, target), self._arrive, source, target, received)

    def _arrive(self, source: str, target: str, message: CoreMessage) -> None:
        if (source, target) not in self._cut:
            came_from = self.nodes[source].disk_id
            self.nodes[target].step(events.Received(source, came_from, message))

    def dial(self, node: SimNode, stream_id: int, leader_id: str) -> None:
        """A follower dials its leader."""
        both = {(node.node_id, leader_id), (leader_id, node.node_id)}
        if both & self._cut or self.nodes[leader_id].core is None:
            self.later(MESSAGE_US, node.step, events.StreamClosed(stream_id))
            return
        peer_stream = next(self._stream_ids)
        self._streams[(node.node_id, stream_id)] = (leader_id, peer_stream)
        self._streams[(leader_id, peer_stream)] = (node.node_id, stream_id)
        self.later(MESSAGE_US, node.step, events.StreamConnected(stream_id))

    def stream_send(self, node: SimNode, stream_id: int, data: object) -> None:
        """A message on a stream, in either direction; a cut stream delivers nothing and breaks."""
        end = self._streams.get((node.node_id, stream_id))
        if end is None or (node.node_id, stream_id) in self._silent:
            return
        if {(node.node_id, end[0]), (end[0], node.node_id)} & self._cut:
            self.close_stream(node, stream_id)
            self.later(MESSAGE_US, node.step, events.StreamClosed(stream_id))
            return
        if (node.node_id, end[0]) not in self.stream_cut:
            self.later(self.delay_us(node.node_id, end[0]), self._stream_arrive, node.node_id, *end, data)

    def _stream_arrive(self, source: str, target: str, stream_id: int, data: object) -> None:
        if (target, stream_id) not in self._streams:
            return
        node = self.nodes[target]
        if isinstance(data, tuple):
            node.step(events.FramesArrived(stream_id, *data))
            return
        if isinstance(data, Open):
            node.step(events.StreamOpened(stream_id, source, self.nodes[source].disk_id, data))
            return
        if not isinstance(data, bytes):
            raise AssertionError(data)
        match decode_stream(data):
            case Ack() as ack:
                node.step(events.AckArrived(stream_id, ack))
            case CrcMismatch() as differs:
                node.step(events.CrcMismatchArrived(stream_id, differs))
            case OpenAnswer() as answer:
                node.step(events.OpenAnswered(stream_id, answer))
            case Open():
                raise AssertionError(data)

    def close_stream(self, node: SimNode, stream_id: int) -> None:
        """One side closes the stream; the other learns of it."""
        end = self._streams.pop((node.node_id, stream_id), None)
        if end is not None and (node.node_id, stream_id) not in self._silent:
            self._streams.pop(end, None)
            self.later(MESSAGE_US, self.nodes[end[0]].step, events.StreamClosed(end[1]))

    def leader(self) -> SimNode | None:
        """The node that serves, if one does."""
        serving = (n for n in self._running() if n.core and n.core.leading and n.core.leading.serving and not n.halted)
        return next(serving, None)

    def elect(self, node_id: str) -> SimNode:
        """Name a leader and wait until it serves."""
        self.nodes[node_id].nominate()
        self.run_until(lambda: self.leader() is self.nodes[node_id])
        return self.nodes[node_id]


def values(node: SimNode, to_index: int | None = None) -> list[object]:
    """The clients' values in a node's log, in order."""
    end = node.log.durable_index if to_index is None else to_index
    records = map(node.log.read, range(node.log.bounds.lowest_index, end))
    return [record.value for record in records if record.kind != Kind.SYSTEM]
