"""Carries out the core's actions: on the log and the promise file, on the sockets, and for the node.

It has no asyncio, thread or clock of its own: `Device` has them, so the same driver runs in a process (`replica`) and
in the simulator (`quire.cluster.simulator`). It makes none of the decisions in the rules (`docs/protocol.md`).

It alone appends, truncates and flushes, by `Disk`; what happens it tells the ports of the node (`ports`).
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, assert_never, cast

from quire.log import (
    Expiry,
    Flush,
    FrameCorrupt,
    LogClosed,
    LogError,
    LogReadOnly,
    NoRoom,
    ResourcesExhausted,
    Sync,
    Tail,
)

from .core import Core, Reason, actions, events
from .core.membership.changing import Wanted
from .core.messages import Ack, HeartbeatEcho, PositionReport, Promise, Snapshot
from .disk import Disk, OwnerT, Placed, Share, Write
from .durations import Durations
from .net.wire import Positions, Shipment
from .ports import Device, Links, Ports, Streams

RETRY_US, ROT_RETRY_US = 50_000, 1_000_000
"""The wait before another attempt of an operation that lacked a descriptor, memory, or room for a promise."""


def _of_device(error: BaseException) -> OSError:
    """The exception as an error of the device: after any exception, nothing is known to be durable."""
    return error if isinstance(error, OSError) else OSError(str(error))


class Driver(Generic[OwnerT]):
    """Hands events to a core and carries out its actions. One thread; events caused by an action follow in order."""

    def __init__(self, core: Core, disk: Disk, links: Links, streams: Streams, device: Device) -> None:
        """`connect` follows, before the first event."""
        self.core = core
        self.flush_durations = Durations()
        """How long flushes took, from their start until this thread was notified."""
        self._flushing_since: int | None = None
        self._disk = disk
        disk.log.segments.elsewhere = lambda block: device.write(block, lambda *_: None)
        self._ports: Ports[OwnerT]
        self._links = links
        self._streams = streams
        self._device = device
        self._stopped = False
        self._events: deque[events.Event] = deque()
        self._proposed: list[Write[OwnerT]] = []
        self._append_results: deque[events.AppendResult] = deque()
        self._stepping = False
        self._to_apply = 0  # Everything below this index, before the event ends.
        self._hands_over = False  # Whether the present event has handed a block to the writer's thread.
        self._expiry_begins = False
        self._begin_expiry: Callable[[], Expiry | None] = lambda: None
        self._reminded = False
        self._flushes_us: list[int] = []  # Since the last tick.
        # The last frames read: from an index, up to a tail.
        self._shipped: tuple[int, Tail | None, bytes] = (0, None, b"")

    def connect(self, ports: Ports[OwnerT]) -> None:
        """Report to these."""
        self._ports = ports

    def stop(self) -> None:
        """Stop permanently. Writes that wait to be appended are rejected, as are new ones."""
        self.pass_on_proposed()
        self._stopped = True
        self.step(events.Stopped("this node is stopping"))

    @property
    def has_ended(self) -> bool:
        """Whether it was stopped, or the core has halted: nothing is done any more."""
        return self._stopped or self.core.halted is not None

    @property
    def flushing_s(self) -> float:
        """For how long the present flush has run; 0 if none runs."""
        return 0.0 if self._flushing_since is None else (self._device.now() - self._flushing_since) / 1_000_000

    # Events

    def step(self, event: events.Event) -> None:
        """Pass an event to the core and carry out its actions: at once, or after the event that is being handled.

        An event can cause an earlier write to be refused. Writes proposed after that one must be refused with it, so
        they are passed to the core first.
        """
        if self._proposed and self.core.has_waiting_writes:
            self.pass_on_proposed()
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self.handle(self._events.popleft())
            if not self._reminded:
                self._remind_of_commit()
        except LogError as error:
            self.log_failed(error)
            self._refuse_what_waits()
        except Exception as fault:
            self.faulted(fault)
            self._refuse_what_waits()
            raise
        finally:
            self._stepping = False

    def propose(self, write: Write[OwnerT]) -> None:
        """Queue a write. All writes proposed in one turn of the loop usually become one event."""
        self._proposed.append(write)
        if len(self._proposed) == 1:
            self._device.remind(0, self.pass_on_proposed)

    def pass_on_proposed(self) -> None:
        """Pass the queued writes to the core, as one event; it rejects them if nothing is done any more."""
        proposed, self._proposed = tuple(self._proposed), []
        if proposed:
            self.step(events.Proposed(proposed))

    def ask_read(self, read_id: int) -> None:
        """Begin a linearizable read; `ReadEvents.read_ready` follows."""
        self.step(events.ReadRequested(read_id))

    def transfer(self, target: str | None) -> None:
        """Begin to hand over; `RoleEvents.role_changed` follows, or `transfer_ended`."""
        self.step(events.TransferRequested(target))

    def change(self, ask_id: int, wanted: Wanted) -> None:
        """Begin the next change of members on the way to what is wanted; `ChangeEvents.change_ended` follows."""
        self.step(events.ChangeRequested(ask_id, wanted))

    def tick(self) -> None:
        """Pass the core the measurements since the last tick, and the time."""
        self._hands_over = False
        with self._errors_end_node():
            self._apply()  # What waits for the end of a flush is no backlog.
        flushes_us, self._flushes_us = tuple(self._flushes_us), []
        self.step(
            events.Measured(
                self._ports.machine.applied_index,
                flushes_us,
                self._ports.machine.machine_failed,
                self._ports.machine.features,
                self._disk.log.reader.rot,
            )
        )
        self.step(events.Tick())

    def _remind_of_commit(self) -> None:
        """Remind the core soon if followers have not yet heard of a commit."""
        if (delay_us := self.core.announces_commit_after_us) is not None:
            self._reminded = True
            self._device.remind(delay_us, self._commit_waited)

    def _commit_waited(self) -> None:
        self._reminded = False
        if self.core.announces_commit_after_us is not None:
            self.step(events.ShippingDue())

    def handle(self, event: events.Event) -> None:
        """One step of the core and its actions; then, as steps of their own, the results of its appends."""
        now, clock = self._device.now(), self._device.clock()
        self._hands_over = False
        self.carry_out_step(event, self.core.handle(event, now, clock))
        while self._append_results:
            result = self._append_results.popleft()
            self.carry_out_step(result, self.core.append_done(result, now, clock))
        self._apply()
        if self._expiry_begins and self.core.halted is None:
            self._expiry_begins = False
            self._expire()

    def carry_out_step(self, cause: events.Event | events.AppendResult, step: list[actions.Action]) -> None:
        """The actions of one step of the core. Subclasses check the core after each step here."""
        for at, action in enumerate(step, 1):
            try:
                self._carry_out(action)
            except LogError:
                for left in step[at:]:  # Whoever is answered by this step waits for that.
                    if isinstance(left, actions.NodeAction):
                        self._tell_node(left)
                    elif isinstance(left, actions.AppendRequests):
                        for request in left.requests:
                            self._tell_node(actions.RejectRequest(request, Reason.NOT_LEADER))
                raise

    def log_failed(self, error: LogError) -> None:
        """The log cannot continue, so this node cannot either."""
        self._forget_results()
        self.halt(f"{type(error).__name__}: {error}")

    def halt(self, reason: str) -> None:
        """Stop permanently: reject the waiting writes, and report the reason to the owner."""
        self.handle(events.Stopped(reason))
        self._ports.health.halted(reason)

    def faulted(self, fault: Exception) -> None:
        """Stop permanently after a bug in this program, and report it to the owner.

        Unlike `halt`, it does not reject waiting writes: how far the step got is unknown, so every outcome is, too.
        """
        self._forget_results()
        waited = self.core.abandon(f"a fault of this program: {fault!r}")
        self._ports.health.failed(fault)
        if waited:
            self._in_doubt([cast("Write[OwnerT]", request) for request in waited])

    def _forget_results(self) -> None:
        self._append_results.clear()
        self._to_apply = 0

    def _refuse_what_waits(self) -> None:
        """The core has halted: it refuses what it was not asked yet."""
        while self._events:
            self.handle(self._events.popleft())

    def _in_doubt(self, writes: Sequence[Write[OwnerT]]) -> None:
        """Tell writes as appended and not committed: perhaps they are, and the halt that follows ends their wait."""
        index, shares = self._disk.log.tail.index, [Share(write, 0) for write in writes]
        self._ports.writes.placed(Placed(index, index + 1, self.core.promise.epoch, shares))

    @contextmanager
    def _errors_end_node(self) -> Generator[None]:
        """Outside of a step, the same errors end the node."""
        try:
            yield
        except LogError as error:
            self.log_failed(error)
        except Exception as fault:
            self.faulted(fault)
            raise

    def _carry_out(self, action: actions.Action) -> None:
        if isinstance(action, actions.NetworkAction):
            self._send(action)
        elif isinstance(action, actions.DiskAction):
            self._write(action)
        elif isinstance(action, actions.Apply):
            self._to_apply = action.to_index
        else:
            self._hands_over = False
            self._apply()
            self._tell_node(action)

    def _apply(self) -> None:
        """Apply what is committed: last of what an event causes, since the other nodes and the disk work meanwhile.

        A follower that has just begun a flush applies with its next event, a tick at the latest: the writer's thread
        needs the GIL to begin, and the leader waits for this flush.
        """
        if self._hands_over and not self.core.leads:
            return
        to_index, self._to_apply = self._to_apply, 0
        if to_index:
            self._disk.log.mark.commit_index = self.core.commit_index
            self._ports.writes.committed(to_index)
            self._ports.machine.apply_to(to_index)

    def _tell_node(self, action: actions.NodeAction) -> None:
        health = self._ports.health
        match action:
            case actions.FetchSnapshot():
                self._ports.installs.fetch_snapshot(action)
            case actions.RoleChanged():
                self._ports.role.role_changed(action)
            case actions.RejectRequest(write, reason):
                # The core returns what `propose` gave it.
                self._ports.writes.rejected(cast("Write[OwnerT]", write), reason)
            case actions.ReadReady(read_id, index):
                self._ports.reads.read_ready(read_id, index)
            case actions.TransferEnded(reason):
                self._ports.role.transfer_ended(reason)
            case actions.MembersChanged(members):
                self._ports.role.members_changed(members)
            case actions.ChangeEnded(ask_id, outcome):
                self._ports.changes.change_ended(ask_id, outcome)
            case actions.Alarm(text):
                health.alarmed(text)
            case actions.Halt(reason):
                health.halted(reason)
            case actions.LeaveCluster(index):
                health.removed(index)
            case _:
                assert_never(action)

    # The network

    def _send(self, action: actions.NetworkAction) -> None:
        links, streams = self._links, self._streams
        match action:
            case actions.Send(node_id, message):
                links.send(node_id, message)
                if isinstance(message, HeartbeatEcho):
                    links.send(node_id, self.position())
            case actions.DialStream():
                streams.dial_stream(action)
            case actions.SendOpen(stream_id, opening):
                streams.send_up(stream_id, opening)
            case actions.SendAck(stream_id, durable, plain):
                machine = self._ports.machine
                streams.send_up(stream_id, Ack(durable, plain, machine.applied_index, machine.digest))
            case actions.SendCrcMismatch(stream_id, differs):
                streams.send_up(stream_id, differs)
            case actions.AnswerOpen(stream_id, answer):
                streams.send_down(stream_id, answer)
            case actions.Ship():
                self._ship(action)
            case actions.CloseStream(stream_id):
                streams.close_stream(stream_id)
            case _:
                assert_never(action)

    def position(self) -> PositionReport:
        """How far this node is."""
        return PositionReport(
            self._disk.log.durable_index, self._ports.machine.applied_index, self._ports.machine.digest
        )

    def _ship(self, action: actions.Ship) -> None:
        raw, next_index = b"", action.from_index
        if action.max_bytes:
            try:
                raw, next_index = self._frames_from(action.from_index, action.max_bytes)
            except (ResourcesExhausted, FrameCorrupt) as error:
                # As if nothing had been there to ship: after the pause, the core ships again, or another leader does.
                pause = ROT_RETRY_US if isinstance(error, FrameCorrupt) else RETRY_US
                self._device.remind(pause, lambda: self.step(events.Shipped(action.stream_id, action.from_index, 0)))
                return
        positions = Positions(action.commit_index, action.durable_index, self._device.clock())
        if self._streams.send_down(action.stream_id, Shipment(positions, raw, next_index)):
            if self.core.shipped(events.Shipped(action.stream_id, next_index, len(raw))):
                self.step(events.ShippingDue())

    def _frames_from(self, index: int, max_bytes: int) -> tuple[bytes, int]:
        """The frames from a boundary on. Streams at the same index share one read."""
        tail = self._disk.log.tail
        shipped_from, shipped_to, raw = self._shipped
        if shipped_from != index or shipped_to != tail or len(raw) > max_bytes:
            raw, next_index = self._disk.log.read_frames(index, max_bytes, unflushed=True)
            if next_index != tail.index:
                return raw, next_index
            self._shipped = (index, tail, raw)
        return raw, tail.index

    # The disk

    def _write(self, action: actions.DiskAction) -> None:
        match action:
            case actions.AppendRequests(epoch, time, writes):
                self._append_writes(epoch, time, cast("tuple[Write[OwnerT], ...]", writes))
            case actions.AppendSystem(epoch, time, value):
                self._append_system(epoch, time, value)
            case actions.AppendFrames(stream_id, raw):
                self._append_frames(stream_id, raw)
            case actions.Truncate(stream_id, index):
                self._truncate(stream_id, index)
            case actions.Install(stream_id, snapshot):
                self._install(stream_id, snapshot)
            case actions.Flush():
                self._flush()
            case actions.Expire():
                self._expiry_begins = True
            case actions.ProbeRoom():
                self.step(self._disk.probe_room())
            case actions.StorePromise(promise):
                self._store_promise(promise)
            case _:
                assert_never(action)

    def _append_system(self, epoch: int, time: int, value: Mapping[str, object]) -> None:
        try:
            index = self._disk.append_system(epoch, time, value)
        except NoRoom:
            result = events.AppendResult(is_made=False, refused=Reason.DISK_FULL, is_system=True)
        else:
            result = events.AppendResult(is_system=True, index=index)
        self._append_results.append(result)

    def _append_frames(self, stream_id: int, raw: bytes) -> None:
        try:
            self._disk.append_frames(raw)
        except (LogReadOnly, LogClosed):
            raise
        except NoRoom as error:
            result = events.AppendResult(stream_id, is_made=False, refused=Reason.DISK_FULL, error=str(error))
        except LogError as error:  # A peer's fault: bytes that are no frames, or do not follow.
            result = events.AppendResult(stream_id, is_made=False, error=str(error))
        else:
            result = events.AppendResult(stream_id)
        self._append_results.append(result)

    def _append_writes(self, epoch: int, time: int, writes: tuple[Write[OwnerT], ...]) -> None:
        try:
            appended = self._disk.append_writes(epoch, time, writes)
        except Exception:
            self._in_doubt(writes)
            raise
        for placed in appended.placed:
            self._ports.writes.placed(placed)
        for write, reason in appended.rejected:
            self._ports.writes.rejected(write, reason)
        refused = Reason.DISK_FULL if appended.disk_full else None
        self._append_results.append(events.AppendResult(refused=refused))

    def _flush(self) -> None:
        try:
            flush = self._disk.log.begin_flush()
        except NoRoom:  # The frames wait in memory until a probe finds room.
            flush = None
            self.step(events.RoomProbed(has_room=False, has_reserve=False))
        if flush is None:
            self.step(events.Flushed())
            return
        running: Flush = flush
        self._flushing_since = began = self._device.now()

        def finish() -> None:
            self._disk.log.end_flush(running)
            self.flush_durations.observe((self._device.now() - began) / 1_000_000)
            self._flushing_since = None
            self._ports.writes.flushed(self._disk.log.durable_index)
            self.step(events.Flushed())

        def fail(error: BaseException) -> None:
            self._disk.log.end_flush(running, _of_device(error))

        self._offload(running.run, finish, fail)

    def expire(self, begin: Callable[[], Expiry | None]) -> None:
        """Remove the segments that `begin` takes out of the log, one after the other, until it returns None.

        `begin` is called when the disk is free, with other disk work in between. Files are removed in the writer's
        thread.
        """
        if not self.has_ended:
            self._begin_expiry = begin
            self.step(events.ExpiryDue())

    def _expire(self) -> None:
        """Begin to remove a segment, between two steps: after the first, the core must know where its log begins."""
        expiry = self._begin_expiry()
        if expiry is None:
            self.handle(events.ExpiryEnded(is_over=True))
            return
        self.handle(events.Expired())
        self._remove(expiry, lambda: self.step(events.ExpiryEnded(is_over=False)))

    def _remove(self, expiry: Expiry, then: Callable[[], None]) -> None:
        """Remove a segment's files in the writer's thread, then call `then`."""

        def finish() -> None:
            self._disk.log.expiry.end(expiry)
            then()

        def fail(error: BaseException) -> None:
            self._disk.log.expiry.end(expiry, _of_device(error))

        def remove() -> None:
            self._offload(expiry.run, finish, fail, remove, measured=False)

        remove()

    def _truncate(self, stream_id: int, index: int) -> None:
        """Walk the remaining segment, in the writer's thread if that takes long; then truncate on this thread.

        Until then the log is unchanged and the disk counts as busy: nothing else changes it, and no stream is dialled.
        """
        try:
            walk = self._disk.log.begin_truncation(index)
        except ResourcesExhausted as error:
            self.step(events.TruncateRefused(stream_id, str(error)))
            return

        def finish() -> None:
            if self.core.halted is not None:
                return
            try:
                self._disk.truncate(index, walk)
            except NoRoom as error:
                self.step(events.TruncateRefused(stream_id, str(error)))
            else:
                self.step(events.Truncated(stream_id, index))

        if walk is None:
            finish()
        else:
            self._offload(walk.run, finish, lambda _: None, measured=False)

    def _store_promise(self, promise: Promise) -> None:
        self._offload(
            lambda: self._disk.store_promise(promise),
            lambda: self.step(events.PromiseStored(promise)),
            lambda _: None,
            lambda: self._store_promise(promise),
        )

    def _install(self, stream_id: int, snapshot: Snapshot) -> None:
        """Rule 16: rename, then reset the log. After a crash between the two, the next start resets it.

        The snapshot contains everything that the machine has applied, so segments below it are removed first, one by
        one in the writer's thread: the reset then has few left to remove on this thread.
        """

        def place() -> None:
            self._offload(lambda: self._ports.installs.place_snapshot(snapshot.index), shorten, lambda _: None, place)

        def shorten() -> None:
            if self.core.halted is not None:
                return
            expiry = self._disk.begin_expiry(max_bytes=0, floor=self._ports.machine.applied_index)
            if expiry is None:
                finish()
                return
            self.step(events.Expired())
            self._remove(expiry, shorten)

        def try_again() -> None:
            with self._errors_end_node():
                finish()

        def finish() -> None:
            try:
                self._disk.install(snapshot)
            except ResourcesExhausted:  # The log is unchanged. The disk counts as busy meanwhile.
                self._device.remind(RETRY_US, try_again)
                return
            except NoRoom as error:
                self.step(events.InstallRefused(stream_id, str(error)))
                return
            self._ports.installs.snapshot_installed(snapshot.index)
            self.step(events.Installed(stream_id, snapshot.index))

        place()

    def _offload(
        self,
        block: Callable[[], None],
        finish: Callable[[], None],
        fail: Callable[[BaseException], None],
        again: Callable[[], None] | None = None,
        *,
        measured: bool = True,
    ) -> None:
        """Run `block` in the writer's thread, then `finish` here. If it raised, call `fail`: the node halts.

        A failed flush is never retried (`log/DESIGN.md`): the kernel may have dropped the unwritten pages. `again` is
        called after a pause if the block lacked a descriptor or room, and has promised nothing or can continue where it
        was.
        `measured`: its duration is a measure of the disk's speed.
        """

        def done(error: BaseException | None, took_us: int) -> None:
            if measured:
                self._flushes_us.append(took_us)
            with self._errors_end_node():
                if error is None:
                    finish()
                elif again is not None and isinstance(error, NoRoom):
                    if not isinstance(error, ResourcesExhausted):
                        self.step(events.RoomProbed(has_room=False, has_reserve=False))
                    self._device.remind(RETRY_US, again)  # The disk counts as busy meanwhile.
                else:
                    fail(error)
                    self.step(events.DiskFailed(f"the disk failed: {type(error).__name__}: {error}"))

        self._hands_over = True
        self._device.write(block, done)

    # The mark

    def sync_mark(self) -> None:
        """Begin a sync of the mark if it moved and no sync is running. Call it once a second."""
        log = self._disk.log
        sync: Sync | None = None
        with self._errors_end_node():
            sync = log.mark_sync.begin()
        if sync is None:
            return
        running: Sync = sync
        block = self._disk.marked(running)

        def done(error: BaseException | None, _: int) -> None:
            with self._errors_end_node():
                log.mark_sync.end(running, None if error is None else _of_device(error))

        self._device.sync_mark(block, done)
