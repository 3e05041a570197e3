"""The writes of a leader, from the check to the answer.

    check     `Writing.check`, before the caller packs the records
    append    `Writing.propose`; the driver passes all waiting writes to its core, which appends them as one frame:
              `Pending.placed`
    ship      the frame is sent from the file to every follower, while
    flush     the leader's own fdatasync runs in its thread
    acks      followers answer once it is durable there
    commit    a majority, including this leader, has it: `Pending.committed`
    apply     frame by frame, to the machine
    reply     the write's share of the results: `Pending.applied`

It proposes to the driver and answers waiters; it neither reads nor writes the log.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple, Protocol, assert_never

from quire.replication import Placed, Reason, Write
from quire.sm import SESSION_CODES, Applied, CheckFailed, StateMachine, check_batch, is_quick
from quire.sm.machine import RefusalRow

from ..errors import (
    CheckFailedError,
    ClusterError,
    DiskFullError,
    LimitExceeded,
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    ResourcesExhaustedError,
    StateUnavailable,
    WrongIndex,
)
from .applying import Applying
from .command_times import CommandTimes, TimedFrame

OVERLOADED_RETRY_S = 1.0
TOO_MANY_WAIT = "as many writes wait for the leader's writer as may, as many bytes of them, or one has waited too long"
APPLY_BEHIND_S = 2.0
"""A leader refuses writes while a record has been known to be committed for this long and is not applied."""
CHECK_S = 0.01  # A machine that is not quick checks for this long before the loop gets a turn,
CHECKED_AT_ONCE = 64  # and this many commands at once, if it has a `check_batch`.
JSON_GROWTH = 6
"""JSON is at most 6 times as long as msgpack: a control character in a text becomes six characters."""


class WriteReply(NamedTuple):
    """A write's outcome: its first index, its epoch, and, if it waited to be applied, each record's result.

    A refused record's result is None, and `refused` holds its [position, code, text]. If `repeated`, the session
    answered some of the records with recorded replies: these executed earlier, at other indices.
    """

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    count: int  # type: ignore[assignment]
    results: list[Any]
    refused: list[list[Any]]
    size: int = 0
    """An upper bound for the msgpack bytes of both."""
    repeated: bool = False

    def surely_fits(self, limit: int) -> bool:
        """Whether all results take at most `limit` bytes, however they are encoded; False if that is not known."""
        return self.size * JSON_GROWTH <= limit


class Waiter(Protocol):
    """The owner of a write: it waits for the outcome.

    It is called once, on the loop, in log order for the writes of one leadership, and never blocks.
    """

    @property
    def applied(self) -> bool:
        """Whether to wait until the write is applied, or only until it is committed."""
        ...

    def answer(self, reply: WriteReply) -> None:
        """The write is committed, and applied if that was requested."""
        ...

    def fail(self, error: ClusterError) -> None:
        """The write failed, or its outcome is unknown: the error says which."""
        ...


class FutureWaiter:
    """The waiter of a caller that awaits one write."""

    def __init__(self, *, applied: bool) -> None:
        self.applied = applied
        self.reply: asyncio.Future[WriteReply] = asyncio.get_running_loop().create_future()

    def answer(self, reply: WriteReply) -> None:
        """Wake the caller, unless it has given up."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: ClusterError) -> None:
        """Raise the error in the caller, unless it has given up."""
        if not self.reply.done():
            self.reply.set_exception(error)


