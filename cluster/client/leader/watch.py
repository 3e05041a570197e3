"""An idle call to a server that does not lead: it tells a client at once when another node leads.

A leader that falls silent tells nobody: a lost machine sends no reset. The others elect another, and then one of them
answers a long poll of `GET /leader`. The next server is asked if this one fails, leads itself, or is doubted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypedDict

from ..attempts import NothingWritten, expire, log
from ..documents import document_of
from ..errors import ClientError
from ..transport import Transport

POLL_S = 30.0
A_DAY_S = 86_400.0
AGAIN_S = 4.0  # After all of them failed; twice as long each time, up to POLL_S, until one tells.


class LeaderWatch:
    """Asks one server at a time, until `run` is cancelled."""

    def __init__(self, transport: Transport, known: Callable[[], int], told: Callable[[int], None]) -> None:
        """`told` gets the epoch of a leader that a server hears, if it is above `known`."""
        self._transport = transport
        self._known = known
        self._told = told
        self._asking: asyncio.Timeout | None = None
        self._again_s = AGAIN_S

    def doubt(self) -> None:
        """An answer is missing: ask the next server, since this one may be as silent as the leader."""
        expire(self._asking)

    async def run(self) -> None:
        """Ask those that are not known to lead, in turn."""
        servers = self._transport.servers
        try:
            while True:
                others = [server for server in servers.in_order() if server != servers.leader]
                doubted = [await self._until_doubt(self._ask(server)) for server in others]
                if not any(doubted):
                    wait_s, self._again_s = self._again_s, min(2 * self._again_s, POLL_S)
                    await self._until_doubt(asyncio.sleep(wait_s if others else A_DAY_S))
        finally:
            self._asking = None

    async def _until_doubt(self, waiting: Awaitable[None]) -> bool:
        """Wait; whether a doubt ended it."""
        try:
            async with asyncio.timeout(None) as self._asking:
                await waiting
        except TimeoutError:
            return True
        return False

    async def _ask(self, server: str) -> None:
        """Ask a server again and again; return if it leads, or cannot tell."""
        try:
            while await self._tells(server):
                self._again_s = AGAIN_S
        except ClientError as error:
            log.debug("%s does not tell who leads: %.300s", server, error)

    async def _tells(self, server: str) -> bool:
        """Ask a server once; False if it leads. Raises ClientError."""
        known, asked_at = self._known(), time.monotonic()
        reply = await self._transport.ask(server, f"/leader?epoch={known}&wait_ms={POLL_S * 1000:.0f}", POLL_S)
        heard = document_of(reply, _Leader)
        try:
            is_news = heard["leader"] is not None and heard["epoch"] > known
            leads = heard["leader"] == heard["node_id"]
        except (KeyError, TypeError) as error:
            raise ClientError(f"it is no answer to GET /leader: {error!r}") from None
        if is_news:
            self._transport.servers.learn_leader(reply.headers.get("Quire-Leader"))
            self._told(heard["epoch"])
        elif time.monotonic() - asked_at < POLL_S / 2:
            raise NothingWritten("it does not wait")
        return not leads


class _Leader(TypedDict):
    node_id: str
    leader: str | None
    epoch: int
