"""The command stream of a client: a session, and a WebSocket to the leader that is reopened whenever it breaks.

The pipeline decides what is sent, and what an answer or a lost connection means. This module does the I/O:

    session open ─► connected ─► resend what is in flight ─► send the queue
         ▲              ▲              │ problem, silence, lost connection
         │              └─ backoff ◄───┘
         └─ SESSION_EXPIRED (of an unnamed session), a message in doubt that is refused for its content

While there is work or an open stream, another server tells who leads (`leader/watch.py`). Once another node leads, in a
later epoch, the client leaves the stream to the one before and resends what is in flight: under a session that is safe,
so nobody waits for a proof that the old leader is gone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, NotRequired, TypedDict

import aiohttp
from aiohttp import WSMsgType

from quire.log import PayloadInvalid, pack
from quire.log.packing import ExtType, unpack_trusted

from .attempts import AttemptFailed, Backoff, NothingWritten, expire, log
from .documents import document_of
from .errors import (
    ClientError,
    Forbidden,
    Halted,
    HistoryChanged,
    NotFound,
    Problem,
    SessionError,
    SessionExpired,
    Unauthorized,
    Unavailable,
)
from .leader.watch import LeaderWatch
from .pipeline import OutOfSequence, Pipeline
from .transport import CHECK_FAILED, HISTORY_TEXT, MACHINE_FAILED, Transport

# [sequence, index, epoch, results, refused], and if the results were cut, the first position that is left out
ANSWER_LENGTHS = (5, 6)
PROBLEM_LENGTH = 2  # [sequence, problem]
CONTENT_REFUSED = frozenset({400, 413, 422})  # This node refuses such a message, however often it is sent,
FAULTS = frozenset({CHECK_FAILED, MACHINE_FAILED})  # and so it does with one of these types.
NOT_TAKEN = frozenset({429, 503})  # The message was not taken; a later attempt may succeed.
CLOSE_TIMEOUT_S = 1.0
GRACE_S = 0.1  # A leader that is only deposed ends its streams itself, after the answers that are due.
DOUBT_S = 0.5  # Without an answer another server is asked who leads; again after twice as long, if no answer comes.
LONGEST_DOUBT_S = 8.0


@dataclass(frozen=True, slots=True)
class Session:
    """An open session.

    `sequence` is the number of commands executed under the session's name when it was opened, 0 for a new session.
    `window` is the number of commands that may await their answers. `message_bytes` is the limit for the commands of
    one message, as msgpack.
    """

    id: int
    name: str | None
    sequence: int
    window: int
    message_bytes: int
    history: str | None = None
    """In hex; None if the server is too old to say."""


class StreamEnded(AttemptFailed):
    """The stream ended; a new one may succeed."""


class StreamProblem(NamedTuple):
    """The problem that ended a stream: the server took nothing from `sequence` on."""

    sequence: int
    problem: Problem


class CommandStream:
    """Sends the commands of a client's pipeline, in one task that lives from the first command to `close`."""

    def __init__(self, transport: Transport, pipeline: Pipeline, name: str | None) -> None:
        self.pipeline = pipeline
        self._transport = transport
        self._name = name
        self._session: Session | None = None
        self._history: str | None = None  # Of the first session.
        self._left: Session | None = None  # It is still to be closed.
        self._opening = asyncio.Lock()
        self._failure: SessionError | None = None
        self._leader_lost = False
        self._epoch = 0  # The latest of a leader that was heard of.
        self._at: str | None = None  # The server of the open stream.
        self._led_by: str | None = None  # The node that led when it was opened.
        self._trying: asyncio.Timeout | None = None
        self._watch = LeaderWatch(transport, lambda: self._epoch, self._led)
        self._watching: asyncio.Task[None] | None = None
        self._progress = False
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        """Open a session and the stream, unless it was done: commands that wait for space get it.

        Raises:
            SessionError, Halted: the client sends nothing more.
        """
        if self._failure is not None:
            raise _copy_of(self._failure)
        if self.pipeline.halted:
            raise Halted
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quire stream")

    async def session(self) -> Session:
        """The session, opened now if it was not. Raises Unavailable, ClientError."""
        self.start()
        began_at, backoff = time.monotonic(), Backoff("session")
        deadline = began_at + self._transport.timeout_s
        while True:
            try:
                return await self._open_session()
            except NothingWritten as error:
                failure = error
            if why := self._transport.hopeless(failure, began_at):
                raise Unavailable(why)
            if time.monotonic() >= deadline:
                raise Unavailable(f"no session could be opened: {failure}, for {self._transport.timeout_s:g} s")
            await backoff.wait(failure, self._transport.next_look(began_at, deadline))

    async def resume_at(self, sequence: int) -> Session:
        """Give the next command this sequence; return the session, opened now if it was not. Raises ValueError."""
        session = await self.session()
        if self.pipeline.has_work:
            raise ValueError(f"cannot resume at sequence {sequence} while commands are in flight")
        if not 1 <= sequence <= session.sequence + 1:
            raise ValueError(f"cannot resume at sequence {sequence}: the session is at sequence {session.sequence}")
        self.pipeline.resume_at(sequence)
        return session

    async def close(self, *, drain: bool) -> None:
        """Close the stream, and an unnamed session. With `drain`, wait for all answers first.

        Commands left unanswered fail with Unavailable if they were not sent, and with OutcomeUnknown if they were.
        """
        if drain:
            await self.pipeline.drained()
        self.pipeline.interrupted()
        self.pipeline.end(
            lambda: Unavailable("the client was closed before it was sent"),
            "the client was closed before the answer came",
        )
        task, self._task = self._task, None
        self._is_closing = True  # A stream that breaks at this moment may hide that its task was cancelled (TaskGroup).
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._close_left()
        if self._session is not None and self._name is None and self._failure is None:
            await self._close_session(self._session)
        if task is not None and not task.cancelled():
            task.result()

    async def _run(self) -> None:
        try:
            while not self._is_closing:
                await self.pipeline.wait_for_work()
                try:
                    await self._work()
                finally:
                    await self._end_watch()
        except Exception as error:
            fault = f"internal error of the client: {error!r}"
            self.pipeline.interrupted()
            self.pipeline.end(lambda: ClientError(fault), fault)
            raise

    async def _work(self) -> None:
        """Serve one stream, or try to until it makes no sense."""
        began_at, backoff = time.monotonic(), Backoff("stream")
        while (failure := await self._attempt()) is not None and not self._is_closing:
            if isinstance(failure, NothingWritten) and await self._gave_up(failure, began_at):
                break
            try:
                async with self._until_another_leads():
                    await backoff.wait(failure, self._transport.next_look(began_at))
            except TimeoutError:
                backoff = Backoff("stream")

    @asynccontextmanager
    async def _until_another_leads(self) -> AsyncGenerator[None]:
        """Raise TimeoutError in the block when another node leads a later epoch."""
        async with asyncio.timeout(None) as self._trying:
            try:
                yield
            finally:
                self._trying = None

    def _led(self, epoch: int) -> None:
        """Another server hears a leader of a later epoch; its answer named the leader.

        Nodes are compared, not addresses: the stream may be relayed, or its server known by another name.
        """
        is_other = self._epoch > 0 and (self._at is None or self._transport.servers.leader_id != self._led_by)
        self._epoch = epoch
        if is_other:
            expire(self._trying, 0.0 if self._at is None else GRACE_S)

    async def _doubt(self, at: str) -> None:
        """Whenever an answer is missing for long: have another server asked who leads, and ping the one of the stream.

        If that is silent, it is avoided. It is left if it does not lead: a leader's end is told by another server.
        """
        patience_s = DOUBT_S
        while True:
            await self.pipeline.wait_for_work()
            oldest = self.pipeline.oldest
            await asyncio.sleep(patience_s)
            if oldest is not None and self.pipeline.oldest is oldest:
                self._watch.doubt()
                leads = at == self._transport.servers.leader
                if await self._transport.is_silent(at) and not leads:
                    expire(self._trying)
                patience_s = min(2 * patience_s, LONGEST_DOUBT_S)
            else:
                patience_s = max(patience_s / 2, DOUBT_S)

    async def _end_watch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _gave_up(self, failure: NothingWritten, began_at: float) -> bool:
        """Whether it makes no sense to try again. Then all that waits has failed; nothing of it was sent."""
        why = self._transport.hopeless(failure, began_at)
        if why is not None:
            self.pipeline.reject_unsent(lambda: Unavailable(why))
        return why is not None

    async def _attempt(self) -> AttemptFailed | None:
        """Serve one stream; return why it failed if it made no progress, so that the next one needs a backoff."""
        if not self.pipeline.has_work:
            return None
        self._progress = False
        try:
            session = await self._open_session()
            async with self._until_another_leads():
                await self._serve(session)
        except TimeoutError:
            self._leader_lost = True
            log.debug("the server is silent, or another node leads (epoch %d); opening another stream", self._epoch)
        except (StreamEnded, NothingWritten) as error:
            self.pipeline.last_failure = str(error)
            self._leader_lost = True
            if not self._progress:
                return error
            log.debug("the stream was lost: %.300s; opening another", error)
        except HistoryChanged as error:
            self._handle_end(error)
        except ClientError as error:  # The cluster refused to open a session or a stream.
            refusal = error
            self.pipeline.last_failure = str(error)
            self.pipeline.reject_unsent(lambda: refusal)
            if self.pipeline.has_work:  # In flight: a later stream may still answer it.
                return AttemptFailed(str(error))
        return None

    async def _open_session(self) -> Session:
        """The open session, or a new one. Under a name in use, it continues that session and fences its holder.

        It is safe to ask every server in turn: opening a session executes nothing, and of several sessions under one
        name the last one holds it.
        """
        async with self._opening:
            if self._session is None:
                await self._close_left()
                body = pack({} if self._name is None else {"name": self._name})
                reply = await self._transport.call_once("POST", "/sessions", body, once=True)
                document = document_of(reply, _SessionOpened)
                try:
                    number, sequence = document["session"], document["sequence"]
                    window, message_bytes = document["session_window"], document["max_request_bytes"]
                except KeyError as missing:
                    raise ClientError(
                        f"a server opened a session without {missing}; does it run this version of quire?"
                    ) from None
                history = document.get("history")
                if self._history not in (None, history):
                    raise HistoryChanged("HISTORY_CHANGED", HISTORY_TEXT)
                self._history = history
                self._epoch = max(self._epoch, document.get("epoch", 0))
                self._session = Session(number, self._name, sequence, window, message_bytes, history)
                self.pipeline.open(sequence + 1, window, message_bytes)
            return self._session

    async def _close_left(self) -> None:
        """Close an unnamed session that was left: nothing may execute under it later. A named one is taken over."""
        left, self._left = self._left, None
        if left is not None and self._name is None:
            await self._close_session(left)

    async def _close_session(self, session: Session) -> None:
        """Close the session if a server does so at once; otherwise the cluster evicts it later."""
        with suppress(TimeoutError, NothingWritten, ClientError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._transport.call_once("DELETE", f"/sessions/{session.id}")

    async def _serve(self, session: Session) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch.run(), name="quire leader watch")
        if self._leader_lost:
            await self._find_leader(session)
        try:
            named = "" if session.history is None else f"&history={session.history}"
            at, socket = await self._transport.connect(f"/commands/stream?session={session.id}{named}")
        except SessionError as gone:
            self._handle_end(gone)
            return
        self._at, self._led_by = at, self._transport.servers.leader_id
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._send(socket)), tasks.create_task(self._doubt(at))]
                end = await self._receive(at, socket)
                for other in others:
                    other.cancel()
            self._handle_end(end)
        finally:
            self._at = None
            is_left = self._trying is not None and self._trying.expired()
            if isinstance(socket.exception(), TimeoutError):
                self._transport.servers.lost(at, silent=True)
            self.pipeline.interrupted()
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if is_left else CLOSE_TIMEOUT_S):
                    await socket.close()

    async def _find_leader(self, session: Session) -> None:
        """Send a request that only a serving leader answers; the answer names it."""
        try:
            await self._transport.call_once("GET", f"/sessions/{session.id}")
        except NotFound:
            pass  # The stream will fail with the reason.
        except (Unauthorized, Forbidden):
            raise
        except ClientError as error:
            raise StreamEnded(str(error)) from None
        self._leader_lost = False

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(ConnectionError):  # `_receive` sees it too, after the answers that did arrive.
            for message in self.pipeline.unanswered():
                await socket.send_bytes(message.encode())
            while True:
                message = await self.pipeline.next_message()
                await socket.send_bytes(message.encode())

    async def _receive(self, at: str, socket: aiohttp.ClientWebSocketResponse) -> StreamProblem | Exception:
        """Pass answers to the pipeline until the stream ends; return why it ended."""
        try:
            while True:
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return StreamEnded(f"the stream was closed ({socket.close_code or socket.exception()})")
                content = unpack_trusted(message.data, ExtType)
                if type(content) is not list:
                    return StreamEnded(f"a server sent {content!r:.100}, which is not an answer")
                if len(content) in ANSWER_LENGTHS:
                    self._transport.servers.answered(at)
                    self.pipeline.answered(*content)
                    self._epoch = max(self._epoch, content[2])
                    self._progress = True
                elif len(content) == PROBLEM_LENGTH:
                    return StreamProblem(*content)
                else:
                    return StreamEnded(f"a server sent {content!r:.100}, which is not an answer")
        except (OutOfSequence, SessionError) as error:
            return error
        except (PayloadInvalid, TypeError) as error:
            return StreamEnded(f"a server sent an answer that cannot be parsed: {error}")

    def _handle_end(self, end: StreamProblem | Exception) -> None:
        """Update the pipeline after a stream ended. Raises StreamEnded to open another after a backoff."""
        match end:
            case StreamProblem(sequence, problem):
                try:
                    self._handle_problem(sequence, problem)
                except OutOfSequence as error:
                    raise StreamEnded(str(error)) from None
            case SessionExpired() if self._name is None:
                self._session = None  # The next attempt opens another.
                self.pipeline.left(f"{end}; it may have been executed before")
            case SessionError():
                self.pipeline.end(lambda: _copy_of(end), f"{end}; it may have been executed before")
                self._failure = end
            case _:
                raise StreamEnded(str(end))

    def _handle_problem(self, sequence: int, problem: Problem) -> None:
        status, detail = problem.get("status"), str(problem.get("detail"))
        if status in CONTENT_REFUSED or problem.get("type") in FAULTS:
            if not self.pipeline.refused(sequence, problem):
                self._left, self._session = self._session, None  # The next attempt opens another.
            return
        if status in NOT_TAKEN:
            self.pipeline.returned(sequence)
        patience = problem.get("retry_after_s")
        raise StreamEnded(detail, patience if isinstance(patience, int | float) else None)


class _SessionOpened(TypedDict):
    session: int
    sequence: int
    session_window: int
    max_request_bytes: int
    history: NotRequired[str]
    epoch: NotRequired[int]


def _copy_of(error: SessionError) -> SessionError:
    """The same error for another caller."""
    return type(error)(error.code, error.text)