class Pending:
    """This leader's writes from append to answer: each frame once, in log order. Implements `WriteEvents`."""

    def __init__(
        self,
        counts: "WriteCounts",
        not_leader: Callable[[], ClusterError | None],
        tail_index: Callable[[], int],
        other_code: Callable[[], str],
    ) -> None:
        """`tail_index` gives the index of the next record; the other two are as in `Leadership`."""
        self._counts = counts
        self._not_leader = not_leader
        self._tail_index = tail_index
        self._other_code = other_code
        self._frames: deque[TimedFrame[Waiter]] = deque()
        self._flushes: deque[tuple[int, float]] = deque()  # Since the last commit: durable_index, and when.
        self._committed = 0
        self._ended: str | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def placed(self, placed: Placed[Waiter]) -> None:
        """A frame was appended. This may happen after applying has ended: its writes had already been proposed."""
        self._frames.append(TimedFrame(placed, time.monotonic()))
        if self._ended is not None:
            self.lost(0, self._ended)
        self._counts.placed(placed)

    def rejected(self, write: Write[Waiter], reason: Reason) -> None:
        """No part of the write was appended."""
        waiter = write.owner
        match reason:
            case Reason.OVERLOADED:
                waiter.fail(Overloaded(TOO_MANY_WAIT, OVERLOADED_RETRY_S))
            case Reason.DISK_FULL:
                waiter.fail(DiskFullError())
            case Reason.RESOURCES_EXHAUSTED:
                waiter.fail(ResourcesExhaustedError())
            case Reason.WRONG_INDEX:
                waiter.fail(WrongIndex(write.expected_index or 0, self._tail_index()))
            case Reason.NOT_LEADER:
                waiter.fail(self._not_leader() or NoLeader())
            case Reason.OTHER_CODE:
                waiter.fail(refused_for(self._other_code()))
            case _:
                assert_never(reason)

    def flushed(self, durable_index: int) -> None:
        """Every record below `durable_index` is durable here."""
        if self._frames:
            self._flushes.append((durable_index, time.monotonic()))

    def committed(self, commit_index: int) -> None:
        """Answer the writes below `commit_index` that do not wait for results."""
        frames, flushes = self._frames, self._flushes
        now = time.monotonic() if frames else 0.0
        for frame in frames:
            placed = frame.placed
            if placed.next_index > commit_index:
                break
            if placed.next_index > self._committed:
                while flushes and flushes[0][0] < placed.next_index:
                    flushes.popleft()
                frame.flushed_at, frame.committed_at = flushes[0][1] if flushes else now, now
                for write, offset in placed.shares:
                    waiter = write.owner
                    if not waiter.applied:
                        waiter.answer(WriteReply(placed.index + offset, placed.epoch, write.count, [], []))
        self._committed = max(self._committed, commit_index)

    def applied(self, applied: Applied) -> None:
        """Answer the writes of an applied frame."""
        frames = self._frames
        while frames and frames[0].placed.index < applied.index:
            frames.popleft()  # An earlier leadership's, already answered as unknown.
        if not frames or frames[0].placed.index != applied.index:
            return
        frame = frames.popleft()
        placed = frame.placed
        self._counts.times.answered(frame)
        if other_code := self._other_code():
            # It was appended before this was known. A session's retry gets the reply that the next leader computes.
            _fail_waiting(placed, OutcomeUnknown(other_code))
        else:
            _answer_applied(placed, applied)

    def lost(self, commit_index: int, reason: str) -> None:
        """This node no longer leads: writes that are not known to be committed get an unknown outcome."""
        self._flushes.clear()
        while self._frames and self._frames[-1].placed.next_index > commit_index:
            for write, _ in self._frames.pop().placed.shares:
                write.owner.fail(OutcomeUnknown(reason))

    @property
    def awaits_majority_s(self) -> float:
        """For how long the oldest records that are durable here have not been committed; 0 if there are none."""
        first = next((frame.placed for frame in self._frames if frame.placed.next_index > self._committed), None)
        flushed = (at for durable_index, at in self._flushes if first and durable_index >= first.next_index)
        return time.monotonic() - next(flushed, time.monotonic())

    def end(self, reason: str) -> None:
        """Applying has ended: every outcome is unknown, including those of frames appended from now on."""
        self._ended = reason
        self.lost(0, reason)

    def resume(self) -> None:
        """The machine answers again."""
        self._ended = None


def refused_for(other_code: str) -> StateUnavailable:
    """The refusal of a command by a leader whose results are perhaps not a majority's; see `Leadership.other_code`."""
    return StateUnavailable(f"commands are refused here until another node leads: {other_code}")


