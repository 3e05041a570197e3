"""The commit of a batch: planned once, sent under the sequences of its plan, marked as done.

    check that the sink's state is of this cluster, session and query: batch numbers mean nothing for another
    check the number and the rows: a lower number than the last, or other rows than it was planned or done with, fails
    done already? ─► skip the batch            (checked again once the session is open: then no other driver can end it)
    open the session: this fences the previous holder, and the session's last sequence says what is executed
    a plan? ─► use its first sequence and its spools; else plan these tasks' spools from the next sequence on, durably
    send what is not executed, in order; ask again for the replies that the session still keeps
    check that the session is still this driver's, even if nothing was sent
    mark the batch as done, durably; remove what is no longer needed

`pipeline/DESIGN.md` says what a crash leaves at each step, and how the next attempt continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple, Protocol

from quire.cluster.client import (
    BatchReply,
    NotFound,
    ReplyGone,
    ResultsCut,
    Session,
    SessionError,
    SessionFenced,
    SessionStatus,
)

from ..errors import OptionRefused
from .bad_rows import BadFile, BadRowsFolder
from .errors import (
    BatchBehind,
    BatchOvertaken,
    BatchUnfinished,
    CommandsRefused,
    RowRefused,
    RowsChanged,
    RowsRefused,
    SessionMoved,
    SpoolDamaged,
)
from .spool import BLOCK_BYTES, Spool, check_spool, commands_of, digest_of
from .state import FIRST_REFUSALS, Done, Plan, Refusals, SinkState

_journal = logging.getLogger(__name__)

FIRST_ROWS = 10
"""How many refused rows an error names."""

ARRAY_HEAD_BYTES = 5
"""The longest header of the msgpack array that holds a message's commands."""

_GONE, _REUSED = "REPLY_GONE", "SEQUENCE_REUSED"


class SessionClient(Protocol):
    """The part of `quire.Client` that the sink uses: a named session and its stream."""

    async def session(self) -> Session: ...
    async def resume_at(self, sequence: int) -> Session: ...
    async def submit_batch(self, commands: Sequence[object], /) -> asyncio.Future[BatchReply]: ...
    async def session_status(self, session: int, /) -> SessionStatus: ...


Connect = Callable[[], AbstractAsyncContextManager[SessionClient]]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task for a partition: its spool, or the rows that are not commands."""

    partition: int
    spool: Spool | None
    largest: int = 0
    """The size of its largest command, in bytes; `largest_row` is the row it came from."""
    largest_row: int = 0
    refused: int = 0
    first_refused: tuple[RowRefused, ...] = ()
    bad_file: BadFile | None = None
    """The rows that are not commands, if they are kept as a table."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a batch goes: the cluster, the name of the session, and the Spark query that the batch belongs to."""

    cluster_id: str
    session: str
    query: str | None = None
    """None: a batch write, or a query whose checkpoint does not reveal its id."""
    leaves_out: bool = False
    """Whether rows that are not commands are left out, instead of failing the batch."""
    bad_rows: BadRowsFolder | None = None
    """The table that gets those rows."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch as this attempt has it: its number, and what its tasks made of its rows."""

    number: int
    guessed: bool
    """Nobody gave the number, so what is planned or done under it belongs to another write."""
    results: Sequence[TaskResult]
    fails_on_change: bool

    @property
    def spools(self) -> tuple[Spool, ...]:
        """In the order of the partitions."""
        found = (result.spool for result in self.results if result.spool is not None)
        return tuple(sorted(found, key=lambda spool: spool.partition))

    @property
    def commands(self) -> int:
        return sum(spool.commands for spool in self.spools)

    @property
    def bad_rows(self) -> int:
        """How many rows are not commands, and are left out."""
        return sum(result.refused for result in self.results)

    @property
    def bad_files(self) -> list[BadFile]:
        """The files with those rows, in the order of the partitions."""
        found = (result.bad_file for result in self.results if result.bad_file is not None)
        return sorted(found, key=attrgetter("partition"))

    def differs(self, known: Plan | Done) -> bool:
        """Whether its rows are others: its commands, of which only the count is known if an older program planned
        them, or the count of its bad rows.
        """
        counts = known.commands, known.bad_rows
        return counts != (self.commands, self.bad_rows) or known.digest not in (None, digest_of(self.spools))

    def done(self, last: Done | None) -> Done | None:
        """The last batch that is done, if it is this one.

        Raises:
            BatchOvertaken, BatchBehind, RowsChanged: a later one is done, or it was done with other rows.
        """
        if last is None or last.batch < self.number:
            return None
        if self.guessed:
            raise BatchOvertaken(last.batch)
        self._check(last, "written")
        return last

    def check_plan(self, plan: Plan) -> None:
        """Check that the plan of an unfinished batch is this one's. With a guessed number it never is.

        Raises:
            BatchUnfinished, BatchBehind, RowsChanged: it is another's, or has other rows.
        """
        if self.guessed or plan.batch < self.number:
            raise BatchUnfinished(plan.batch, None if self.guessed else self.number)
        self._check(plan, "planned")

    def _check(self, known: Plan | Done, stage: str) -> None:
        if known.batch > self.number:
            raise BatchBehind(self.number, known.batch, stage)
        if self.fails_on_change and self.differs(known):
            raise RowsChanged(self.number, stage, known.commands, self.commands)


