"""Applies committed frames, from the log to the machine, in steps that keep the loop free.

A `quick` machine runs on the loop: the clock is checked between two steps of a frame, and after SLICE_S the loop gets a
turn. Any other machine has a thread of its own, which gets one frame at a time. Either way a frame may be half applied
while other things happen on the loop, so code that reads the machine or its sessions waits for a frame boundary
(`at_boundary`).

It reads the log and changes the machine, and tells only its ports (`ApplyPorts`): it knows neither replica nor HTTP.
"""

import asyncio
import heapq
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from quire.log import Frame, FrameHeader, Kind, Log, LogError, ResourcesExhausted, cut_frames
from quire.sm import Applied, Applier, ApplyFailed, Execution, Unexecuted, is_quick

from ..errors import NodeStopping
from .command_times import NO_STEP, CommandTimes, Step

T = TypeVar("T")

journal = structlog.get_logger(__name__)

APPLY_BYTES = 1 << 20
SLICE_S = 0.01
STEP_S = 0.002  # What a step should take.
STEP_COMMANDS = 4096  # At most, however quick they have been: the next ones may be slower.
RETRY_S = 0.05  # Before another attempt, if there is no descriptor or memory to read the log with.
NOTED_S = 0.05  # Commits closer together count as one, from the first.
SWITCH_INTERVAL_S = 0.0005
"""How long the loop waits for the GIL at most. It releases the GIL at each system call, several times per request."""

_Done = Callable[[Any, BaseException | None], None]
"""Gets the result of a block, or the exception that it raised. Called on the loop."""


class AppliedWrites(Protocol):
    """Answers the writes of applied frames. Called on the loop, as the next three; none may block."""

    def applied(self, applied: Applied) -> None:
        """A frame was applied."""
        ...

    def end(self, reason: str) -> None:
        """The machine answers nothing; the log continues."""
        ...

    def resume(self) -> None:
        """The machine answers again: another one was installed, or its state is proven."""
        ...


class OwnDigests(Protocol):
    """Notes this node's digests."""

    def applied(self, index: int, digest: bytes) -> None:
        """Everything below `index` is applied, and `digest` is the digest there."""
        ...


class Boundaries(Protocol):
    """Takes snapshots between two frames."""

    def at_boundary(self, header: FrameHeader) -> None:
        """The frame with this header was applied, and its writes were answered."""
        ...


class Failures(Protocol):
    """Ends the node."""

    def failed(self, error: Exception) -> None:
        """The node must stop: the log failed, or this program has a bug."""
        ...


@dataclass(frozen=True, slots=True)
class ApplyPorts:
    """What applying reports to."""

    writes: AppliedWrites
    digests: OwnDigests
    boundaries: Boundaries
    failures: Failures
    is_shared: Callable[[int], bool] = lambda _: False
    """Whether a majority of the voters has this node's digest at an index from there on."""


class Visibility:
    """Wakes who waits for something to grow: the visible bounds, or the epoch that is heard.

    They share one future, so a commit costs one wake-up.
    """

    def __init__(self) -> None:
        self._growth: asyncio.Future[None] | None = None
        self._ended = False

    def grew(self) -> None:
        """The visible bounds grew: wake all waiters."""
        if self._growth is not None:
            growth, self._growth = self._growth, None
            growth.set_result(None)

    def end(self) -> None:
        """No more records will become visible here: wake all waiters, and let none wait again."""
        self._ended = True
        self.grew()

    async def next_growth(self, timeout_s: float) -> bool:
        """Wait until the bounds grow; return False if they did not in time.

        Read the bounds and call this without awaiting in between: then no growth is missed.
        """
        if self._ended:
            return False
        if self._growth is None:
            self._growth = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._growth], timeout=timeout_s)
        return bool(done) and not self._ended


class _Ended(NamedTuple):
    """The thread has finished its part of a frame, or failed in it."""

    error: BaseException | None