def _fail_waiting(placed: Placed[Waiter], error: ClusterError) -> None:
    """End the wait of all who wait for the results of a frame."""
    for write, _ in placed.shares:
        if write.owner.applied:
            write.owner.fail(error)


def _answer_applied(placed: Placed[Waiter], applied: Applied) -> None:
    """Give each write of a frame its share of the frame's results."""
    repeats = _repeats(applied) if applied.answered else ()
    if len(placed.shares) == 1:
        write = placed.shares[0].write
        if (waiter := write.owner).applied:
            outcome = applied.results, applied.refused, applied.size, bool(repeats)
            waiter.answer(WriteReply(placed.index, applied.epoch, write.count, *outcome))
        return
    refusals = deque(applied.refused)  # in the order of their positions, as the shares are
    for write, offset in placed.shares:
        end = offset + write.count
        refused: list[list[Any]] = []
        while refusals and refusals[0][0] < end:
            position, code, text = refusals.popleft()
            refused.append([position - offset, code, text])
        if (waiter := write.owner).applied:
            repeated = bool(repeats) and _has_between(repeats, offset, end)
            outcome = applied.results[offset:end], refused, applied.size, repeated
            waiter.answer(WriteReply(placed.index + offset, applied.epoch, write.count, *outcome))


def _repeats(applied: Applied) -> Sequence[int]:
    """The positions that a session answered with the recorded reply, ascending."""
    refused = {position for position, code, _ in applied.refused if code in SESSION_CODES}
    return [position for position in applied.answered if position not in refused]


def _has_between(positions: Sequence[int], start: int, end: int) -> bool:
    at = bisect_left(positions, start)
    return at < len(positions) and positions[at] < end


class WriteCounts:
    """Counters of this node's write path while it leads. They are plain numbers, so they cost almost nothing."""

    def __init__(self, times: CommandTimes | None = None) -> None:
        self.times = CommandTimes() if times is None else times
        self.requests = 0
        self.commands = 0
        self.frames = 0
        self.payload_bytes = 0

    def proposed(self, write: Write[Waiter]) -> None:
        """A request was handed to the writer."""
        self.requests += 1
        self.commands += write.count

    def placed(self, placed: Placed[Waiter]) -> None:
        """A frame was appended."""
        self.frames += 1
        self.payload_bytes += sum([share.write.size for share in placed.shares])


class Proposals(Protocol):
    """Takes the writes that are to be appended."""

    def propose(self, write: Write[Waiter]) -> None:
        """Queue a write; its waiter gets the outcome."""
        ...


class LeaderState(Protocol):
    """What writing must know of this node's leadership."""

    @property
    def leading_from(self) -> int | None:
        """The index of the first record of this node's leadership; None if it does not lead."""
        ...

    @property
    def other_code(self) -> str:
        """Why its results are perhaps not what a majority computes, in one sentence; empty if they are."""
        ...

    def not_leader(self) -> ClusterError | None:
        """The error if this node may not answer as the leader; None if it may."""
        ...


