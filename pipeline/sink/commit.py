"""A batch's way to the cluster: planned once, sent under the sequences of its plan by whoever gets so far, then done.

    is the folder this cluster's, session's and query's? Whatever it says of batches holds for them alone
    done already? ─► skipped, whole                 (asked again once the session is open: then nobody else can end one)
    open the session: whoever held it is fenced, and where it stands is what is executed
    a plan? ─► its first sequence and its spools; else these tasks' spools from the session's next sequence on, durable
    send what is not executed, in order; ask again for the replies that the session still keeps
    done, durable; then what is of no use any more goes

DESIGN.md says what a crash leaves at each step, and what the next attempt makes of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from quire.cluster.client import BatchReply, NotFound, ReplyGone, Session, SessionError

from .errors import (
    BatchOvertaken,
    BatchUnfinished,
    CommandsRefused,
    RowRefused,
    RowsRefused,
    SessionMoved,
    SpoolDamaged,
)
from .spool import BLOCK_BYTES, Spool, check_spool, commands_of
from .state import FIRST_REFUSALS, Done, Plan, Refusals, SinkState

FIRST_ROWS = 10
"""So many refused rows are named."""

ARRAY_HEAD_BYTES = 5
"""At most, of the msgpack array that a message's commands stand in."""

_GONE, _REUSED = "REPLY_GONE", "SEQUENCE_REUSED"


class SessionClient(Protocol):
    """What the sink needs of `quire.Client`: a named session and its stream."""

    async def session(self) -> Session: ...
    async def resume_at(self, sequence: int) -> Session: ...
    async def submit_batch(self, commands: Sequence[Any], /) -> asyncio.Future[BatchReply]: ...
    async def session_status(self, session: int, /) -> dict[str, Any]: ...


Connect = Callable[[], AbstractAsyncContextManager[SessionClient]]