async def commit(
    state: SinkState,
    target: Target,
    connect: Connect,
    results: Sequence[TaskResult],
    batch: int | None,
    *,
    fails: bool,
    fails_on_change: bool = True,
) -> Done:
    """Write a batch exactly once, however often this is called for it and wherever an earlier call stopped.

    `batch` None: the number after the last batch. `fails`: whether commands that the machine refused at apply are an
    error. `fails_on_change`: whether it is one that the batch was planned or done with other rows; else these count.

    Raises:
        RowsRefused, SpoolDamaged, ForeignCluster, OptionRefused, SessionMoved, BatchUnfinished, BatchOvertaken,
            BatchBehind, RowsChanged: nothing was sent.
        CommandsRefused: the batch is executed, except for the commands that were refused.
        quire.cluster.client.ClientError: the cluster is unavailable, or another driver has taken over.
    """
    listed = state.names()  # Only these are removed at the end: later files may belong to a later driver.
    state.identify(target.cluster_id, target.session, target.query)
    _check_rows(target, results)
    if target.bad_rows is not None:
        target.bad_rows.identify(target.cluster_id, target.session, target.query)
    last = state.done()
    number = batch if batch is not None else last.batch + 1 if last is not None else 0
    given = _Batch(number, batch is None, results, fails_on_change)
    plan = state.plan()
    if plan is not None:
        given.check_plan(plan)  # Checked again after the open; here it fences nobody.
    done = given.done(last)
    if done is None:
        if plan is None:
            _check_files(state, target, given)  # Checked again after the open; here it fences nobody.
        done = await _delivered_in_the_end(state, target, connect, given, listed)
    abandon(state, target.bad_rows, results)
    if given.differs(done):
        told = "batch %d came again with other rows: its %d commands of before are kept, the %d given now are dropped"
        _journal.warning(told, number, done.commands, given.commands)
    if fails and (done.refused or done.unanswered):
        raise CommandsRefused(number, done.refused, done.unanswered, done.first_refused)
    return done


def abandon(state: SinkState, bad_rows: BadRowsFolder | None, results: Sequence[TaskResult]) -> None:
    """Remove the tasks' files that no plan names."""
    state.abandon(result.spool for result in results if result.spool is not None)
    if bad_rows is not None:
        plan = state.plan()
        named = {file[0] for file in plan.bad_files} if plan is not None else set[str]()
        bad_rows.discard({result.bad_file.name for result in results if result.bad_file is not None} - named)


async def _delivered_in_the_end(
    state: SinkState, target: Target, connect: Connect, batch: _Batch, listed: Sequence[str]
) -> Done:
    """`_delivered`, repeated in a different way if the first way can never get an answer.

    Something was applied under this batch's plan in that case, so every later driver has found that plan: the number
    belongs to this batch.
    """
    ask_again, one_by_one = True, False
    while True:
        try:
            return await _delivered(state, target, connect, batch, listed, ask_again=ask_again, one_by_one=one_by_one)
        except ReplyGone:  # The session has executed what it has forgotten: the next attempt starts after that.
            if not ask_again:
                raise
            ask_again = False
        except ResultsCut:  # The commands of a message are executed, but their results are too long for one answer.
            one_by_one = True
        batch = replace(batch, guessed=False)


class _Opened(NamedTuple):
    session: Session
    was_open: bool
    """Whether the session id of the last send, if there was one, was still open."""


