"""Writes of cursors, on the leader: all that wait while one record is on its way become the next one.

Consumers commit often, and each commit would be a frame and a flush of its own. So at most one `cursors` record of this
leader is in flight; meanwhile changes wait, and the next record has them all, up to MAX_CURSOR_ROWS, but one for each
cursor: the first that may be made. Those before it that may not are refused at once, so they delay nobody's. So each is
judged by the state that it will meet, apart from what the other cursors in its record add:

- A cursor belongs to the name of the token that created it. A caller of another name, who is no admin, neither moves
  nor deletes it. It has no owner if it was created without tokens, or before the feature `cursor_owners`, or by an
  admin who does not consume and names none: that is for a consumer of another name. Then whoever may write may move
  it. Only an admin changes its owner.
- One name owns at most MAX_OWNED_CURSORS before more are refused to it, and all cursors together hold at most
  `cursors_hold_bytes` of the log. What is above a limit already stays, and may be lowered; it is only not raised.

A newly elected leader first applies what was committed before it led. This is not checked at apply: records of an older
version, or of a leader with another limit, must have the same result on every node.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple

import structlog

from quire.log import CONSUMERS, CURSOR_OWNERS, Kind, encode_system
from quire.replication import Write
from quire.sm import (
    MAX_CURSOR_ROWS,
    MAX_OWNED_CURSORS,
    Applier,
    Cursor,
    CursorOutcome,
    CursorRow,
    Cursors,
    cursors_record,
)

from ...access.roles import Role
from ...errors import (
    ClusterError,
    CursorOwned,
    CursorRefused,
    CursorsFull,
    CursorUnknown,
    FeatureNotInUse,
    Forbidden,
    HoldsFull,
    OutcomeUnknown,
    Overloaded,
)
from ..writing import FutureWaiter, Writing
from .reads import TableReads

journal = structlog.get_logger(__name__)

MAX_WAITING_ROWS = 10_000
MAX_OWN_WAITING_ROWS = MAX_WAITING_ROWS // 2
"""Of one token's name; callers without a token share them."""
ROW_BYTES = 512
"""More than a row of the longest name and owner takes in a record, and more than all of a record but its rows."""
MOST_SHOWN = (1 << 64) - 1


class Mover(NamedTuple):
    """Who changes a cursor: a token's name, None without tokens; an admin may change every one."""

    name: str | None
    is_admin: bool

    def may_move(self, owner: str) -> bool:
        """Whether it may move and delete a cursor of this owner, "" without one."""
        return self.is_admin or owner in ("", self.name)


class _Judged(NamedTuple):
    """What became of a change, in a record that was the end of the log at `end`."""

    outcome: CursorOutcome
    end: int


class _Waiting(NamedTuple):
    """A change that waits for a record, a row or the name of a cursor to delete; and its caller."""

    change: CursorRow | str
    mover: Mover
    judged: asyncio.Future[_Judged]

    @property
    def name(self) -> str:
        """The cursor's."""
        return self.change if isinstance(self.change, str) else self.change.name


class _Admission:
    """Which changes a leader puts into its next record: those that their callers may make, and that fit the limits."""

    def __init__(self, cursors: Cursors, hold_limit: int, has_owners: bool) -> None:
        """`cursors` are those that the record will meet."""
        self._cursors = cursors
        self._has_owners = has_owners
        self._hold_limit = hold_limit
        self._hold_bytes = cursors.hold_bytes
        self._created: Counter[str] = Counter()

    def admit(self, change: CursorRow | str, mover: Mover) -> CursorRow | str:
        """The change as it is to be appended: a new cursor gets its owner.

        Raises:
            CursorOwned, Forbidden, CursorsFull, HoldsFull: it is not to be.
        """
        name = change if isinstance(change, str) else change.name
        cursor = self._cursors.find(name)
        if cursor is not None and not mover.may_move(cursor.owner):
            raise CursorOwned(name, cursor.owner)
        if isinstance(change, str):
            return change
        if cursor is None:
            if change.expected is not None or (change.token and not change.take):
                return change  # It creates none: it must be there.
            return self._created_by(mover, self._held(change, 0))
        if change.owner is not None and change.owner != cursor.owner and not mover.is_admin:
            raise Forbidden(Role.WRITE.word, Role.ADMIN.word)
        return self._held(change, cursor.hold_bytes)

    def _created_by(self, mover: Mover, row: CursorRow) -> CursorRow:
        if row.owner is not None and row.owner != mover.name and not mover.is_admin:
            raise Forbidden(Role.WRITE.word, Role.ADMIN.word)
        if mover.name is None or not self._has_owners or (mover.is_admin and not row.take):
            return row
        owned = self._cursors.owned_by(mover.name) + self._created[mover.name]
        if owned >= MAX_OWNED_CURSORS and not mover.is_admin:
            raise CursorsFull(f"{mover.name!r} has {owned:,} cursors, as many as one token's name may have")
        self._created[mover.name] += 1
        return row._replace(owner=mover.name) if row.owner is None else row

    def _held(self, row: CursorRow, former: int) -> CursorRow:
        raised = 0 if row.hold_bytes is None else row.hold_bytes - former
        if raised > 0:
            if self._hold_bytes + raised > self._hold_limit:
                raise HoldsFull(row.name, raised, min(self._hold_bytes, MOST_SHOWN), self._hold_limit)
            self._hold_bytes += raised
        return row