class Writing:
    """Begins writes on this leader. One event loop."""

    def __init__(
        self,
        checker: StateMachine,
        leadership: LeaderState,
        applying: Applying,
        proposals: Proposals,
        counts: WriteCounts,
        payload_limit: int,
    ) -> None:
        """`checker` is a machine of its own; `payload_limit` is the size of one write's packed records, in bytes."""
        self._checker = checker
        self._leadership = leadership
        self._applying = applying
        self._proposals = proposals
        self._counts = counts
        self.payload_limit = payload_limit
        self.checks = counts.times.checks
        """Takes how long each check took."""
        self.check_s = 0.0
        """How long the last `check` took."""

    async def check(self, commands: list[Any]) -> list[RefusalRow]:
        """[position, code, text] of each command that the machine refuses before anything is appended.

        The loop gets its turns in between, unless the machine is quick.

        Raises:
            CheckFailedError: its check raised an exception other than Refused.
        """
        began = turn_began = time.monotonic()
        try:
            if self.checks_quickly:
                return self.checked(commands)
            most = CHECKED_AT_ONCE if hasattr(self._checker, "check_batch") else 1
            refused: list[RefusalRow] = []
            for first in range(0, len(commands), most):
                if time.monotonic() - turn_began > CHECK_S:
                    await asyncio.sleep(0)
                    turn_began = time.monotonic()
                refused += self.checked(commands[first : first + most], first)
            return refused
        finally:
            self.check_s = time.monotonic() - began
            self.checks.append(self.check_s)

    @property
    def checks_quickly(self) -> bool:
        """Whether commands are checked in one go: the machine is quick."""
        return is_quick(self._checker)

    def checked(self, commands: list[object], first: int = 0) -> list[RefusalRow]:
        """As `check`, in one go, and the caller takes the time; `first` is the position of the first one.

        Raises StateUnavailable, too: this node's code is not a majority's, so its check does not count.
        """
        if other_code := self._leadership.other_code:
            raise refused_for(other_code)
        try:
            found = check_batch(self._checker, commands)
        except CheckFailed as error:
            where = "" if error.position is None else f" on command {first + error.position}"
            raise CheckFailedError(f"check{where}", error.reason) from error
        return [[first + position, code, text] for position, code, text in found]

    async def write(self, write: Write[FutureWaiter]) -> WriteReply:
        """Write checked records as part of one frame; return once they are committed (or applied: the waiter says).

        Raises:
            NotLeader, NoLeader, NodeStopping, StateUnavailable: this node cannot do it; nothing was written.
            Overloaded, LimitExceeded, WrongIndex, DiskFullError: nothing was written.
            OutcomeUnknown: this node lost its leadership first.
        """
        write.context = copy_context()
        self.propose(write)
        return await write.owner.reply

    def propose(self, write: Write[Waiter]) -> None:
        """Begin a write; its waiter gets the outcome.

        Raises:
            As `write`, for errors that are known at once; the waiter then gets nothing.
        """
        if (error := self._leadership.not_leader()) is not None:
            raise error
        if (refusal := self.refusal) is not None:
            raise refusal
        if write.size > self.payload_limit:
            raise LimitExceeded("the frame's payload", write.size, self.payload_limit)
        write.proposed_at = write.proposed_at or time.monotonic()
        self._proposals.propose(write)
        self._counts.proposed(write)

    @property
    def not_now(self) -> ClusterError | None:
        """Why nothing can be written now, or None: this node does not lead, or its machine is behind."""
        return self._leadership.not_leader() or self.refusal

    @property
    def refusal(self) -> ClusterError | None:
        """Why writes are refused now: the machine has stopped, runs other code, or is behind. None if it is not.

        While it still applies what was committed before it led, this is no overload: fewer writes would not help.
        """
        if (stopped := self._applying.applier.refusal) is not None:
            return StateUnavailable(f"nothing can be answered here: {stopped}")
        if other_code := self._leadership.other_code:
            return refused_for(other_code)
        if not self.is_behind:
            return None
        if self._unapplied_before_it_led:
            return StateUnavailable(self.backlog)
        return Overloaded(self.backlog, OVERLOADED_RETRY_S)

    @property
    def backlog(self) -> str:
        """A sentence about the records that wait to be applied here; empty if there are none."""
        if not (count := self._applying.unapplied):
            return ""
        if (before := self._unapplied_before_it_led) > 0:
            return f"this node is still applying {before:,} records that were committed before it led"
        waited_s = self._applying.behind_s
        return f"this node is still applying {count:,} committed records; the first has waited for {waited_s:.1f} s"

    @property
    def _unapplied_before_it_led(self) -> int:
        """How many records up to its own first one this leader has not applied; 0 if this node does not lead."""
        led_from = self._leadership.leading_from
        return 0 if led_from is None else max(0, led_from + 1 - self._applying.applied_index)

    @property
    def is_behind(self) -> bool:
        """Whether committed records have waited for so long to be applied that writes are refused."""
        return self._applying.behind_s > APPLY_BEHIND_S
