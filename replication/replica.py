"""The driver on asyncio: threads for the disk, sockets, and clocks."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, assert_never

from aiohttp import ClientSession

from quire.log import Expiry, LogError, time_since_boot, wall_clock

from .coalesce import OwnerT, Write
from .core import Core, CoreOptions, Identity, Reason, events
from .core.changing import NotLeading
from .core.members import Members
from .core.messages import ControlMessage, LagReport, PositionReport, Snapshot
from .core.state import State
from .core.status import Queues, Status
from .disk import Disk
from .driver import CheckedDriver, Done, Driver, Durations
from .lag import (
    MICROSECONDS,
    NO_LAG,
    ApplyLag,
    Lag,
    Position,
    apply_lag_of,
    first_lacking,
    lacking_bytes,
    lag_of,
    own_lag,
)
from .net.hello import UNKNOWN_CODE, PeerInfo
from .net.network import Network
from .net.trust import Trust
from .ports import PeerEvents, Ports

MARK_SYNC_S = 1.0
REPORT_US = 1_000_000
"""How often a node reports its digest to all others (rule 17). Its leader also gets it with each echo and ack."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """What a replica needs to start. `urls` are HOST:PORT to dial, by node id; `genesis` is the first frame."""

    address: str
    genesis: bytes
    urls: dict[str, str]
    core: CoreOptions
    max_frame_bytes: int
    secrets: tuple[bytes, ...] = ()  # The peer secrets: this node proves the first and accepts all.
    insecure: bool = False  # Without a secret, believe members from any address.
    code: bytes = UNKNOWN_CODE  # The fingerprint of the machine's code, for the hello.
    check_invariants: bool = False  # After each step of the core: for tests.


def watched_task(
    work: Coroutine[object, object, None], name: str, failed: Callable[[Exception], None]
) -> asyncio.Task[None]:
    """Run `work` as a task that nobody awaits; if it raises, call `failed` on the loop with the error.

    It gets a context of its own, so that its log lines name no request.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            failed(error)

    task = asyncio.create_task(work, name=name, context=contextvars.Context())
    task.add_done_callback(ended)
    return task


class DiskThread:
    """Runs blocks that wait for the device (flushes, promises) in order, off the event loop.

    An executor would do the same, but costs about 15 us more per hand-over, and so per command.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._waiting: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the thread, then `done` on the loop."""
        self._waiting.put((block, done))

    def stop(self) -> None:
        """Block until everything submitted has run. Submit nothing after this."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (submitted := self._waiting.get()) is not None:
            block, done = submitted
            error: BaseException | None = None
            began = time.monotonic_ns()
            try:
                block()
            except BaseException as raised:  # noqa: BLE001  # `done` gets it, whatever it is.
                error = raised
            self._loop.call_soon_threadsafe(done, error, (time.monotonic_ns() - began) // 1_000)


class _Threads:
    """`Device` of a process: its clocks, a thread for the writer, one for the mark."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = DiskThread(self._loop, "quire-writer")
        self._marker = DiskThread(self._loop, "quire-mark")

    def now(self) -> int:
        return time_since_boot()

    def clock(self) -> int:
        return wall_clock()

    def write(self, block: Callable[[], None], done: Done) -> None:
        self._writer.submit(block, done)

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        self._loop.call_later(delay_us / 1_000_000, then)

    def sync_mark(self, block: Callable[[], None], done: Done) -> None:
        self._marker.submit(block, done)

    async def end(self) -> None:
        """Return when no block is running and every `done` was called."""
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._marker.stop)
        await asyncio.sleep(0)


