"""Writes of cursors, on the leader: all that wait while one record is on its way become the next one.

Consumers commit often, and each commit would be a frame and a flush of its own. So at most one `cursors` record of this
leader is in flight; meanwhile rows wait, and the next record has them all, up to MAX_CURSOR_ROWS.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from quire.log import CONSUMERS, Kind, encode_system
from quire.replication import Write
from quire.sm import MAX_CURSOR_ROWS, Cursor, CursorOutcome, CursorRow, cursors_record

from ...errors import (
    ClusterError,
    CursorRefused,
    CursorsFull,
    CursorUnknown,
    FeatureNotInUse,
    OutcomeUnknown,
    Overloaded,
)
from ..writing import FutureWaiter, Writing
from .reads import TableReads

MAX_WAITING_ROWS = 10_000


class _Judged(NamedTuple):
    """What became of a row, in a record that was the end of the log at `end`."""

    outcome: CursorOutcome
    end: int


class _Waiting(NamedTuple):
    """A row that waits for a record, and its caller."""

    row: CursorRow
    judged: asyncio.Future[_Judged]


class CursorWrites:
    """Sets and deletes cursors on a leader. One event loop."""

    def __init__(self, reads: TableReads, writing: Writing) -> None:
        self._reads = reads
        self._writing = writing
        self._waiting: deque[_Waiting] = deque()
        self._run: asyncio.Task[None] | None = None

    async def set(self, row: CursorRow, timeout_ms: int) -> int:
        """Set or take a cursor within `timeout_ms`; return its index, which is on a majority's disks.

        Raises:
            CursorUnknown, CursorRefused, CursorsFull: it was left as it is.
            NotLeader, NoLeader, StateUnavailable, FeatureNotInUse, Overloaded: nothing was written.
            OutcomeUnknown: the write may or may not take effect.
        """
        self._refuse()
        if len(self._waiting) >= MAX_WAITING_ROWS:
            raise Overloaded(why=f"{len(self._waiting):,} commits of cursors are waiting")
        waiting = _Waiting(row, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._run is None:
            self._run = asyncio.create_task(self._write_waiting())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                judged = await waiting.judged
        except TimeoutError:
            raise OutcomeUnknown(f"no majority acknowledged the cursor within {timeout_ms} ms") from None
        return _index_of(row.name, row.index, judged)

    async def delete(self, name: str, timeout_ms: int) -> int:
        """Forget a cursor within `timeout_ms`; return the index that it had. Raises as `set`."""
        self._refuse()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                [judged] = await self._write(cursors_record(deleted=[name]))
        except TimeoutError:
            raise OutcomeUnknown(f"no majority acknowledged the deletion within {timeout_ms} ms") from None
        return _index_of(name, 0, judged)

    async def find(self, name: str) -> Cursor:
        """A cursor, linearizable. Raises CursorUnknown, and as `TableReads.read`."""
        cursor = await self._reads.read(lambda applier: applier.cursors.find(name))
        if cursor is None:
            raise CursorUnknown(name)
        return cursor

    async def page(
        self, after: str, most: int, prefix: str, turn: Callable[[], Awaitable[None]]
    ) -> tuple[list[tuple[str, Cursor]], str | None]:
        """A page of the cursors, as `Cursors.page`, linearizable. `turn` and what it raises: as `TableReads.read`."""
        return await self._reads.read(lambda applier: applier.cursors.page(after, most, prefix), turn)

    def _refuse(self) -> None:
        if (error := self._writing.not_now) is not None:
            raise error
        if CONSUMERS not in self._reads.applier.features:
            raise FeatureNotInUse(CONSUMERS)

    async def _write_waiting(self) -> None:
        """Write records until nothing waits."""
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_CURSOR_ROWS))]
                wanted = [waiting for waiting in taken if not waiting.judged.done()]  # The others gave up.
                if wanted:
                    await self._write_rows(wanted)
        finally:
            self._run = None

    async def _write_rows(self, wanted: list[_Waiting]) -> None:
        try:
            found = await self._write(cursors_record(waiting.row for waiting in wanted))
        except ClusterError as error:
            for waiting in wanted:
                if not waiting.judged.done():
                    waiting.judged.set_exception(error)
            return
        for waiting, judged in zip(wanted, found, strict=True):
            if not waiting.judged.done():
                waiting.judged.set_result(judged)

    async def _write(self, record: dict[str, object]) -> list[_Judged]:
        """Raises as `Writing.write`."""
        waiter = FutureWaiter(applied=True)
        reply = await self._writing.write(Write(encode_system(record), 1, kind=Kind.SYSTEM, owner=waiter))
        outcomes = (CursorOutcome(None, *row) if len(row) == 1 else CursorOutcome(*row) for row in reply.results[0])
        return [_Judged(outcome, reply.index) for outcome in outcomes]


def _index_of(name: str, wanted: int, judged: _Judged) -> int:
    """The cursor's index after a row that was done. Raises CursorUnknown, CursorRefused, CursorsFull."""
    code, index = judged.outcome
    match code:
        case None if index is not None:
            return index
        case "CURSOR_UNKNOWN":
            raise CursorUnknown(name)
        case "CURSORS_FULL":
            raise CursorsFull
        case _:
            raise CursorRefused(name, str(code), wanted, index, judged.end)
