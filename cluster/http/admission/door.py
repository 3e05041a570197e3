"""Connections: how many a node takes, and what the next one is told.

Peers come by the same port, and a node that no peer reaches is lost. So past the limit some connections are still
taken: their calls are refused unless they are a peer's. Past that reserve one is refused before it says anything.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web

from quire.replication.net.hello import PEER_PATHS

from ...errors import Overloaded
from ..problems import problem_of
from .connection import Connection

CONNECTIONS_LIMIT = 10_000
PEER_RESERVE = 256

Protocols = Callable[[], asyncio.Protocol]


class Door:
    """Takes the connections of one node. One event loop."""

    def __init__(self, limit: int = CONNECTIONS_LIMIT, reserve: int = PEER_RESERVE) -> None:
        self.limit = limit
        self._reserve = reserve
        self._surplus: set[Connection] = set()
        self._server: web.Server | None = None
        self._coming: set[Connection] = set()  # Taken, but not yet told so: many come in one turn of the loop.

    def __len__(self) -> int:
        return len(self._coming) + (0 if self._server is None else len(self._server.connections))

    def protocols(self, server: web.Server) -> Protocols:
        """What to give `create_server`: a protocol for each connection that comes in."""
        self._server = server
        return self._take

    def _take(self) -> asyncio.Protocol:
        if self._server is None:
            raise RuntimeError("a door without a server")
        taken = len(self)
        if taken >= self.limit + self._reserve:
            return _Refusal()
        handler = Connection(self._server)
        self._coming.add(handler)
        asyncio.get_running_loop().call_soon(self._coming.discard, handler)
        self._surplus = {known for known in self._surplus if known.transport is not None or known in self._coming}
        if taken >= self.limit:
            self._surplus.add(handler)
        return handler

    def refuses(self, request: web.Request) -> bool:
        """Whether the request came by a connection above the limit, and is no peer's."""
        return bool(self._surplus) and request.protocol in self._surplus and request.path not in PEER_PATHS


class _Refusal(asyncio.Protocol):
    """Says that there is no room, and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            refused = problem_of(Overloaded(), "")
            body = refused.body if isinstance(refused.body, bytes) else b""
            head = [
                f"HTTP/1.1 {refused.status} {refused.reason}",
                f"Content-Type: {refused.content_type}",
                f"Content-Length: {len(body)}",
                f"Retry-After: {refused.headers['Retry-After']}",
                "Connection: close",
            ]
            transport.write("\r\n".join([*head, "\r\n"]).encode() + body)
        transport.close()