async def _delivered(
    state: SinkState,
    target: Target,
    connect: Connect,
    batch: _Batch,
    listed: Sequence[str],
    *,
    ask_again: bool,
    one_by_one: bool,
) -> Done:
    bad_listed = target.bad_rows.names() if target.bad_rows is not None else []
    async with connect() as client:
        was_open = await _is_open(client, state.holder())
        opened = _Opened(await client.session(), was_open)
        last = state.done()
        done = batch.done(last)
        if done is not None:  # By the previous holder of the session.
            return done
        plan = _plan(state, target, batch, opened, last)
        _check_table(target, plan)
        state.hold(opened.session.id)
        sender = _Sender(state, plan, client, opened.session, one_by_one=one_by_one)
        refusals = await sender.send(ask_again=ask_again)
        await _check_hold(client, opened.session)
        if target.bad_rows is not None:
            target.bad_rows.publish(plan.batch, [BadFile(*file) for file in plan.bad_files])
        done = Done(
            plan.batch,
            plan.next_sequence,
            plan.commands,
            refusals.count,
            refusals.unanswered,
            refusals.first,
            plan.digest,
            plan.bad_rows,
            plan.first_bad,
        )
        state.finish(done)
    state.clean(listed, plan)
    if target.bad_rows is not None:
        target.bad_rows.discard({*bad_listed, *(file[0] for file in plan.bad_files)})
    return done


async def _check_hold(client: SessionClient, session: Session) -> None:
    """Raise SessionFenced if another driver holds the session now, which shows by itself only if there is a command to
    send. The other driver's bad rows, done batch and files are left alone then.
    """
    if not await _is_open(client, session.id):
        raise SessionFenced("SESSION_FENCED", f"another client has opened session {session.name}, or it was closed")


def _check_files(state: SinkState, target: Target, batch: _Batch) -> None:
    """Read and verify the tasks' files. Raises SpoolDamaged."""
    for spool in batch.spools:
        check_spool(state.directory, spool)
    if target.bad_rows is not None:
        target.bad_rows.check(batch.bad_files)


def _check_table(target: Target, plan: Plan) -> None:
    """Raise OptionRefused if a batch was planned with bad rows for a table, and the table is not given now; warn if it
    is the other way round.
    """
    if plan.bad_files and target.bad_rows is None:
        reason = f"batch {plan.batch} is planned with bad rows for a table: give its folder to finish it"
        raise OptionRefused("badRowsLocation", reason)
    if plan.bad_rows and not plan.bad_files and target.bad_rows is not None:
        told = "batch %d was planned with badRows=drop: its %d rows that are not commands are not in the table"
        _journal.warning(told, plan.batch, plan.bad_rows)


async def _is_open(client: SessionClient, session: int | None) -> bool:
    if session is None:
        return True
    try:
        await client.session_status(session)
    except NotFound:
        return False
    return True


def _check_rows(target: Target, results: Sequence[TaskResult]) -> None:
    """Refuse the batch if rows are not commands, whether its other rows are planned already or not."""
    refused = sum(result.refused for result in results)
    if refused and not target.leaves_out:
        way_out = "; to leave them out, set badRows=drop or badRows=table (if the batch was planned with one, that one)"
        raise RowsRefused(refused, _first_refused(results), way_out)


def _first_refused(results: Sequence[TaskResult]) -> list[RowRefused]:
    return sorted(row for result in results for row in result.first_refused)[:FIRST_ROWS]


def _plan(state: SinkState, target: Target, batch: _Batch, opened: _Opened, last: Done | None) -> Plan:
    """The batch's plan: the existing one if it can still be carried out, or a new one, durable on return."""
    session = opened.session
    plan = state.plan()
    if plan is None:
        # If no batch is done either, nothing was sent from this folder, and the session must be as new as the folder.
        executed = last.next_sequence - 1 if last is not None else 0
        if session.sequence != executed:
            raise SessionMoved(target.session, session.sequence, str(executed) if last is not None else None)
        for result in batch.results:
            if result.largest > (most := session.message_bytes - ARRAY_HEAD_BYTES):
                text = f"as msgpack it has {result.largest} bytes, and the cluster takes {most} (max_request_bytes)"
                raise RowsRefused(1, [RowRefused(result.partition, result.largest_row, "TOO_LARGE", text)])
        _check_files(state, target, batch)  # A batch that was written meanwhile has removed what its driver had listed.
        plan = Plan(
            batch.number,
            session.id,
            session.sequence + 1,
            batch.spools,
            batch.bad_rows,
            tuple((row.partition, row.row, row.code, row.text) for row in _first_refused(batch.results)),
            tuple((file.name, file.partition, file.size, file.crc32c) for file in batch.bad_files),
        )
        state.write_plan(plan)
        return plan
    batch.check_plan(plan)
    lowest, highest = plan.first_sequence - 1, plan.next_sequence - 1
    known = state.refusals(plan).through - 1
    # A closed session starts again at 0, which only shows if it had advanced before.
    if not max(lowest, known) <= session.sequence <= highest or not (session.sequence or opened.was_open):
        raise SessionMoved(target.session, session.sequence, f"{max(lowest, known)} to {highest}")
    for spool in plan.spools:
        check_spool(state.directory, spool)
    return plan


