"""Request bodies on their way in: what callers that are slow, or stuck, may cost this node.

A body is held in memory until its request is answered. All that is held at a time has a bound; where a new piece does
not fit, the caller is cut off that sent nothing for longest, unless all that still send do send. One that sends nothing
for `STUCK_S` is told so in any case.
"""

import asyncio
import time
from dataclasses import dataclass, field

from aiohttp import web

from ...errors import BodyTimeout, LimitExceeded, Overloaded
from .connection import cut

HELD_BYTES = 128 << 20
STUCK_S = 30.0
IDLE_S = 1.0  # A body that has grown since then is not cut off for another one.


@dataclass(eq=False, slots=True)
class _Body:
    request: web.Request
    size: int = 0
    complete: bool = False
    grew_at: float = field(default_factory=time.monotonic)


_BODY = web.RequestKey("body", _Body)


class Inflow:
    """The bodies of the requests that are not answered yet. One event loop."""

    def __init__(self, held_bytes: int = HELD_BYTES, stuck_s: float = STUCK_S, idle_s: float = IDLE_S) -> None:
        self._limit = held_bytes
        self._stuck_s = stuck_s
        self._idle_s = idle_s
        self._bodies: set[_Body] = set()
        self.held_bytes = 0

    async def read(self, request: web.Request, limit: int, what: str) -> bytes:
        """The request's whole body, which counts as held until `release`.

        Raises:
            LimitExceeded: it is longer than the limit; no more than that was read.
            Overloaded: too much is held already, and none of it is stuck.
            BodyTimeout: nothing more of it came for too long.
            ConnectionResetError: the caller is gone, or its room was needed.
        """
        if request.content_length is not None and request.content_length > limit:
            raise LimitExceeded(what, request.content_length, limit)
        body = request[_BODY] = _Body(request)
        self._bodies.add(body)
        pieces: list[bytes] = []
        while piece := await self._next_piece(request):
            if body.size + len(piece) > limit:
                raise LimitExceeded(what, body.size + len(piece), limit)
            self._hold(body, len(piece))
            pieces.append(piece)
        body.complete = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self, request: web.Request) -> None:
        """The request is answered."""
        if (body := request.get(_BODY)) is not None:
            del request[_BODY]  # The two hold each other.
            if body in self._bodies:
                self._forget(body)

    async def _next_piece(self, request: web.Request) -> bytes:
        if request.content.is_eof():  # All of it is here; most are so short.
            return await request.content.readany()
        try:
            async with asyncio.timeout(self._stuck_s):
                return await request.content.readany()
        except TimeoutError:
            raise BodyTimeout(round(self._stuck_s * 1000)) from None

    def _hold(self, body: _Body, size: int) -> None:
        if body not in self._bodies:
            raise ConnectionResetError("the caller was cut off: its room was needed")
        now = time.monotonic()
        body.grew_at = now
        while self.held_bytes + size > self._limit:
            coming = [other for other in self._bodies if not other.complete and other is not body]
            oldest = min(coming, key=lambda other: other.grew_at, default=None)
            if oldest is None or now - oldest.grew_at < self._idle_s:
                raise Overloaded()
            cut(oldest.request)
            self._forget(oldest)
        body.size += size
        self.held_bytes += size

    def _forget(self, body: _Body) -> None:
        self._bodies.remove(body)
        self.held_bytes -= body.size
