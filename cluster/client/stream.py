"""The stream of a client's commands: a session, a WebSocket to whoever leads, and another one whenever it breaks.

What is sent, and what an answer or a lost connection means for it, is the pipeline's business. This module does the
talking:

    session open ─► connected ─► what is in flight, again ─► what is in the queue
         ▲              ▲              │ problem, silence, a lost connection
         │              └─ backoff ◄───┘
         └─ SESSION_EXPIRED (of a session without a name)
"""

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import stamina
from aiohttp import WSMsgType

from quire.log import PayloadInvalid
from quire.log.packing import ExtType, unpack_trusted

from .errors import ClientError, Halted, NotFound, SessionError, SessionExpired, Unavailable
from .group import Answer
from .pipeline import OutOfPlace, Pipeline
from .session import CLOSE_TIMEOUT_S, Session, close_session, open_session
from .transport import BACKOFF_FIRST_S, BACKOFF_LONGEST_S, NothingWritten, Transport

ANSWER_LENGTH = 5  # [sequence, index, epoch, results, refused]
PROBLEM_LENGTH = 2  # [sequence, problem]
MACHINE_FAILED = "urn:quire:problem:machine-failed"
OF_ITS_CONTENT = frozenset({400, 413, 422})  # A message with such a status is refused by every node, and always.
PASSING = frozenset({429, 503})  # It was not taken now, and may be later.


