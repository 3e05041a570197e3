"""What waits on this node: writes for their answers, in log order, and readers for more records."""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from quire.replication import Durations, Placed, Write
from quire.sm import SESSION_CODES, Applied

from ..errors import ClusterError, OutcomeUnknown


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
    """This leader's writes from append to answer: each frame once, in log order."""

    def __init__(self, durations: Durations) -> None:
        """`durations` gets the time of each frame from its append until it was applied here."""
        self._durations = durations
        self._frames: deque[tuple[Placed[Waiter], float]] = deque()
        self._committed = 0
        self._ended: str | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def placed(self, placed: Placed[Waiter]) -> None:
        """A frame was appended. This may happen after applying has ended: its writes had already been proposed."""
        self._frames.append((placed, time.monotonic()))
        if self._ended is not None:
            self.lost(0, self._ended)

    def committed(self, commit_index: int) -> None:
        """Answer the writes below `commit_index` that do not wait for results."""
        for placed, _ in self._frames:
            if placed.next_index > commit_index:
                break
            if placed.next_index > self._committed:
                for write, offset in placed.shares:
                    waiter = write.owner
                    if not waiter.applied:
                        waiter.answer(WriteReply(placed.index + offset, placed.epoch, write.count, [], []))
        self._committed = max(self._committed, commit_index)

    def applied(self, applied: Applied) -> None:
        """Answer the writes of an applied frame."""
        frames = self._frames
        while frames and frames[0][0].index < applied.index:
            frames.popleft()  # An earlier leadership's, already answered as unknown.
        if not frames or frames[0][0].index != applied.index:
            return
        placed, placed_at = frames.popleft()
        self._durations.observe(time.monotonic() - placed_at)
        _answer_applied(placed, applied)

    def lost(self, commit_index: int, reason: str) -> None:
        """This node no longer leads: writes that are not known to be committed get an unknown outcome."""
        while self._frames and self._frames[-1][0].next_index > commit_index:
            for write, _ in self._frames.pop()[0].shares:
                write.owner.fail(OutcomeUnknown(reason))

    def end(self, reason: str) -> None:
        """Applying has ended: every outcome is unknown, including those of frames appended from now on."""
        self._ended = reason
        self.lost(0, reason)

    def resume(self) -> None:
        """Applying continues with the machine of an installed snapshot."""
        self._ended = None


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

    def __init__(self) -> None:
        self.requests = 0
        self.commands = 0
        self.frames = 0
        self.payload_bytes = 0
        self.frame_durations = Durations()

    def proposed(self, write: Write[Waiter]) -> None:
        """A request was handed to the writer."""
        self.requests += 1
        self.commands += write.count

    def placed(self, placed: Placed[Waiter]) -> None:
        """A frame was appended."""
        self.frames += 1
        self.payload_bytes += sum(share.write.size for share in placed.shares)


class Visibility:
    """Wakes readers when the visible bounds grow. They share one future, so a commit costs one wake-up."""

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
