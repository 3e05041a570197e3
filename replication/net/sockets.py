"""Shared by sockets between nodes: running two coroutines on one, noticing silence, limiting what strangers send."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_USER_TIMEOUT
from typing import Any

from aiohttp import (
    ClientError,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    WSMessage,
    web,
)
from aiohttp.client_proto import ResponseHandler

from ..names import Connector, Names
from .direct import Interposed

Socket = ClientWebSocketResponse | web.WebSocketResponse

ELECTION_TIMEOUT_S = 1.0
"""For a node whose cluster is not formed yet, and which so has no protocol clock."""
TCP_SILENCE_TIMEOUTS = 3
PINGS = 4
SILENCE_TIMEOUTS = 2
TURN_S = 0.005
HELLO_TIMEOUT_S = 5.0
"""The timeout of a dial and its hello, at either end."""
CLOSE_S = 1.0
"""The timeout of the closing handshake at the dialled end."""


async def together(*coroutines: Coroutine[object, None, None]) -> None:
    """Run these until one of them ends, in whatever way; cancel the others, and raise its exception.

    A `TaskGroup` does not work here: it continues after a task returned or was cancelled; and it cancels its parent
    task, which then counts as being cancelled even if its block ended by itself (Python 3.11).
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    exceptions = (task.exception() for task in ended if not task.cancelled())
    errors = [error for error in exceptions if error is not None]  # A name bound here ends with it.
    tasks.clear()  # A task holds its error, that the stack frames, and those what was sent last.
    ended.clear()
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()


async def end_all(tasks: Iterable["asyncio.Task[object]"]) -> None:
    """Cancel these, and return when they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def give_up_when_silent(socket: ClientWebSocketResponse | web.Request, election_timeout_s: float) -> None:
    """Have the kernel end a socket whose data is not acknowledged, or that does not answer probes while idle.

    No rule depends on this: pings and the core's own rule for streams do the same, but later.
    """
    if isinstance(socket, web.Request):
        tcp_socket = None if socket.transport is None else socket.transport.get_extra_info("socket")
    else:
        tcp_socket = socket.get_extra_info("socket")
    if tcp_socket is None:
        return
    silence_s = TCP_SILENCE_TIMEOUTS * election_timeout_s
    with suppress(OSError):  # The socket is closed already, or a limit of the kernel is exceeded.
        tcp_socket.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        tcp_socket.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, math.ceil(silence_s))
        tcp_socket.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, math.ceil(election_timeout_s))
        tcp_socket.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, TCP_SILENCE_TIMEOUTS)
        tcp_socket.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, math.ceil(silence_s * 1000))


async def read_in_turns(
    socket: Socket,
    take: Callable[[WSMessage], object],
    clock: Callable[[], float] | None = None,
) -> None:
    """Pass on arriving messages until the socket closes. After TURN_S of work, the loop gets a turn.

    A process that was paused or slow may find thousands of messages in the socket's buffer, and reading those never
    waits.
    """
    clock = clock or time.monotonic  # As it is now: whole nodes run in virtual time, too.
    worked_s = 0.0
    async for message in socket:
        began = clock()
        take(message)
        worked_s += clock() - began
        if worked_s >= TURN_S:
            worked_s = 0.0
            await asyncio.sleep(0)


class DialledSocket(ClientWebSocketResponse):
    """A WebSocket that this process dialled, with its `transport`: None if the connection is gone."""

    def __init__(
        self, reader: Any, writer: Any, protocol: str | None, response: ClientResponse, *rest: Any, **more: Any
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **more)
        connection = response.connection
        self.transport = None if connection is None else connection.transport
        self._handler = None if connection is None else connection.protocol

    def break_cycle(self) -> None:
        """Let the closed connection forget this object, which refers to it; otherwise both wait for the GC."""
        if self._handler is not None:
            self._handler.set_parser(None, None)
            self._handler = self.transport = None


def peer_session(names: Names | None = None) -> ClientSession:
    """An HTTP session for dialling peers. It keeps no cookies and follows no redirects: a stranger may answer."""
    return ClientSession(
        connector=Connector(names or Names(), HELLO_TIMEOUT_S),
        timeout=ClientTimeout(total=None),
        cookie_jar=DummyCookieJar(),
        ws_response_class=DialledSocket,
        middlewares=[refuse_redirects],
    )


async def refuse_redirects(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Have a session fail at a redirect: otherwise the answering program would choose what this node dials next."""
    response = await send(request)
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        response.close()
        raise ClientError(f"it redirects ({response.status}); peers do not")
    return response