class _Read(NamedTuple):
    """A caller that waits to read between two frames."""

    read: Callable[[Applier], Any]
    on_loop: bool
    answer: asyncio.Future[Any]

    def outcome(self, applier: Applier) -> tuple[Any, BaseException | None]:
        """The result of the read, or the exception that it raised."""
        if self.answer.done():  # The caller has given up.
            return None, None
        try:
            return self.read(applier), None
        except Exception as error:  # noqa: BLE001  # It is raised in the caller.
            return None, error

    def told(self, result: Any, error: BaseException | None) -> None:
        """Pass it to the caller. On the loop."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class Pace:
    """How many commands a step executes, based on how long the last ones took."""

    def __init__(self) -> None:
        self.commands = 16
        self.slowest = NO_STEP
        """Of the present frame's steps that took longer than STEP_S."""
        self.position = 0
        """How many commands of the frame were executed."""

    def step(self, execution: Execution) -> bool:
        """One step of a frame; return as `Execution.step`."""
        began, most = time.monotonic(), self.commands
        done = execution.step(most)
        took_s = time.monotonic() - began
        if took_s > STEP_S:
            self.commands = max(1, int(most * STEP_S / took_s))
            self.slowest = max(self.slowest, Step(took_s, self.position))
        elif not done and took_s < STEP_S / 2:
            self.commands = min(2 * most, STEP_COMMANDS)
        self.position += most
        return done