class CursorWrites:
    """Sets and deletes cursors on a leader. One event loop."""

    def __init__(self, reads: TableReads, writing: Writing, hold_limit: int) -> None:
        self._reads = reads
        self._writing = writing
        self.hold_limit = hold_limit
        """How many bytes of the log all cursors together may hold."""
        self._waiting: dict[str, OrderedDict[_Waiting, None]] = {}
        """By the cursor's name, the oldest first."""
        self._count = 0
        """Of changes whose callers wait for the answer, and in `_counts` for each token's name."""
        self._counts: Counter[str | None] = Counter()
        self._most_rows = min(MAX_CURSOR_ROWS, writing.payload_limit // ROW_BYTES - 1)
        self._run: asyncio.Task[None] | None = None

    async def set(self, row: CursorRow, mover: Mover, timeout_ms: int) -> int:
        """Set or take a cursor within `timeout_ms`; return its index, which is on a majority's disks.

        Raises:
            CursorUnknown, CursorRefused, CursorOwned, Forbidden, CursorsFull, HoldsFull: it was left as it is.
            NotLeader, NoLeader, StateUnavailable, FeatureNotInUse, Overloaded: nothing was written.
            OutcomeUnknown: the write may or may not take effect.
        """
        self._refuse(CONSUMERS if row.owner is None else CURSOR_OWNERS)
        return _index_of(row.name, row.index, await self._change(row, mover, timeout_ms))

    async def delete(self, name: str, mover: Mover, timeout_ms: int) -> int:
        """Forget a cursor within `timeout_ms`; return the index that it had. Raises as `set`."""
        self._refuse(CONSUMERS)
        return _index_of(name, 0, await self._change(name, mover, timeout_ms))

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

    @property
    def hold_bytes(self) -> int:
        """How many bytes of the log all cursors together may hold now, at most MOST_SHOWN, which fits every answer."""
        return min(self._reads.applier.cursors.hold_bytes, MOST_SHOWN)

    def alarms(self) -> list[str]:
        """An alarm if the cursors may hold more than the limit: they got that before it was set."""
        if self.hold_bytes <= self.hold_limit:
            return []
        held = f"cursors may hold {self.hold_bytes:,} bytes of the log together"
        return [f"{held}, above cursors_hold_bytes, {self.hold_limit:,}: `quire cursor list` shows each"]

    def _refuse(self, feature: str) -> None:
        if (error := self._writing.not_now) is not None:
            raise error
        if feature not in self._reads.applier.features:
            raise FeatureNotInUse(feature)

    async def _change(self, change: CursorRow | str, mover: Mover, timeout_ms: int) -> _Judged:
        own = self._counts[mover.name]
        if self._count >= MAX_WAITING_ROWS or own >= MAX_OWN_WAITING_ROWS:
            raise Overloaded(why=f"{self._count:,} changes of cursors are waiting, {own:,} of this caller's name")
        waiting = _Waiting(change, mover, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(waiting.name, OrderedDict())[waiting] = None
        self._count += 1
        self._counts[mover.name] += 1
        if self._run is None:
            self._run = asyncio.create_task(self._write_waiting())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiting.judged
        except TimeoutError:
            raise OutcomeUnknown(f"no majority acknowledged the change of the cursor within {timeout_ms} ms") from None
        finally:
            self._forget(waiting)

    def _forget(self, waiting: _Waiting) -> None:
        """Its caller waits no more: count it no more, and leave it out of the records to come."""
        self._count -= 1
        self._counts[waiting.mover.name] -= 1
        if not self._counts[waiting.mover.name]:
            del self._counts[waiting.mover.name]
        queue = self._waiting.get(waiting.name)
        if queue is not None:
            queue.pop(waiting, None)
            if not queue:
                del self._waiting[waiting.name]

    async def _write_waiting(self) -> None:
        """Write records until nothing waits."""
        try:
            while self._waiting:
                await self._write_next()
                await asyncio.sleep(0)  # The loop gets its turn before more are judged.
        finally:
            self._run = None

    async def _write_next(self) -> None:
        """Judge what waits, write a record of what may be appended, and answer all that were judged."""
        waiter = FutureWaiter(applied=True)
        taken: list[_Waiting] = []
        try:
            admitted = await self._reads.before_append(lambda applier: self._propose(applier, taken, waiter))
            if not admitted:
                return
            reply = await waiter.reply
            for waiting, row in zip(admitted, reply.results[0], strict=True):
                outcome = CursorOutcome(None, *row) if len(row) == 1 else CursorOutcome(*row)
                if not waiting.judged.done():
                    waiting.judged.set_result(_Judged(outcome, reply.index))
        except ClusterError as error:
            self._fail(taken, error)
        except Exception as fault:  # noqa: BLE001  # Nobody awaits this task, and those who wait must not hang.
            journal.error("a fault of this program", exc_info=fault)
            self._fail(taken, OutcomeUnknown(f"a fault of this program: {fault!r}"))

    def _fail(self, taken: list[_Waiting], error: ClusterError) -> None:
        """Fail those that were taken; if none was, this leader can write nothing now, and all that wait fail."""
        if not taken:
            taken = [waiting for queue in self._waiting.values() for waiting in queue]
            self._waiting.clear()
        for waiting in taken:
            if not waiting.judged.done():
                waiting.judged.set_exception(error)

    def _propose(self, applier: Applier, taken: list[_Waiting], waiter: FutureWaiter) -> list[_Waiting]:
        """Propose a record of one change of each cursor; return these in the order of its results.

        All that it judged are in `taken` from then on, at most MAX_CURSOR_ROWS. A cursor that has more waits longest.
        Nothing else changes cursors before the record: all that this leader proposed earlier is applied.

        Raises:
            As `Writing.propose`.
        """
        admission = _Admission(applier.cursors, self.hold_limit, CURSOR_OWNERS in applier.features)
        rows: dict[int, CursorRow] = {}
        deleted: dict[int, str] = {}
        for name in list(islice(self._waiting, MAX_CURSOR_ROWS)):
            if len(taken) >= MAX_CURSOR_ROWS or len(rows) + len(deleted) >= self._most_rows:
                break
            change = self._first_admitted(name, admission, taken)
            if isinstance(change, str):
                deleted[len(taken) - 1] = change
            elif change is not None:
                rows[len(taken) - 1] = change
        if rows or deleted:
            record = encode_system(cursors_record(rows.values(), deleted.values()))
            self._writing.propose(Write(record, 1, kind=Kind.SYSTEM, owner=waiter))
        return [taken[place] for place in (*rows, *deleted)]

    def _first_admitted(self, name: str, admission: _Admission, taken: list[_Waiting]) -> CursorRow | str | None:
        """Take a cursor's changes up to the first that may be appended; return this as it is to be, None without one.

        Those before it are refused, or were given up by their callers.
        """
        queue = self._waiting.pop(name)
        self._waiting[name] = queue  # Behind all others.
        admitted = None
        while queue and admitted is None and len(taken) < MAX_CURSOR_ROWS:
            waiting, _ = queue.popitem(last=False)
            taken.append(waiting)
            if waiting.judged.done():  # Its caller gave up.
                continue
            try:
                admitted = admission.admit(waiting.change, waiting.mover)
            except ClusterError as refusal:
                waiting.judged.set_exception(refusal)
        if not queue:
            del self._waiting[name]
        return admitted


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