async def accept(request: web.Request, max_msg_size: int, heartbeat_s: float | None = None) -> web.WebSocketResponse:
    """Open the WebSocket that a peer, or a stranger, requests; nothing on it is compressed.

    Raises:
        HTTPException: it is not a request for a WebSocket, or the client did not wait for the answer.
    """
    # A client must wait for the answer (RFC 6455, 4.1), and `of_a_stranger` counts from then on. What has come already
    # is in aiohttp's hands.
    if request.protocol._message_tail:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        raise web.HTTPBadRequest(text="a WebSocket client must not send anything before it has the answer")
    socket = web.WebSocketResponse(max_msg_size=max_msg_size, timeout=CLOSE_S, heartbeat=heartbeat_s, compress=False)
    await socket.prepare(request)
    return socket


async def close_socket(socket: Socket) -> None:
    """Close it with a handshake, if it is open, and leave nothing behind: no timer and no reference cycle."""
    # Of aiohttp: what arrives would start the timer of its pings again; and the protocol would refer to the socket.
    writer = socket._writer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if writer is not None and isinstance(writer.protocol, ResponseHandler | web.RequestHandler):
        writer.protocol._data_received_cb = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    try:
        await socket.close()
    finally:
        drop_frames(socket.exception())


def drop_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of a handled error and of its causes.

    A traceback's frames hold the handler's variables: a body, a response of megabytes. If a future or a socket in such
    a frame also holds the error, the cycle keeps all of it in memory until the garbage collector runs, which under load
    takes seconds, or forever once it was frozen.
    """
    errors, seen = [error], set[int]()
    while errors:
        error = errors.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            errors += [error.__context__, error.__cause__]


class StrangerSentTooMuch(ConnectionResetError):
    """The other end sent more than a stranger may; it was cut off."""


@contextmanager
def of_a_stranger(socket: Socket, most_bytes: int) -> Generator[None]:
    """While the block runs, the other end may send at most `most_bytes` in total; pings get no answer.

    Data that arrived together with the answer to a dialler is not counted: at most two reads from the kernel. `receive`
    returns pings and pongs, too. If the block fails, the socket is closed without a closing handshake, since a stranger
    need not answer it, or may send a thousand pings first. Data already sent to it still goes out.

    Raises:
        StrangerSentTooMuch: instead of the ConnectionError that closing the socket causes.
    """
    # aiohttp shows neither a dialled socket's transport nor whether it answers pings. Its own limit is that of a
    # message, and stays as it was set when the socket was opened.
    writer, answers_pings = socket._writer, socket._autoping  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if writer is None or writer.transport.is_closing():
        raise ConnectionResetError("the peer closed it at once")
    transport = writer.transport
    limit = _StrangerLimit(transport, most_bytes)
    socket._autoping = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    except BaseException as error:
        transport.close()
        if limit.is_exceeded and isinstance(error, ConnectionError):
            raise StrangerSentTooMuch(f"it sent more than {most_bytes} bytes in its hello") from None
        raise
    socket._autoping = answers_pings  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    limit.leave()


class _StrangerLimit(Interposed):
    """Counts the bytes that arrive, and passes them on up to a limit."""

    def __init__(self, transport: asyncio.Transport, most_bytes: int) -> None:
        super().__init__(transport)
        self.is_exceeded = False
        self._left = most_bytes

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.is_exceeded = True
            self._transport.abort()
        else:
            self._protocol.data_received(data)


class Pinger:
    """Pings the other end, and ends with an error when two election timeouts pass without a pong.

    It counts pings instead of time: after this process was frozen, pongs may be waiting to be read.
    """

    def __init__(self, socket: ClientWebSocketResponse, election_timeout_s: float) -> None:
        self._socket = socket
        self._pause_s = SILENCE_TIMEOUTS * election_timeout_s / PINGS
        self._unanswered = 0

    def answered(self) -> None:
        """A pong came."""
        self._unanswered = 0

    async def run(self) -> None:
        """Ping, until cancelled.

        Raises:
            ConnectionResetError: there was no pong for two election timeouts, or the socket is gone.
        """
        while self._unanswered < PINGS:
            self._unanswered += 1
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._socket.ping()
            except TimeoutError:
                continue  # The buffer of the transport is full.
            await asyncio.sleep(self._pause_s)
        raise ConnectionResetError("no pong for two election timeouts")