class MachineThread:
    """The thread of a machine that is not `quick`: runs blocks in order. Created and used on the event loop.

    The GIL lets one thread run at a time. A computing thread releases it when another one has waited for the switch
    interval, so the loop keeps running beside the slowest command written in Python (ADR 0014).
    """

    def __init__(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._loop = asyncio.get_running_loop()
        self._blocks: SimpleQueue[tuple[Callable[[], Any], _Done] | None] = SimpleQueue()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        # A daemon: a command that never ends must not keep this process from ending.
        threading.Thread(target=self._run, name="machine", daemon=True).start()

    def run(self, block: Callable[[], Any], done: _Done) -> None:
        """Run the block after all earlier ones; then call `done` on the loop."""
        self._blocks.put((block, done))

    def end(self) -> None:
        """Let the thread end after its remaining blocks."""
        self._blocks.put(None)

    def _run(self) -> None:
        while (work := self._blocks.get()) is not None:
            block, done = work
            result, error = None, None
            try:
                result = block()
            except BaseException as raised:  # noqa: BLE001  # It is handed to the loop, whatever it is.
                error = raised
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:  # The loop has ended: nobody waits.
                return
            del work, block, done, result, error  # It must not keep a frame in memory while it waits.


class Applying:
    """Applies committed frames up to the index that it was given. Implements `Machine` of `quire.replication.ports`."""

    def __init__(self, log: Log, applier: Applier, visibility: Visibility, times: CommandTimes | None = None) -> None:
        """`visibility` wakes the readers that wait for committed records. `connect` follows."""
        self.applier = applier
        self.visibility = visibility
        self._log = log
        self._ports: ApplyPorts
        self._to_index = applier.applied_index
        self._unexecuted = Unexecuted(applier.applied_index)
        self._frames: Iterator[Frame] = iter(())
        self._execution: Execution | None = None
        self._pace = Pace()
        self._times = CommandTimes() if times is None else times
        self._began = 0.0  # When the present frame did.
        self._thread: MachineThread | None = None
        self._ended: _Ended | None = None
        self._is_reading = False  # Whether the thread answers reads.
        self._has_read = False  # Whether its last work was reads: reads must not delay applying forever.
        self._is_scheduled = False
        self._is_in_slice = False
        self._is_stopped = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._reads: list[_Read] = []
        self._commits: deque[tuple[int, float]] = deque()  # Of what is not applied: an index, and when it was known.

    def connect(self, ports: ApplyPorts) -> None:
        """Report to these, first of all what the applier comes with: its digest, and its failure."""
        self._ports = ports
        ports.digests.applied(self.applied_index, self.digest)
        self.report_failure()

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied here."""
        return self.applier.applied_index

    @property
    def digest(self) -> bytes:
        """The digest at `applied_index`."""
        return self.applier.digest

    @property
    def features(self) -> frozenset[str]:
        """The features in use at `applied_index`."""
        return self.applier.features

    @property
    def machine_failed(self) -> bool:
        """Whether this node's machine answers nothing: it has stopped applying, or its state is unproven."""
        return self.applier.refusal is not None

    def report_failure(self) -> None:
        """If the machine answers nothing, refuse everything from now on; the log continues."""
        if (refusal := self.applier.refusal) is not None:
            has_failed = self.applier.failure is not None
            journal.error("the machine has failed" if has_failed else "the state is unproven", reason=str(refusal))
            self._ports.writes.end(str(refusal))

    def prove(self) -> None:
        """Another digest is known, here or of another node: if the state is proven by it, answer from now on."""
        applier = self.applier
        if (unproven := applier.unproven) is None or applier.failure is not None:
            return
        if applier.applied_index >= unproven.index and self._ports.is_shared(unproven.index):
            applier.unproven = None
            journal.info("the state is proven", index=applier.applied_index)
            self._ports.writes.resume()

    def apply_to(self, index: int) -> None:
        """Apply every record below `index`; one time slice of that at once."""
        if index > self._to_index:
            self._to_index, now = index, time.monotonic()
            if self._commits and now - self._commits[-1][1] < NOTED_S:
                self._commits[-1] = index, self._commits[-1][1]
            else:
                self._commits.append((index, now))
        self._go_on()
        self.visibility.grew()

    def continue_from(self, applier: Applier) -> None:
        """Replace the machine with that of an installed snapshot; the old one's work no longer counts."""
        self.applier = applier
        self._to_index = max(self._to_index, applier.applied_index)
        self._unexecuted = Unexecuted(applier.applied_index)
        self._frames, self._execution, self._ended, self._is_reading = iter(()), None, None, False
        self._pace = Pace()
        self._forget_commits(applier.applied_index)
        if self._thread is not None:  # It may stay busy with the old machine forever.
            self._thread.end()
            self._thread = None
        self._ports.writes.resume()
        self.report_failure()
        self._go_on()  # It wakes who waits for what the snapshot holds, too.

    def stop(self) -> None:
        """Stop applying: the log is about to be closed."""
        self._is_stopped = True
        self._end_reads()
        if self._thread is not None:
            self._thread.end()

    @property
    def behind_s(self) -> float:
        """For how long the oldest unapplied record has been known to be committed."""
        return time.monotonic() - self._commits[0][1] if self._commits else 0.0

    @property
    def executing_s(self) -> float:
        """For how long the machine has executed the present frame; 0 between two."""
        return 0.0 if self._execution is None else time.monotonic() - self._began

    @property
    def unapplied(self) -> int:
        """How many records are known to be committed but are not applied."""
        return max(0, self._to_index - self.applier.applied_index)

    def executed(self, index: int) -> bool | None:
        """Whether the record at an index executed, of any kind but system: false if its session answered it.

        None: this node does not know. It has not applied the record, or did so before its start or last install.
        """
        return self._unexecuted.executed(index) if index < self.applier.applied_index else None

    async def reached(self, index: int) -> None:
        """Return when every record below `index` is applied.

        Raises:
            ApplyFailed: the machine answers nothing.
        """
        if (refusal := self.applier.refusal) is not None:
            raise refusal
        if self.applier.applied_index < index:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (index, next(self._order), waiting))
            await waiting

    async def at_boundary(self, read: Callable[[Applier], T], *, on_loop: bool = False) -> T:
        """The result of `read`, called between two frames; in the machine's thread, if it has one, unless `on_loop`.

        Raises:
            NodeStopping: this node has stopped reading.
            And what `read` raises.
        """
        if self._is_stopped:
            raise NodeStopping
        if self._is_idle and not self._reads and (on_loop or self._is_quick):
            return read(self.applier)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._reads.append(_Read(read, on_loop or self._is_quick, answer))
        self._go_on()
        return await answer

    @property
    def _is_quick(self) -> bool:
        return is_quick(self.applier.machine)

    @property
    def _is_idle(self) -> bool:
        """Whether the machine is between two frames, and nobody is using it."""
        return self._execution is None and not self._is_reading

    # One slice on the loop

    def _go_on(self) -> None:
        if not self._is_scheduled and not self._is_in_slice:
            self._slice()

    def _slice(self) -> None:
        self._is_scheduled, self._is_in_slice = False, True
        until = time.monotonic() + SLICE_S
        try:
            while self._has_work:
                if time.monotonic() > until:
                    self._schedule(0.0)
                    break
                self._work(until)
        except ApplyFailed:
            self._execution = None
            self.report_failure()
            if self._reads:  # They get the reason.
                self._schedule(0.0)
        except ResourcesExhausted:  # It shows as apply lag until a read succeeds.
            self._schedule(RETRY_S)
        except LogError as failure:  # A committed frame cannot be read here: this node cannot continue.
            self.stop()
            self._ports.failures.failed(failure)
        except Exception as fault:  # A later slice runs as a callback of the loop: nothing else would notice the error.
            self.stop()
            self._ports.failures.failed(fault)
            raise
        finally:
            self._is_in_slice = False
            self.prove()
            self._wake()

    def _schedule(self, delay_s: float) -> None:
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if delay_s:
            loop.call_later(delay_s, self._slice)
        else:
            loop.call_soon(self._slice)

    @property
    def _has_work(self) -> bool:
        """Whether there is work for the loop now."""
        if self._is_stopped or self._is_scheduled or self._is_reading:
            return False
        if self._execution is not None:
            return self._is_quick or self._ended is not None
        return bool(self._reads) or self._has_frame

    @property
    def _has_frame(self) -> bool:
        return self.applier.failure is None and self.applier.applied_index < self._to_index

    def _work(self, until: float) -> None:
        """Do a step of the current frame or end it; else answer reads until then; else begin the next frame."""
        execution = self._execution
        if execution is None:
            if self._reads and not (self._has_read and self._has_frame):
                self._answer_reads(until)
            else:
                self._begin()
        elif self._ended is not None:
            ended, self._ended = self._ended, None
            if ended.error is not None:
                raise ended.error
            self._finish(execution)
        elif self._pace.step(execution):
            self._finish(execution)

    def _begin(self) -> None:
        self._has_read = False
        if not self._is_quick and not self._start_thread():
            return
        frame = next(self._frames, None)
        if frame is None:
            raw, _ = self._log.read_frames(self.applier.applied_index, APPLY_BYTES, to_index=self._to_index)
            self._frames = cut_frames(raw)
            frame = next(self._frames)
        self._began = time.monotonic()
        self._pace.slowest, self._pace.position = NO_STEP, 0
        self._execution = execution = self.applier.begin(frame)
        if frame.header.kind == Kind.SYSTEM:  # The machine is not involved.
            execution.step(1)
            self._finish(execution)
        elif self._thread is not None:
            self._execute(execution, self._thread)

    def _execute(self, execution: Execution, thread: MachineThread) -> None:
        pace = self._pace

        def execute() -> None:
            while not pace.step(execution):
                if self._is_stopped or execution is not self._execution:
                    return

        def executed(_: None, error: BaseException | None) -> None:
            if execution is self._execution:
                self._ended = _Ended(error)
                self._go_on()

        thread.run(execute, executed)

    def _finish(self, execution: Execution) -> None:
        applied = execution.finish()
        self._times.executed(time.monotonic() - self._began, self._pace.slowest)
        self._execution = None
        if applied.answered:
            self._unexecuted.add(applied.index, applied.answered)
        self._forget_commits(applied.next_index)
        ports = self._ports
        ports.writes.applied(applied)
        ports.digests.applied(applied.next_index, self.applier.digest)
        ports.boundaries.at_boundary(execution.frame.header)

    def _forget_commits(self, applied_index: int) -> None:
        while self._commits and self._commits[0][0] <= applied_index:
            self._commits.popleft()

    def _start_thread(self) -> bool:
        """Whether the machine has its thread; if not, there will be another attempt."""
        if self._thread is None:
            try:
                self._thread = MachineThread()
            except RuntimeError:  # No thread can be started now. It shows as apply lag.
                self._schedule(RETRY_S)
                return False
        return True

    # Reads

    def _answer_reads(self, until: float) -> None:
        """Answer those that wait, for a slice of time: `until` on the loop. The others come after the next frame."""
        if not all(read.on_loop for read in self._reads) and not self._start_thread():
            return
        reads, self._reads = self._reads, []
        applier, slow = self.applier, [read for read in reads if not read.on_loop]
        on_loop = deque(read for read in reads if read.on_loop)
        while on_loop:
            read = on_loop.popleft()
            read.told(*read.outcome(applier))
            if on_loop and time.monotonic() > until:
                self._reads, self._has_read = list(on_loop), True
                break
        if slow and self._thread is not None:
            self._is_reading = self._has_read = True

            def read_some() -> list[tuple[Any, BaseException | None]]:
                slice_end, outcomes = time.monotonic() + SLICE_S, [slow[0].outcome(applier)]
                for read in slow[1:]:
                    if time.monotonic() > slice_end:
                        break
                    outcomes.append(read.outcome(applier))
                return outcomes

            def was_read(outcomes: list[tuple[Any, BaseException | None]], _: BaseException | None) -> None:
                for read, outcome in zip(slow, outcomes, strict=False):
                    read.told(*outcome)
                self._reads[:0] = slow[len(outcomes) :]
                if self._is_stopped:
                    self._end_reads()
                if applier is self.applier:
                    self._is_reading = False
                self._go_on()

            self._thread.run(read_some, was_read)

    def _end_reads(self) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            read.told(None, NodeStopping())

    def _wake(self) -> None:
        refusal = self.applier.refusal
        while self._waiting and (refusal or self._waiting[0][0] <= self.applier.applied_index):
            waiting = heapq.heappop(self._waiting)[2]
            if not waiting.done():
                if refusal is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(refusal)