class Replica(Generic[OwnerT]):
    """One node's replication. Runs on one event loop; every method is called there."""

    def __init__(
        self,
        me: Identity,
        cluster_id: bytes,
        disk: Disk,
        ports: Ports[OwnerT],
        peers: PeerEvents,
        options: ReplicaOptions,
    ) -> None:
        state = State(
            me=me,
            log=disk,
            options=options.core,
            promise=disk.promises.promise,
            stored_promise=disk.promises.promise,
            commit_index=disk.commit_index,
        )
        self.core = Core(state)
        self.positions: dict[str, Position] = {}
        """The last positions of members, by node id, that a leader heard."""
        self._guests: dict[str, int] = {}
        """The durable_index of linked peers that are not members: they get their lag, too, but are not shown."""
        self._disk = disk
        self._ports = ports
        self._peers = peers
        self._options = options
        self._ticked_at = 0
        self._reported_at = 0
        self._stopped = False
        self._is_looking = False
        self._lag_report: LagReport | None = None
        self._lag_reported_by: str | None = None
        self._lag_reported_at = 0
        self._leader_heard_at = wall_clock()
        self._threads = _Threads()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        # Its own: log lines written while writes are appended must not name the first caller's request.
        self._context = contextvars.copy_context()
        offers, code = options.core.features, options.code
        who = PeerInfo(cluster_id, me.node_id, me.disk_id, me.incarnation, options.address, offers, code=code)
        self.network = Network(
            who,
            self._step,
            self._report_received,
            self._foreign_peers_met,
            peers,
            ports.machine,
            ports.health,
            state.next_stream_id,
            Trust(options.secrets, self._is_member, options.insecure),
            self._member_address,
            options.max_frame_bytes,
            options.core.election_timeout_us / MICROSECONDS,
        )
        driver = CheckedDriver[OwnerT] if options.check_invariants else Driver[OwnerT]
        self._driver = driver(self.core, disk, ports, self.network, self._threads)

    # Life

    def start(self, session: ClientSession, *, nominated: bool) -> None:
        """Dial the peers, apply records known to be committed, and start the clock."""
        self._step(events.Nominated(nominated))
        self.network.start(session, self._options.urls)
        self._tasks = [
            watched_task(self._keep_time(), "ticks", self._driver.faulted),
            asyncio.create_task(self._keep_mark(), name="mark"),
        ]

    async def stop(self) -> None:
        """Stop sending and writing; return when no thread uses the log any more. The owner closes the log.

        Writes that wait to be appended are rejected, as are new ones.
        """
        self._propose_all()
        self._stopped = True
        self._step(events.Stopped("this node is stopping"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.network.close()
        await self._threads.end()  # Their callbacks run before the owner closes the log.

    # Requests of the node

    def propose(self, write: Write[OwnerT]) -> None:
        """Queue a write. All writes proposed in one turn of the loop usually become one event."""
        if self._driver.propose(write):
            self._loop.call_soon(self._propose_all, context=self._context)

    def _propose_all(self) -> None:
        if self._has_ended:
            for write in self._driver.take_proposed():
                self._ports.writes.rejected(write, Reason.NOT_LEADER)
        else:
            self._driver.pass_on_proposed()

    def ask_read(self, read_id: int) -> None:
        """Begin a linearizable read; `ReadEvents.read_ready` follows."""
        if self._has_ended:
            self._ports.reads.read_ready(read_id, None)
        else:
            self._step(events.ReadRequested(read_id))

    def transfer(self, target: str | None) -> None:
        """Begin to hand over; `RoleEvents.role_changed` follows, or `transfer_ended`."""
        if self._has_ended:
            self._ports.role.transfer_ended("this node has stopped")
        else:
            self._step(events.TransferRequested(target))

    def promote(self, ask_id: int, node_id: str, address: str) -> None:
        """Begin the next change of members on the way to making a node a voter; `ChangeEvents.change_ended` follows."""
        if self._has_ended:
            self._ports.changes.change_ended(ask_id, NotLeading())
        else:
            self._step(events.PromoteRequested(ask_id, node_id, address))

    def snapshot_fetched(self, stream_id: int, snapshot: Snapshot) -> None:
        """The snapshot of `Installs.fetch_snapshot` is whole and durable."""
        self._step(events.SnapshotFetched(stream_id, snapshot))

    def fetch_failed(self, stream_id: int, reason: str) -> None:
        """The snapshot of `Installs.fetch_snapshot` could not be fetched."""
        self._step(events.FetchFailed(stream_id, reason))

    def expire(self, begin: Callable[[], Expiry | None]) -> None:
        """Remove the segments that `begin` takes out of the log, one after the other, until it returns None.

        `begin` is called when the disk is free, with other disk work in between. Files are removed in the writer's
        thread.
        """
        if not self._has_ended:
            self._driver.expire(begin)

    def nominate(self, *, nominated: bool) -> None:
        """Set whether the control plane nominates this node (rule 13)."""
        self._step(events.Nominated(nominated))

    def tick_if_frozen(self) -> None:
        """Tick the core if this process was frozen for an election timeout (rule 11)."""
        if self._threads.now() - self._ticked_at > self._options.core.election_timeout_us:
            self._tick()

    def send_control(self, node_id: str, data: bytes) -> None:
        """Send a message of the control plane to a peer; dropped if there is no link."""
        self.network.send(node_id, ControlMessage(data))

    def _step(self, event: events.Event) -> None:
        self._driver.step(event)

    @property
    def _has_ended(self) -> bool:
        return self._stopped or self.core.halted is not None

    def status(self) -> Status:
        """A copy of the protocol core's current status."""
        return self.core.status()

    @property
    def halted(self) -> str | None:
        """Why it has stopped permanently; None while it runs."""
        return self.core.halted

    @property
    def commit_index(self) -> int:
        """Every record below it is durable on a majority, as far as this node knows."""
        return self.core.commit_index

    @property
    def members(self) -> Members:
        """The members in this node's log."""
        return self.core.members

    @property
    def flush_durations(self) -> Durations:
        """How long flushes took, from their start until this loop was notified."""
        return self._driver.flush_durations

    @property
    def queues(self) -> Queues:
        """The sizes of this leader's queues; zeros on a node that does not lead."""
        leader = self.core.status().leader
        return Queues(0, 0, 0) if leader is None else leader.queues

    @property
    def disk_answers(self) -> bool:
        """False while one disk operation has taken an election timeout: such a node must not lead."""
        return self.core.disk_answers

    @property
    def is_matched(self) -> bool:
        """Whether this node follows a leader whose log it matches."""
        return self.core.status().is_matched

    # Time

    async def _keep_time(self) -> None:
        pause = self._options.core.heartbeat_us / 2_000_000
        while True:
            self._tick()
            try:
                self._send_reports()
            except LogError as error:
                self._driver.log_failed(error)
            await asyncio.sleep(pause)

    def _tick(self) -> None:
        self._ticked_at = self._threads.now()
        self._driver.tick()
        self.network.enforce_features()
        self.network.forget_guests()

    async def _keep_mark(self) -> None:
        while True:
            await asyncio.sleep(MARK_SYNC_S)
            self._driver.sync_mark()
            self._look_at_files()

    def _look_at_files(self) -> None:
        """In the mark's thread, check that the log's files are in place; if they are not, the node halts."""
        watch = self._disk.log.watch

        def judge(error: BaseException | None, _: int) -> None:
            self._is_looking = False
            try:
                if error is not None:
                    raise error
                watch.judge()
            except LogError as lost:
                self._driver.log_failed(lost)
            except Exception as fault:
                self._driver.faulted(fault)
                raise

        if not self._is_looking and not self._has_ended:
            self._is_looking = True
            self._threads.sync_mark(watch.look, judge)

    # Reports between nodes, for lag and status: no rule reads them

    def _report_received(self, peer: PeerInfo, message: PositionReport | LagReport) -> None:
        match message:
            case PositionReport(durable_index, applied_index, digest):
                if not self._is_member(peer.node_id):
                    if self.core.leads and self.network.is_linked(peer.node_id):
                        self._guests[peer.node_id] = durable_index
                    return
                if self.core.leads:
                    self.positions[peer.node_id] = Position(durable_index, applied_index, digest, wall_clock())
                self._peers.position_reported(peer.node_id, applied_index, digest)
            case LagReport():
                if peer.node_id == self.core.leader_id:
                    self._lag_report, self._leader_heard_at = message, wall_clock()
                    self._lag_reported_by, self._lag_reported_at = peer.node_id, self._threads.now()
            case _:
                assert_never(message)

    def _send_reports(self) -> None:
        for node_id in self.network.unformatted():
            self.network.show_genesis(node_id, self._options.genesis, committed=self.commit_index > 0)
        if self._threads.now() - self._reported_at >= REPORT_US:
            self._reported_at = self._threads.now()
            self.network.send_to_all(self._driver.position())
        if not self.core.leads:
            return
        log = self._disk.log
        self._guests = {node: index for node, index in self._guests.items() if self.network.is_linked(node)}
        heard = self._guests | {node_id: position.durable_index for node_id, position in self.positions.items()}
        for node_id, index in heard.items():
            report = LagReport(log.durable_index, lacking_bytes(log, index), first_lacking(log, index))
            self.network.send(node_id, report)

    def _is_member(self, node_id: str) -> bool:
        return node_id in self._options.urls or self._member_address(node_id) is not None

    def _member_address(self, node_id: str) -> str | None:
        member = self.core.members.of_node(node_id)
        return None if member is None else member.address

    def _foreign_peers_met(self, foreign: set[str]) -> None:
        """Halt if a majority of this log's members are of another cluster: this node has a wrong disk."""
        members = self.core.members
        if members.is_majority(lambda member: member.node_id in foreign):
            reason = f"this data_dir is of another cluster than {', '.join(sorted(foreign))}; give this node its own"
            self._driver.halt(reason)

    @property
    def is_lag_known(self) -> bool:
        """Whether the current leader has reported it within an election timeout; the leader itself has no lag.

        An older report, or another leader's, says nothing about a leader that was only just heard again.
        """
        if self.core.leads:
            return True
        age_us = self._threads.now() - self._lag_reported_at
        is_present = self._lag_reported_by is not None and self._lag_reported_by == self.core.leader_id
        return is_present and age_us <= self._options.core.election_timeout_us

    def lag(self, clock: int) -> Lag:
        """This node's own lag at `clock`; the leader's is 0."""
        if self.core.leads:
            return NO_LAG
        report = self._lag_report or LagReport(0, 0, 0)
        records = max(0, report.durable_index - self._disk.log.durable_index)
        late = self._leader_heard_at - report.since if report.since and records else 0
        known = Lag(records, report.lag_bytes if records else 0, max(0, late) / MICROSECONDS)
        return own_lag(known, self._leader_heard_at, clock)

    def lag_of(self, position: Position, clock: int) -> Lag:
        """Another node's lag at `clock`, as this leader knows it."""
        return lag_of(self._disk.log, position.durable_index, clock)

    def apply_lag(self, applied_index: int, clock: int) -> ApplyLag:
        """The apply lag at `clock` of this node, whose machine has applied what is below `applied_index`."""
        log = self._disk.log
        return apply_lag_of(log, applied_index, min(self.commit_index, log.durable_index), clock)

    def most_unapplied(self, applied_index: int, clock: int) -> ApplyLag:
        """How many of the records that are durable here the machine may lack at most.

        On a follower this is more than its `apply_lag`: it hears of commits only on the stream.
        """
        durable = self._disk.log.durable_index
        to_index = min(self.commit_index, durable) if self.core.leads else durable
        return apply_lag_of(self._disk.log, applied_index, to_index, clock)

    def apply_lag_of(self, position: Position, clock: int) -> ApplyLag:
        """Another node's apply lag at `clock`, as this leader knows it."""
        to_index = min(self.commit_index, position.durable_index)
        return apply_lag_of(self._disk.log, position.applied_index, to_index, clock)

    @property
    def leading_from(self) -> int | None:
        """The index of the first record of this node's leadership; None if it does not lead."""
        leader = self.core.status().leader
        return None if leader is None else leader.start_index
