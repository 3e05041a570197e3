"""One server after the other: the next has its turn while those before it are silent, and they go on.

Time alone does not tell a silent server from one that is far away, or from a busy program's own loop. So none is given
up because it is late: it is avoided only once a server that had its turn later was heard before it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import NamedTuple, Self, TypeVar, cast

from quire.replication.names import Connector

from ..attempts import SILENT, NothingWritten, failed_at
from ..errors import ClientError
from .servers import Servers

Result = TypeVar("Result")

SILENT_S = 0.3  # After so long without an answer a server is pinged.
PING_S = 0.3  # After so long without an answer to that the next one has its turn.
DIALS = 2  # Both are as long as so many dials, if those of lately took longer.
HEARD_FOR_S = 10.0  # What is sent once goes to a server that was heard so lately, or answers a ping.


class _Turn(NamedTuple):
    task: asyncio.Task[object]
    began_at: float


class Turns:
    """The turns of a call, whose rounds share it: who is silent in one may answer in the next."""

    def __init__(
        self, servers: Servers, connector: Connector, ping: Callable[[str], Coroutine[object, object, None]]
    ) -> None:
        """`ping` returns once a server is heard, and raises a ClientError if it is not there."""
        self._servers = servers
        self._connector = connector
        self._ping = ping
        self._open: dict[str, _Turn] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        tasks = [turn.task for turn in self._open.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def failures(self) -> list[NothingWritten]:
        """Of the servers that have not answered yet."""
        return [failed_at(server, SILENT) for server in self._open]

    async def each(
        self, order: list[str], send: Callable[[str], Coroutine[object, object, Result]], heard_for_s: float | None
    ) -> AsyncGenerator[tuple[str, Awaitable[Result]]]:
        """Each server of `order`, which may grow meanwhile, with the outcome of `send`, as soon as it is known.

        With `heard_for_s` nothing is sent twice: the outcome is sent for when it is awaited, to a server that was heard
        so lately or answers a ping. The generator ends when all have failed, or some have and the others are silent.
        An avoided server gets no turn if another one served meanwhile.
        """
        round_at = last_at = answered_at = time.monotonic()
        position, last, patience_s, some_done = 0, None, None, False
        try:
            while True:
                if last not in self._open:
                    position, patience_s = self._next(order, position, round_at), None
                    last, last_at = (order[position] if position < len(order) else None), time.monotonic()
                    if last is not None:
                        position += 1
                        if len(order) == 1 or self._was_heard(last, heard_for_s):
                            some_done, answered_at = True, last_at
                            yield last, send(last)
                            continue
                        patience_s = self._begin(last, send, pings_first=heard_for_s is not None)
                    elif some_done or not self._open:
                        return
                done = await self._done(patience_s)
                if done is not None:
                    server, turn = done
                    some_done, answered_at = True, turn.began_at
                    yield server, _outcome(turn.task, server, None if heard_for_s is None else send)
                else:  # It is slow, or silent: then the next one has its turn.
                    patience_s, last = None, last if last and self._servers.heard_since(last, last_at) else None
        except GeneratorExit:
            self._avoid_those_before(answered_at)
            raise

    def _next(self, order: list[str], position: int, round_at: float) -> int:
        """The position from this one on of a server that is to have a turn."""
        while position < len(order) and (
            order[position] in self._open
            or (self._servers.is_avoided(order[position]) and self._servers.served_at > round_at)
        ):
            position += 1
        return position

    def _was_heard(self, server: str, heard_for_s: float | None) -> bool:
        return heard_for_s is not None and self._servers.heard_since(server, time.monotonic() - heard_for_s)

    def _begin(
        self, server: str, send: Callable[[str], Coroutine[object, object, Result]], *, pings_first: bool
    ) -> float:
        """Begin a server's turn; return after how many seconds it is silent."""
        dials_s = DIALS * self._connector.took_s
        unpinged_s = 0.0 if pings_first else max(SILENT_S, dials_s)
        beginning: Coroutine[object, object, object]
        beginning = self._ping(server) if pings_first else self._pinging(server, send, unpinged_s)
        self._open[server] = _Turn(asyncio.create_task(beginning, name=f"turn of {server}"), time.monotonic())
        return unpinged_s + max(PING_S, dials_s)

    async def _pinging(
        self, server: str, send: Callable[[str], Coroutine[object, object, Result]], unpinged_s: float
    ) -> Result:
        """The result of `send`; a ping tells meanwhile whether the server is only slow."""
        sent_at, pings = time.monotonic(), list[asyncio.Task[None]]()

        async def ping() -> None:
            if not self._servers.heard_since(server, sent_at):
                with suppress(ClientError):
                    await self._ping(server)

        timer = asyncio.get_running_loop().call_later(
            unpinged_s, lambda: pings.append(asyncio.create_task(ping(), name=f"ping of {server}"))
        )
        try:
            return await send(server)
        finally:
            timer.cancel()
            for each in pings:
                each.cancel()

    async def _done(self, patience_s: float | None) -> tuple[str, _Turn] | None:
        """A turn that is done, within that time; of several the one that began first."""
        tasks = [turn.task for turn in self._open.values()]
        await asyncio.wait(tasks, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        done = next((server for server, turn in self._open.items() if turn.task.done()), None)
        return None if done is None else (done, self._open.pop(done))

    def _avoid_those_before(self, answered_at: float) -> None:
        for server, turn in self._open.items():
            if turn.began_at < answered_at and not self._servers.heard_since(server, turn.began_at):
                self._servers.lost(server, silent=True)


async def _outcome(
    task: asyncio.Task[object], server: str, send: Callable[[str], Coroutine[object, object, Result]] | None
) -> Result:
    result = await task
    return cast("Result", result) if send is None else await send(server)
