"""A cluster in this process for the sink: the real sessions and machine behind a network that can be cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from quire.cluster.client import (
    BatchReply,
    NotFound,
    ReplyGone,
    ResultsCut,
    Session,
    SessionError,
    SessionExpired,
    SessionFenced,
    SessionStatus,
)
from quire.sm import Applied, Applier, Refused, Sessions, StateMachine
from quire.sm.machines.arithmetic import ArithmeticMachine
from tests.sm.frames import Frames

ERRORS: dict[str, type[SessionError]] = {
    "SESSION_FENCED": SessionFenced,
    "SESSION_EXPIRED": SessionExpired,
    "REPLY_GONE": ReplyGone,
    "SEQUENCE_GAP": SessionError,
    "SEQUENCE_REUSED": SessionError,
}


class Cut(Exception):
    """The connection is lost, and with it the driver."""


async def _nothing() -> None:
    pass


class FakeCluster:
    """One replica. What executed stands in `executed`, by sequence, in the order of execution."""

    def __init__(self, window: int = 8192, message_bytes: int = 1 << 20, machine: StateMachine | None = None) -> None:
        self.machine = machine or ArithmeticMachine(42)
        self.applier = Applier(self.machine, sessions=Sessions(session_window=window))
        self.message_bytes = message_bytes
        self.executed: list[tuple[int, Any]] = []
        self.messages = 0
        self.answer_results: int | None = None
        """The most results in one answer; what is beyond is cut off."""
        self.late = False
        """Answers come only when the caller waits for one."""
        self.most_unanswered = 0
        """The most commands that one client had unanswered."""
        self.cut_before: int | None = None
        self.cut_after: int | None = None
        self._frames = Frames()
        self.applier.apply(self._frames.system({"type": "epoch_start", "node_id": "n1"}))  # A session's id is above 0.
        self.empty_index = self.applier.applied_index

    def connect(self) -> SessionClient:
        """A client that opens the session `sink`."""
        return SessionClient(self)

    def open(self) -> Session:
        """Open it."""
        told = self.applier.apply(self._frames.system({"type": "open_session", "name": "sink"})).results[0]
        window = self.applier.sessions.session_window
        return Session(told["session"], "sink", told["sequence"], window, self.message_bytes)

    def close(self, session: int) -> None:
        """Close a session, as an operator may."""
        self.applier.apply(self._frames.system({"type": "close_session", "session": session}))

    def send(self, session: int, sequence: int, commands: Sequence[Any]) -> Applied:
        """A message of a stream: applied, unless the line is cut before; answered, unless it is cut behind."""
        self.messages += 1
        if self.messages == self.cut_before:
            raise Cut
        found = self.applier.sessions.find(session)
        before = found.sequence if found is not None else 0
        applied = self.applier.apply(self._frames.records(commands, session, sequence))
        found = self.applier.sessions.find(session)
        if found is not None:
            new = range(before + 1, found.sequence + 1)
            self.executed += [(each, commands[each - sequence]) for each in new]
        if self.messages == self.cut_after:
            raise Cut
        return applied


class SessionClient(AbstractAsyncContextManager["SessionClient"]):
    """What `sending` uses of the client; its hooks stand around the session's opening, and before each message."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._session: Session | None = None
        self._next = 0
        self._unanswered = 0
        self.opening: Callable[[], Awaitable[None]] = _nothing
        self.opened: Callable[[], Awaitable[None]] = _nothing
        self.sending: Callable[[], Awaitable[None]] = _nothing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    async def session(self) -> Session:
        if self._session is None:
            await self.opening()
            self._session = self._cluster.open()
            self._next = self._session.sequence + 1
            await self.opened()
        return self._session

    async def resume_at(self, sequence: int) -> Session:
        session = await self.session()
        if not 1 <= sequence <= session.sequence + 1:
            raise ValueError(sequence)
        self._next = sequence
        return session

    async def submit_batch(self, commands: Sequence[Any], /) -> asyncio.Future[BatchReply]:
        session = await self.session()
        await self.sending()
        future: asyncio.Future[BatchReply] = asyncio.get_running_loop().create_future()
        self._unanswered += len(commands)
        self._cluster.most_unanswered = max(self._cluster.most_unanswered, self._unanswered)
        applied = self._cluster.send(session.id, self._next, commands)
        self._next += len(commands)
        if self._cluster.late:
            asyncio.get_running_loop().call_soon(self._answer, future, commands, applied)
        else:
            self._answer(future, commands, applied)
        return future

    def _answer(self, future: asyncio.Future[BatchReply], commands: Sequence[Any], applied: Applied) -> None:
        self._unanswered -= len(commands)
        if future.done():
            return
        refused = applied.refused
        most = self._cluster.answer_results
        if most is not None and len(commands) > most:
            future.set_exception(ResultsCut(applied.index))
        elif len(refused) == len(commands) and (error := ERRORS.get(refused[0][1])):
            future.set_exception(error(*refused[0][1:]))
        else:
            future.set_result(BatchReply(applied.index, applied.epoch, applied.results, refused))

    async def session_status(self, session: int, /) -> SessionStatus:
        found = self._cluster.applier.sessions.find(session)
        if found is None:
            raise NotFound({"status": 404, "detail": f"session {session} is not open"})
        return {"session": found.session, "name": found.name, "sequence": found.sequence, "owner": found.owner}


class RefusingMachine(ArithmeticMachine):
    """Refuses, as it applies it, to add 13."""

    def apply_batch(self, commands: Sequence[Any], contexts: Any) -> list[Any]:
        kept = [command for command in commands if command != ["add", 13]]
        done = iter(super().apply_batch(kept, contexts[: len(kept)]))
        return [Refused("UNLUCKY", "13 is not added") if command == ["add", 13] else next(done) for command in commands]
