"""Writes that wait for their answer, in log order."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from quire.replication import Placed, Write
from quire.sm import Applied

from .errors import ClusterError, OutcomeUnknown


class WriteReply(NamedTuple):
    """What a write came to: its first index, its epoch, and, if it was to be applied, each record's result.

    A refused record's result is None and `refused` holds its [place, code, text].
    """

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    count: int  # type: ignore[assignment]
    results: list[Any]
    refused: list[list[Any]]


@dataclass(slots=True)
class Waiter:
    """Who waits for a write: until it is committed, or until it is applied, too."""

    answer: "asyncio.Future[WriteReply]"
    applied: bool


class Pending:
    """This leader's writes from append to answer. Each frame stands here once, in log order."""

    def __init__(self) -> None:
        self._frames: deque[Placed] = deque()
        self._committed = 0

    def __len__(self) -> int:
        return len(self._frames)

    def placed(self, placed: Placed) -> None:
        """A frame was appended."""
        self._frames.append(placed)

    def committed(self, commit_index: int) -> None:
        """Answer the writes below it that ask for no results."""
        for placed in self._frames:
            if placed.next_index > commit_index:
                break
            if placed.next_index > self._committed:
                for write, offset in placed.shares:
                    waiter = _waiter(write)
                    if not waiter.applied:
                        _answer(waiter, WriteReply(placed.index + offset, placed.epoch, write.count, [], []))
        self._committed = max(self._committed, commit_index)

    def applied(self, applied: Applied) -> None:
        """Answer the writes of an applied frame."""
        frames = self._frames
        while frames and frames[0].index < applied.index:
            frames.popleft()  # an earlier leadership's, answered as unknown
        if not frames or frames[0].index != applied.index:
            return
        placed = frames.popleft()
        for write, offset in placed.shares:
            waiter = _waiter(write)
            if waiter.applied:
                _answer(waiter, _reply(applied, placed.index, offset, write.count, whole=len(placed.shares) == 1))

    def lost(self, commit_index: int, reason: str) -> None:
        """This node leads no longer: what is not known to be committed has an unknown outcome."""
        while self._frames and self._frames[-1].next_index > commit_index:
            for write, _ in self._frames.pop().shares:
                fail(write, OutcomeUnknown(reason))

    def end(self, reason: str) -> None:
        """Nothing is applied here any more: every outcome is unknown."""
        self.lost(0, reason)


def _waiter(write: Write) -> Waiter:
    waiter: Waiter = write.owner
    return waiter


def _answer(waiter: Waiter, reply: WriteReply) -> None:
    if not waiter.answer.done():  # its caller may have given up
        waiter.answer.set_result(reply)


def fail(write: Write, error: ClusterError) -> None:
    """Answer a write with an error."""
    waiter = _waiter(write)
    if not waiter.answer.done():
        waiter.answer.set_exception(error)


def _reply(applied: Applied, index: int, offset: int, count: int, *, whole: bool) -> WriteReply:
    if whole:
        return WriteReply(index, applied.epoch, count, applied.results, applied.refused)
    end = offset + count
    refused = [[place - offset, code, text] for place, code, text in applied.refused if offset <= place < end]
    return WriteReply(index + offset, applied.epoch, count, applied.results[offset:end], refused)
