"""One node's replication, running: the core's driver on asyncio, with a thread for the disk.

It takes what happens, hands it to the core with the time, and carries out what the core asks, in order. It decides
nothing that a rule of DESIGN 5 decides.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, assert_never

from aiohttp import ClientSession

from quire.log import DiskFull, Flush, LogClosed, LogError, LogReadOnly

from .coalesce import Write
from .core import Core, CoreOptions, Identity, Members, Promise, actions, events
from .core.following import Step
from .core.messages import HeartbeatEcho, LagTold, PositionTold
from .core.state import State
from .disk import Disk, Placed, Reason
from .disk_thread import DiskThread
from .hello import Who
from .lag import MICROSECONDS, NO_LAG, Lag, Position, first_lacking, lacking_bytes, lag_of, own_lag
from .network import Network
from .streams import Positions, Shipment

MARK_SYNC_S = 1.0


class ReplicaOwner(Protocol):
    """What a replica tells the node above; none of these may block."""

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied."""
        ...

    @property
    def digest(self) -> bytes:
        """The digest at applied_index."""
        ...

    def apply_to(self, index: int) -> None:
        """Every record below `index` is committed, and durable here."""
        ...

    def placed(self, placed: Placed) -> None:
        """A frame of writes was appended to this leader's file."""
        ...

    def rejected(self, write: Write, reason: Reason) -> None:
        """A write was not appended and never will be."""
        ...

    def role_moved(self, role: actions.RoleMoved) -> None:
        """The role, epoch or leader changed."""
        ...

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A linearizable read may be answered at `index`; None: not by this node."""
        ...

    def halted(self, reason: str) -> None:
        """The node must stop."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """What a replica is told at start. `urls` are HOST:PORT to dial, by node id; `genesis` is the first frame."""

    address: str
    genesis: bytes
    urls: dict[str, str]
    core: CoreOptions
    max_frame_bytes: int
    secret: bytes | None = None


def _failure_of(block: Callable[[], None]) -> OSError | None:
    """What the device said to something that blocks."""
    try:
        block()
    except OSError as error:
        return error
    return None


def wall_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1_000


class Replica:
    """Runs on one event loop; every method is called there."""

    def __init__(
        self,
        me: Identity,
        cluster_id: bytes,
        members: Members,
        disk: Disk,
        owner: ReplicaOwner,
        options: ReplicaOptions,
    ) -> None:
        state = State(
            me=me,
            members=members,
            log=disk,
            options=options.core,
            promise=disk.promises.promise,
            stored_promise=disk.promises.promise,
            commit_index=disk.log.mark_commit_index,
        )
        self.core = Core(state)
        self.positions: dict[str, Position] = {}
        self._disk = disk
        self._owner = owner
        self._options = options
        self._events: deque[events.Event] = deque()
        self._stepping = False
        self._proposed: list[Write] = []
        self._stopped = False
        self._lag_told: LagTold | None = None
        self._leader_heard_at = wall_clock()
        self._writer = DiskThread(asyncio.get_running_loop(), "quire-writer")
        self._marker = ThreadPoolExecutor(1, "quire-mark")
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        who = Who(cluster_id, me.node_id, me.disk_id, me.incarnation, options.address)
        self.network = Network(
            who,
            self._step,
            self._heard_aside,
            self._met_foreigners,
            state.next_stream_id,
            options.secret,
            options.max_frame_bytes,
        )

    # Life

    def start(self, session: ClientSession, *, nominated: bool) -> None:
        """Dial the peers, apply what is known to be committed, and begin to keep time."""
        self._step(events.Nominated(nominated))
        self.network.start(session, self._options.urls)
        self._tasks = [
            asyncio.create_task(self._keep_time(), name="ticks"),
            asyncio.create_task(self._keep_mark(), name="mark"),
        ]

    async def stop(self) -> None:
        """Stop talking and writing; the log is the owner's to close. Returns when no thread uses it any more.

        What waits to be appended is given back as not written; nothing is taken any more.
        """
        self._propose_all()
        self._stopped = True
        self._step(events.Stopped("this node is stopping"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.network.close()
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._marker.shutdown, wait=True)
        await asyncio.sleep(0)  # what the threads handed back is taken before the owner closes the log

    # What the node above asks

    def propose(self, write: Write) -> None:
        """Let a write wait for the writer. All that is proposed in one turn of the loop is one event."""
        if not self._proposed:
            self._loop.call_soon(self._propose_all)
        self._proposed.append(write)

    def _propose_all(self) -> None:
        proposed, self._proposed = tuple(self._proposed), []
        if self._has_ended:
            for write in proposed:
                self._owner.rejected(write, Reason.NOT_LEADER)
        elif proposed:
            self._step(events.Proposed(proposed))

    def ask_read(self, read_id: int) -> None:
        """Begin a linearizable read; `read_ready` follows."""
        if self._has_ended:
            self._owner.read_ready(read_id, None)
        else:
            self._step(events.ReadAsked(read_id))

    @property
    def commit_index(self) -> int:
        """Every record below it is durable on a majority, as far as this node knows."""
        return self.core.state.commit_index

    @property
    def is_matched(self) -> bool:
        """Whether this node follows a leader whose log it matches."""
        following = self.core.following
        return following is not None and following.stream is not None and following.stream.step is Step.MATCHED

    # The core

    def _step(self, event: events.Event) -> None:
        """Hand an event to the core and carry out its actions; events that these cause follow in order."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                now, clock = time.monotonic_ns() // 1_000, wall_clock()
                for action in self.core.handle(self._events.popleft(), now, clock):
                    self._carry_out(action)
        except LogError as error:
            self._events.clear()
            self._log_failed(error)
        finally:
            self._stepping = False

    def _log_failed(self, error: LogError) -> None:
        """The log cannot go on, and so cannot this node."""
        self._halt(f"{type(error).__name__}: {error}")

    def _halt(self, reason: str) -> None:
        """Give back what waits and tell the owner; nothing is done any more."""
        for action in self.core.handle(events.Stopped(reason), time.monotonic_ns() // 1_000, wall_clock()):
            self._carry_out(action)
        self._owner.halted(reason)

    @property
    def _has_ended(self) -> bool:
        return self._stopped or self.core.state.halted is not None

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case (
                actions.AppendRequests()
                | actions.AppendSystem()
                | actions.AppendFrames()
                | actions.Truncate()
                | actions.Flush()
                | actions.StorePromise()
            ):
                self._write(action)
            case actions.Apply(to_index):
                self._disk.log.set_commit_index(self.commit_index)
                self._owner.apply_to(to_index)
            case actions.RoleMoved():
                self._owner.role_moved(action)
            case actions.RejectRequest(write, reason):
                self._owner.rejected(write, Reason(reason))  # type: ignore[arg-type]
            case actions.ReadReady(read_id, index):
                self._owner.read_ready(read_id, index)
            case actions.Halt(reason):
                self._owner.halted(reason)
            case _:
                self._send(action)

    def _send(
        self,
        action: actions.Send
        | actions.DialStream
        | actions.SendOpen
        | actions.AnswerOpen
        | actions.Ship
        | actions.SendAck
        | actions.CloseStream,
    ) -> None:
        network = self.network
        match action:
            case actions.Send(node_id, message):
                network.send(node_id, message)
                if isinstance(message, HeartbeatEcho):
                    network.send(node_id, self._position())
            case actions.DialStream():
                network.dial_stream(action)
            case actions.SendOpen(stream_id, opening):
                network.send_up(stream_id, opening)
            case actions.SendAck(stream_id):
                network.send_up(stream_id, action.to_ack(self._owner.applied_index, self._owner.digest))
            case actions.AnswerOpen(stream_id, answer):
                network.send_down(stream_id, answer)
            case actions.Ship():
                self._ship(action)
            case actions.CloseStream(stream_id):
                network.close_stream(stream_id)
            case _:
                assert_never(action)

    def _ship(self, action: actions.Ship) -> None:
        raw, next_index = b"", action.from_index
        if action.max_bytes:
            raw, next_index = self._disk.log.read_frames(action.from_index, action.max_bytes, unflushed=True)
        positions = Positions(action.commit_index, action.durable_index, wall_clock())
        self.network.send_down(action.stream_id, Shipment(positions, raw, next_index))

    # The disk

    def _write(
        self,
        action: actions.AppendRequests
        | actions.AppendSystem
        | actions.AppendFrames
        | actions.Truncate
        | actions.Flush
        | actions.StorePromise,
    ) -> None:
        match action:
            case actions.AppendRequests(epoch, writes):
                self._append_writes(epoch, writes)  # type: ignore[arg-type]
            case actions.AppendSystem(epoch, value):
                self._append(0, lambda: self._disk.append_system(epoch, value))
            case actions.AppendFrames(stream_id, raw):
                self._append(stream_id, lambda: self._disk.log.append_frames(raw))
            case actions.Truncate(stream_id, index):
                self._disk.log.truncate(index)
                self._step(events.Truncated(stream_id, index))
            case actions.Flush():
                self._flush()
            case actions.StorePromise(promise):
                self._store_promise(promise)
            case _:
                assert_never(action)

    def _append(self, stream_id: int, append: Callable[[], object]) -> None:
        try:
            append()
        except DiskFull:
            self._step(events.AppendRefused(stream_id, Reason.DISK_FULL))
        except (LogReadOnly, LogClosed):
            raise
        except LogError as error:  # a peer's fault: frames that are none, or do not follow
            self._step(events.AppendRefused(stream_id, str(error)))
        else:
            self._step(events.Appended(stream_id))

    def _append_writes(self, epoch: int, writes: tuple[Write, ...]) -> None:
        appended = self._disk.append_writes(epoch, writes)
        for placed in appended.placed:
            self._owner.placed(placed)
        for write, reason in appended.rejected:
            self._owner.rejected(write, reason)
        self._step(events.Appended(0))
        if appended.disk_full:
            self._step(events.AppendRefused(0, Reason.DISK_FULL))

    def _flush(self) -> None:
        flush = self._disk.log.begin_flush()
        if flush is None:
            self._step(events.Flushed())
            return
        running: Flush = flush

        def finish() -> None:
            self._disk.log.end_flush(running)
            self._step(events.Flushed())

        def fail(error: BaseException) -> None:
            self._disk.log.end_flush(running, error if isinstance(error, OSError) else OSError(str(error)))

        self._offload(running.run, finish, fail)

    def _store_promise(self, promise: Promise) -> None:
        self._offload(
            lambda: self._disk.store_promise(promise),
            lambda: self._step(events.PromiseStored(promise)),
            lambda _: None,
        )

    def _offload(
        self, block: Callable[[], None], finish: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Run `block` in the writer's thread, then `finish` here; or `fail`, and that is final (DESIGN 4)."""

        def done(error: BaseException | None) -> None:
            try:
                if error is None:
                    finish()
                else:
                    fail(error)
                    self._step(events.DiskFailed(f"the disk failed: {type(error).__name__}: {error}"))
            except LogError as failure:
                self._log_failed(failure)

        self._writer.submit(block, done)

    # Time

    async def _keep_time(self) -> None:
        pause = self._options.core.heartbeat_us / 2_000_000
        while True:
            self._step(events.Tick())
            try:
                self._tell_asides()
            except LogError as error:
                self._log_failed(error)
            await asyncio.sleep(pause)

    async def _keep_mark(self) -> None:
        log = self._disk.log
        while True:
            await asyncio.sleep(MARK_SYNC_S)
            try:
                if (sync := log.begin_mark_sync()) is not None:
                    error = await self._loop.run_in_executor(self._marker, _failure_of, sync.run)
                    log.end_mark_sync(sync, error)
            except LogError as failure:
                self._log_failed(failure)
                return

    # Asides: lag and status, which no rule reads

    def _position(self) -> PositionTold:
        return PositionTold(self._disk.log.durable_index, self._owner.applied_index, self._owner.digest)

    def _heard_aside(self, peer: Who, message: PositionTold | LagTold) -> None:
        match message:
            case PositionTold(durable_index, applied_index, digest):
                self.positions[peer.node_id] = Position(durable_index, applied_index, digest, wall_clock())
            case LagTold():
                if peer.node_id == self.core.live_leader:
                    self._lag_told, self._leader_heard_at = message, wall_clock()
            case _:
                assert_never(message)

    def _tell_asides(self) -> None:
        for node_id in self.network.unformatted():
            self.network.show_genesis(node_id, self._options.genesis, committed=self.commit_index > 0)
        if self.core.leading is None:
            return
        log = self._disk.log
        for node_id, position in self.positions.items():
            self.network.send(
                node_id,
                LagTold(
                    log.durable_index,
                    lacking_bytes(log, position.durable_index),
                    first_lacking(log, position.durable_index),
                ),
            )

    def _met_foreigners(self, foreign: set[str]) -> None:
        """Halt where a majority of the members that this log names turn out to be of another cluster: a wrong disk."""
        members = self.core.state.members
        if members.is_majority(lambda member: member.node_id in foreign):
            reason = f"this data_dir is of another cluster than {', '.join(sorted(foreign))}; give this node its own"
            self._halt(reason)

    @property
    def knows_its_lag(self) -> bool:
        """Whether a leader that is heard has told it; one that leads has none."""
        leads = self.core.leading is not None
        return leads or (self.core.live_leader is not None and self._lag_told is not None)

    def lag(self, clock: int) -> Lag:
        """This node's own lag at `clock`; a leader has none."""
        if self.core.leading is not None:
            return NO_LAG
        told = self._lag_told or LagTold(0, 0, 0)
        records = max(0, told.durable_index - self._disk.log.durable_index)
        late = self._leader_heard_at - told.since if told.since and records else 0
        known = Lag(records, told.lag_bytes if records else 0, max(0, late) / MICROSECONDS)
        return own_lag(known, self._leader_heard_at, clock)

    def lag_of(self, position: Position, clock: int) -> Lag:
        """Another node's lag at `clock`, as this leader knows it."""
        return lag_of(self._disk.log, position.durable_index, clock)