@dataclass(frozen=True, slots=True)
class Part:
    """What a task made of a partition: its spool, or which of its rows are no commands."""

    partition: int
    spool: Spool | None
    largest: int = 0
    """Bytes of its largest command, and the row that it came from."""
    largest_row: int = 0
    refused: int = 0
    first_refused: tuple[RowRefused, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a batch goes: which cluster, under which session's name; and of which query of Spark's it is."""

    cluster_id: str
    session: str
    query: str | None = None
    """None: of none, or of one that its checkpoint does not tell."""


async def commit(
    folder: SinkState, target: Target, connect: Connect, parts: Sequence[Part], batch: int | None, *, fails: bool
) -> Done:
    """Write a batch, once, however often this is called for it and wherever it was stopped before.

    `batch` None: the one behind the last. `fails`: whether what the machine refused as it was applied is an error.

    Raises:
        RowsRefused, SpoolDamaged, ForeignCluster, OptionRefused, SessionMoved, BatchUnfinished, BatchOvertaken: nothing
            was sent.
        CommandsRefused: all of it is executed, but for those that were refused.
        quire.cluster.client.ClientError: the cluster does not take it, or this driver no more.
    """
    listed = folder.names()  # Only this goes at the end: what comes meanwhile may be a later driver's.
    folder.identify(target.cluster_id, target.session, target.query)
    last = folder.done()
    guessed = batch is None
    if batch is None:
        batch = last.batch + 1 if last is not None else 0
    if last is None or batch > last.batch:
        if (plan := folder.plan()) is None:
            _check_parts(folder, parts)
        else:
            _check_number(plan, batch, guessed=guessed)  # Asked again behind the open; here nobody is fenced for it.
        try:
            last = await _delivered(folder, target, connect, parts, batch, listed, guessed=guessed)
        except ReplyGone:
            # What the session has forgotten it has executed: the second attempt begins behind that. Something was
            # applied under this batch's plan, so whoever came since has found that plan: the number is this batch's.
            last = await _delivered(folder, target, connect, parts, batch, listed, ask_again=False)
    folder.abandon(part.spool for part in parts if part.spool is not None)
    if fails and last.batch == batch and (last.refused or last.unanswered):
        raise CommandsRefused(batch, last.refused, last.unanswered, last.first_refused)
    return last


class _Opened(NamedTuple):
    session: Session
    was_open: bool
    """Whether the id under which was sent last, if there is one, was open still."""


async def _delivered(
    folder: SinkState,
    target: Target,
    connect: Connect,
    parts: Sequence[Part],
    batch: int,
    listed: Sequence[str],
    *,
    guessed: bool = False,
    ask_again: bool = True,
) -> Done:
    async with connect() as outlet:
        was_open = await _is_open(outlet, folder.holder())
        opened = _Opened(await outlet.session(), was_open)
        last = folder.done()
        if last is not None and last.batch >= batch:  # By somebody who held the session until now.
            if guessed:
                raise BatchOvertaken(last.batch)
            return last
        if guessed and (plan := folder.plan()) is not None:
            _check_number(plan, batch, guessed=True)
        plan = _plan(folder, target, parts, batch, opened, last)
        folder.hold(opened.session.id)
        refusals = await _Sending(folder, plan, outlet, opened.session).send(ask_again=ask_again)
        done = Done(batch, plan.next_sequence, plan.commands, refusals.count, refusals.unanswered, refusals.first)
        folder.finish(done)
    if plan.commands:  # Else nothing has shown that this driver holds the session still.
        folder.clean(listed, plan)
    return done


def _check_number(plan: Plan, batch: int, *, guessed: bool) -> None:
    """Raise BatchUnfinished unless the plan is this batch's. A guessed number does not tell whose rows a plan has."""
    if guessed or plan.batch != batch:
        raise BatchUnfinished(plan.batch, None if guessed else batch)


async def _is_open(outlet: SessionClient, session: int | None) -> bool:
    if session is None:
        return True
    try:
        await outlet.session_status(session)
    except NotFound:
        return False
    return True


def _check_parts(folder: SinkState, parts: Sequence[Part]) -> None:
    """Refuse the batch for its rows, and for what does not stand on the disk as its tasks wrote it."""
    if refused := sum(part.refused for part in parts):
        rows = sorted(row for part in parts for row in part.first_refused)
        raise RowsRefused(refused, rows[:FIRST_ROWS])
    for part in parts:
        if part.spool is not None:
            check_spool(folder.directory, part.spool)


def _plan(
    folder: SinkState, target: Target, parts: Sequence[Part], batch: int, opened: _Opened, last: Done | None
) -> Plan:
    """The batch's plan: the one that there is, if it is still possible, or a new one, durable."""
    session = opened.session
    plan = folder.plan()
    if plan is None:
        # Nothing is done and nothing planned: nothing was sent from here, and the session must be as new as the folder.
        executed = last.next_sequence - 1 if last is not None else 0
        if session.sequence != executed:
            raise SessionMoved(target.session, session.sequence, str(executed) if last is not None else None)
        for part in parts:
            if part.largest + ARRAY_HEAD_BYTES > session.message_bytes:
                text = f"as msgpack it has {part.largest} bytes, and the cluster takes {session.message_bytes}"
                raise RowsRefused(1, [RowRefused(part.partition, part.largest_row, "TOO_LARGE", text)])
        ordered = sorted((part.spool for part in parts if part.spool is not None), key=lambda spool: spool.partition)
        plan = Plan(batch, session.id, session.sequence + 1, tuple(ordered))
        folder.write_plan(plan)
        return plan
    _check_number(plan, batch, guessed=False)
    lowest, highest = plan.first_sequence - 1, plan.next_sequence - 1
    known = folder.refusals(plan).through - 1
    # A session that was closed begins at 0 again, which only shows where it had come farther before.
    if not max(lowest, known) <= session.sequence <= highest or not (session.sequence or opened.was_open):
        raise SessionMoved(target.session, session.sequence, f"{max(lowest, known)} to {highest}")
    for spool in plan.spools:
        check_spool(folder.directory, spool)
    return plan


class _Sending:
    """One attempt at a batch: sends from where the session stands, and counts what is refused.

    A session keeps the replies of its last `window` commands. No command is sent that would push a reply out of it
    which may be a refusal that is not noted yet: so a driver that comes later can ask for all that it does not know.
    """

    def __init__(self, folder: SinkState, plan: Plan, outlet: SessionClient, session: Session) -> None:
        self._folder = folder
        self._plan = plan
        self._outlet = outlet
        self._session = session
        self._refusals = folder.refusals(plan)
        self._awaited: deque[tuple[int, int, asyncio.Future[BatchReply]]] = deque()

    async def send(self, *, ask_again: bool) -> Refusals:
        """Send what is left of the plan; the refusals of all of it, once everything is answered."""
        plan, session, known = self._plan, self._session, self._refusals
        executed_end = session.sequence + 1
        # Below the first of these nothing is unknown, by what this class keeps: see above.
        start = max(plan.first_sequence, known.through, executed_end - session.window)
        if not ask_again:
            gone, start = executed_end - start, executed_end
            self._refusals = replace(known, through=start, unanswered=known.unanswered + gone)
            self._folder.note(plan, self._refusals)
        if start == plan.next_sequence:
            return self._refusals
        await self._outlet.resume_at(start)
        try:
            await self._send_from(start)
        finally:
            for _, _, future in self._awaited:  # One has failed: what the others say is of no use.
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return self._refusals

    async def _send_from(self, sequence: int) -> None:
        session, awaited = self._session, self._awaited
        for commands in self._pieces(sequence - self._plan.first_sequence):
            while awaited and sequence + len(commands) - awaited[0][0] > session.window:
                await self._settle()
            awaited.append((sequence, len(commands), await self._outlet.submit_batch(commands)))
            sequence += len(commands)
            while awaited and awaited[0][2].done():
                await self._settle()
        while awaited:
            await self._settle()

    def _pieces(self, skip: int) -> Iterator[list[Any]]:
        """What is left, a message at a time: blocks, unless the cluster's limits are smaller."""
        session = self._session
        longest = 1 if session.message_bytes < 2 * BLOCK_BYTES else max(1, session.window // 4)
        for commands in commands_of(self._folder.directory, self._plan.spools, skip):
            for place in range(0, len(commands), longest):
                yield commands[place : place + longest]

    async def _settle(self) -> None:
        """Take the oldest answer; a refusal is durable before this returns."""
        sequence, count, future = self._awaited.popleft()
        reply = await future
        known, through = self._refusals, sequence + count
        unanswered, new = 0, list[tuple[int, str, str]]()
        for place, code, text in reply.refused:
            if code == _REUSED:
                raise SpoolDamaged(
                    self._folder.directory.path, f"sequence {sequence + place} was another command: {text}"
                )
            if code == _GONE:
                unanswered += 1
            elif code.startswith(("SESSION_", "SEQUENCE_")):
                raise SessionError(code, text)
            else:
                new.append((sequence + place, code, text))
        self._refusals = Refusals(
            through, known.count + len(new), known.unanswered + unanswered, (*known.first, *new)[:FIRST_REFUSALS]
        )
        if new or unanswered:
            self._folder.note(self._plan, self._refusals)