class StreamEnded(Exception):
    """The stream came to nothing; another one may."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class LastWord(NamedTuple):
    """What ended a stream: nothing from the sequence on was taken."""

    sequence: int
    problem: dict[str, Any]


class CommandStream:
    """A client's commands on their way, by one task, from the first command to `close`."""

    def __init__(self, transport: Transport, pipeline: Pipeline, name: str | None) -> None:
        self.pipeline = pipeline
        self._transport = transport
        self._name = name
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._failure: SessionError | None = None
        self._leader_lost = False
        self._progress = False
        self._task: asyncio.Task[None] | None = None

    async def submit_later(self, packed: bytes, commands: int, *, batch: bool) -> Answer:
        """`Pipeline.submit_later`; a session is opened for it where there is none.

        Raises:
            SessionError, Halted: nothing is sent any more.
        """
        self._begin()
        return await self.pipeline.submit_later(packed, commands, batch=batch)

    async def session(self) -> Session:
        """The session, opened now if it was not. Raises Unavailable, ClientError."""
        self._begin()
        try:
            async for attempt in _retrying(self._transport.timeout_s):
                with attempt:
                    return await self._opened()
        except NothingWritten as error:
            raise Unavailable(f"no session could be opened: {error}") from None
        raise Unavailable("no attempt was made")

    async def resume_at(self, sequence: int) -> Session:
        """The session, opened now if it was not, whose next command is to have this sequence. Raises ValueError."""
        session = await self.session()
        if self.pipeline.has_work or not 1 <= sequence <= session.sequence + 1:
            raise ValueError(
                f"sequence {sequence}: the session stands at {session.sequence}, and nothing may be under way"
            )
        self.pipeline.resume_at(sequence)
        return session

    async def close(self, *, drain: bool) -> None:
        """End it: first wait for all answers, if `drain`; what is left then was not sent, or is unknown."""
        if drain:
            await self.pipeline.drained()
        self.pipeline.interrupted()
        self.pipeline.end(
            lambda: Unavailable("the client was closed before it was sent"),
            "the client was closed before the answer came",
        )
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        if self._session is not None and self._name is None and self._failure is None:
            await close_session(self._transport, self._session)
        if task is not None and not task.cancelled():
            task.result()

    def _begin(self) -> None:
        if self._failure is not None:
            raise _another(self._failure)
        if self.pipeline.halted:
            raise Halted
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quire stream")

    async def _run(self) -> None:
        try:
            while True:
                await self.pipeline.work()
                async for attempt in _retrying(None):
                    with attempt:
                        await self._attempt()
        except Exception as error:
            fault = f"a fault of the client: {error!r}"
            self.pipeline.interrupted()
            self.pipeline.end(lambda: ClientError(fault), fault)
            raise

    async def _attempt(self) -> None:
        """Talk until there is nothing to say, or something went wrong after an answer: then at once again.

        Raises:
            StreamEnded, NothingWritten: something went wrong; after a while again.
        """
        if not self.pipeline.has_work:
            return
        self._progress = False
        try:
            await self._serve(await self._opened())
        except (StreamEnded, NothingWritten) as error:
            self.pipeline.trouble = str(error)
            self._leader_lost = True
            if not self._progress:
                raise
        except ClientError as error:  # No session is to be had.
            refusal = error
            self.pipeline.reject_awaiting(lambda: refusal)

    async def _opened(self) -> Session:
        async with self._opening:
            if self._session is None:
                self._session = await open_session(self._transport, self._name)
                self.pipeline.open(self._session)
            return self._session

    async def _serve(self, session: Session) -> None:
        if self._leader_lost:
            await self._find_leader(session)
        socket = await self._transport.connect(f"/commands/stream?session={session.id}")
        try:
            async with asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(self._send(socket))
                end = await self._read(socket)
                sender.cancel()
            self._conclude(end)
        finally:
            self.pipeline.interrupted()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.close()

    async def _find_leader(self, session: Session) -> None:
        """Ask for what only a leader that serves can answer; whoever answers names it."""
        try:
            await self._transport.call_once("GET", f"/sessions/{session.id}")
        except NotFound:
            pass  # The stream will say why.
        except ClientError as error:
            raise StreamEnded(str(error)) from None
        self._leader_lost = False

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(ConnectionError):  # The reader learns of it, too, behind the answers that have come.
            for group in self.pipeline.unanswered():
                await socket.send_bytes(group.message())
            while True:
                group = await self.pipeline.next_group()
                await socket.send_bytes(group.message())

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> LastWord | Exception:
        """Pass answers on until the stream ends; how it did."""
        try:
            while True:
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return StreamEnded(f"the stream was closed ({socket.close_code or socket.exception()})")
                said = unpack_trusted(message.data, ExtType)
                if len(said) == ANSWER_LENGTH:
                    self.pipeline.answered(*said)
                    self._progress = True
                elif len(said) == PROBLEM_LENGTH:
                    return LastWord(*said)
                else:
                    return StreamEnded(f"a server said {said!r:.100}, which is no answer")
        except (OutOfPlace, SessionError) as error:
            return error
        except (PayloadInvalid, TypeError) as error:
            return StreamEnded(f"a server said what is no answer: {error}")

    def _conclude(self, end: LastWord | Exception) -> None:
        """Draw the conclusion of a stream's end. Raises StreamEnded: another one is worth trying."""
        match end:
            case LastWord(sequence, problem):
                try:
                    self._heed(sequence, problem)
                except OutOfPlace as error:
                    raise StreamEnded(str(error)) from None
            case SessionExpired() if self._name is None:
                self._session = None  # The next attempt gets another.
                self.pipeline.expired(f"{end}; it may have been executed before")
            case SessionError():
                self.pipeline.end(lambda: _another(end), f"{end}; it may have been executed before")
                self._failure = end
            case _:
                raise StreamEnded(str(end))

    def _heed(self, sequence: int, problem: dict[str, Any]) -> None:
        status, detail = problem.get("status"), str(problem.get("detail"))
        if status in OF_ITS_CONTENT or problem.get("type") == MACHINE_FAILED:
            self.pipeline.refused(sequence, problem)
            return
        if status in PASSING:
            self.pipeline.returned(sequence)
        raise StreamEnded(detail, problem.get("retry_after_s"))


def _retrying(timeout_s: float | None) -> Any:
    return stamina.retry_context(
        on=_patience,
        attempts=None,
        timeout=timeout_s,
        wait_initial=BACKOFF_FIRST_S,
        wait_max=BACKOFF_LONGEST_S,
        wait_jitter=BACKOFF_FIRST_S,
    )


def _patience(error: Exception) -> bool | float:
    return isinstance(error, StreamEnded | NothingWritten) and (error.retry_after_s or True)


def _another(error: SessionError) -> SessionError:
    """The same error once more, for somebody else."""
    return type(error)(error.code, error.text)
