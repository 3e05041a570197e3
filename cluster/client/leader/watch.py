"""An idle call to a server that does not lead: it tells a client at once when another node leads.

A leader that falls silent tells nobody: a lost machine sends no reset. The others elect another, and then one of them
answers a long poll of `GET /leader`. The next server is asked if this one fails, leads itself, or is doubted.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypedDict

from ..attempts import NothingWritten, expire, log
from ..documents import document_of
from ..errors import ClientError
from ..transport import Transport

POLL_S = 30.0
AGAIN_S = 4.0  # After all of them failed.


class LeaderWatch:
    """Asks one server at a time, until `run` is cancelled."""

    def __init__(self, transport: Transport, known: Callable[[], int], told: Callable[[int], None]) -> None:
        """`told` gets the epoch of a leader that a server hears, if it is above `known`."""
        self._transport = transport
        self._known = known
        self._told = told
        self._asking: asyncio.Timeout | None = None

    def doubt(self) -> None:
        """An answer is missing: ask the next server, since this one may be as silent as the leader."""
        expire(self._asking)

    async def run(self) -> None:
        """Ask those that are not known to lead, in turn."""
        servers = self._transport.servers
        try:
            while True:
                others = [server for server in servers.in_order() if server != servers.leader]
                told = [await self._asked(server) for server in others]
                if not any(told):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None) as self._asking:
                            await asyncio.sleep(AGAIN_S)
        finally:
            self._asking = None

    async def _asked(self, server: str) -> bool:
        """Ask a server until it is doubted; False if it cannot tell."""
        try:
            async with asyncio.timeout(None) as self._asking:
                await self._ask(server)
        except TimeoutError:
            return True
        except ClientError as error:
            log.debug("%s does not tell who leads: %.300s", server, error)
        return False

    async def _ask(self, server: str) -> None:
        """Ask a server again and again; return if it leads. Raises ClientError."""
        wait_s = 0.0
        while True:
            known, asked_at = self._known(), time.monotonic()
            path = f"/leader?epoch={known}&wait_ms={wait_s * 1000:.0f}"
            heard = document_of(await self._transport.ask(server, path, wait_s), _Leader)
            is_news = heard["leader"] is not None and heard["epoch"] > known
            if is_news:
                self._told(heard["epoch"])
            if heard["leader"] == heard["node_id"]:
                return
            if not is_news and time.monotonic() - asked_at < wait_s / 2:
                raise NothingWritten("it does not wait")
            wait_s = POLL_S


class _Leader(TypedDict):
    node_id: str
    leader: str | None
    epoch: int
