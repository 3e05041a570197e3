"""What the connections between nodes share: two coroutines on one of them, and how its silence is noticed."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_USER_TIMEOUT
from typing import Any

from aiohttp import ClientWebSocketResponse, WSMessage, web

ELECTION_TIMEOUT_S = 1.0
"""Of a node that is not formed yet, and so has no clock of the protocol."""
TCP_SILENCE_TIMEOUTS = 3
PINGS = 4
SILENCE_TIMEOUTS = 2
TURN_S = 0.005


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run these until one of them ends, however it ends; cancel the others, and raise what it raised.

    A `TaskGroup` does not do: it goes on without a task that returned or was cancelled; and it cancels the task that
    holds it, which then, if its block ended by itself, counts as being cancelled from then on (Python 3.11).
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
    tasks.clear()  # A task holds its error, that the stack frames, and those what was sent last.
    ended.clear()
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()


async def end_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel these, and return when they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def give_up_when_silent(socket: ClientWebSocketResponse | web.Request, election_timeout_s: float) -> None:
    """Have the kernel end a connection on which nothing is acknowledged, or answered while it is idle.

    No rule depends on it: pings and the core's own rule for streams do the same, later.
    """
    if isinstance(socket, web.Request):
        connection = None if socket.transport is None else socket.transport.get_extra_info("socket")
    else:
        connection = socket.get_extra_info("socket")
    if connection is None:
        return
    silence_s = TCP_SILENCE_TIMEOUTS * election_timeout_s
    with suppress(OSError):  # The connection is closed already, or a limit of the kernel is exceeded.
        connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, math.ceil(silence_s))
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, math.ceil(election_timeout_s))
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, TCP_SILENCE_TIMEOUTS)
        connection.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, math.ceil(silence_s * 1000))


async def read_in_turns(
    socket: ClientWebSocketResponse | web.WebSocketResponse,
    take: Callable[[WSMessage], object],
    clock: Callable[[], float] | None = None,
) -> None:
    """Pass on what arrives until the socket closes. After TURN_S of work on it, the loop gets its turn.

    A process that was paused, or slow, finds some thousand messages in the socket's buffer, and reading them waits for
    nothing.
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


class Pinger:
    """Pings the other end, and ends with an error when two election timeouts pass without a pong.

    It counts pings, not time: after this process was frozen, pongs wait to be read.
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
            ConnectionResetError: there was no pong for two election timeouts, or the connection is gone.
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