class _Sender:
    """One attempt at a batch: sends the commands that the session has not executed, and counts refusals.

    A session keeps the replies to its last `window` commands. A command is sent only once the reply that it would push
    out of the window is settled, so a later driver can always ask for the replies that it does not know.
    """

    def __init__(
        self, state: SinkState, plan: Plan, client: SessionClient, session: Session, *, one_by_one: bool
    ) -> None:
        """`one_by_one`: each command is a message, so that only a result that is too long by itself is left out."""
        self._state = state
        self._plan = plan
        self._client = client
        self._session = session
        self._one_by_one = one_by_one
        self._refusals = state.refusals(plan)
        self._awaited: deque[tuple[int, int, asyncio.Future[BatchReply]]] = deque()

    async def send(self, *, ask_again: bool) -> Refusals:
        """Send the rest of the plan; return the refusals of the whole batch once everything is answered."""
        plan, session, known = self._plan, self._session, self._refusals
        executed_end = session.sequence + 1
        # Every reply below this is known: see the class.
        start = max(plan.first_sequence, known.through, executed_end - session.window)
        if not ask_again:
            gone, start = executed_end - start, executed_end
            self._refusals = replace(known, through=start, unanswered=known.unanswered + gone)
            self._state.note(plan, self._refusals)
        if start == plan.next_sequence:
            return self._refusals
        await self._client.resume_at(start)
        try:
            await self._send_from(start)
        finally:
            for _, _, future in self._awaited:  # One has failed: the others' answers are not needed.
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return self._refusals

    async def _send_from(self, sequence: int) -> None:
        session, awaited = self._session, self._awaited
        for commands in self._pieces(sequence - self._plan.first_sequence):
            while awaited and sequence + len(commands) - awaited[0][0] > session.window:
                await self._settle()
            awaited.append((sequence, len(commands), await self._client.submit_batch(commands)))
            sequence += len(commands)
            while awaited and awaited[0][2].done():
                await self._settle()
        while awaited:
            await self._settle()

    def _pieces(self, skip: int) -> Iterator[list[object]]:
        """The rest of the commands, one message at a time: blocks, unless the cluster's limits are smaller."""
        session = self._session
        is_small = session.message_bytes < 2 * BLOCK_BYTES
        longest = 1 if is_small or self._one_by_one else max(1, session.window // 4)
        for commands in commands_of(self._state.directory, self._plan.spools, skip):
            for position in range(0, len(commands), longest):
                yield commands[position : position + longest]

    async def _settle(self) -> None:
        """Wait for the oldest answer. Refusals in it are durable on return."""
        sequence, count, future = self._awaited.popleft()
        known, through = self._refusals, sequence + count
        unanswered, new = 0, list[tuple[int, str, str]]()
        try:
            refused = (await future).refused
        except ResultsCut:
            if count > 1:
                raise
            refused, unanswered = [], 1  # A longer text than an answer may have may be a refusal's.
        for position, code, text in ((int(at), str(code), str(text)) for at, code, text in refused):
            if code == _REUSED:
                raise SpoolDamaged(
                    self._state.directory.path, f"sequence {sequence + position} was another command: {text}"
                )
            if code == _GONE:
                unanswered += 1
            elif code.startswith(("SESSION_", "SEQUENCE_")):
                raise SessionError(code, text)
            else:
                new.append((sequence + position, code, text))
        self._refusals = Refusals(
            through, known.count + len(new), known.unanswered + unanswered, (*known.first, *new)[:FIRST_REFUSALS]
        )
        if new or unanswered:
            self._state.note(self._plan, self._refusals)
