"""Long answers on their way out: what readers that are slow, or stuck, may cost this node.

An answer is held in memory until the caller has taken it. All that is held at a time has a bound; where a new answer
does not fit, the one that moved least recently is cut off, unless all of them move. One that does not move at all for
`STUCK_S` is cut off in any case. The caller sees its connection break, asks again from where it was, and has lost
nothing.
"""

import asyncio
import time
from dataclasses import dataclass, field

from aiohttp import web

from ...errors import Overloaded
from .connection import cut

HELD_BYTES = 64 << 20
PIECE_BYTES = 1 << 16  # What the socket's buffer takes anyway; shorter answers are not followed on their way.
STUCK_S = 30.0
IDLE_S = 1.0  # An answer that has moved since then is not cut off for another one.


@dataclass(eq=False, slots=True)
class _Held:
    request: web.Request
    size: int
    moved_at: float = field(default_factory=time.monotonic)


class Outflow:
    """The long answers that are on their way. One event loop."""

    def __init__(self, held_bytes: int = HELD_BYTES, stuck_s: float = STUCK_S, idle_s: float = IDLE_S) -> None:
        self._limit = held_bytes
        self._stuck_s = stuck_s
        self._idle_s = idle_s
        self._answers: set[_Held] = set()
        self.held_bytes = 0

    async def send(
        self, request: web.Request, body: bytes, content_type: str, headers: dict[str, str]
    ) -> web.StreamResponse:
        """Send the body at the caller's pace.

        Raises:
            Overloaded: too much is held already, and all of it moves.
            ConnectionResetError: the caller took nothing for too long, or its room was needed.
        """
        if len(body) <= PIECE_BYTES or request.method == "HEAD":
            return web.Response(body=body, content_type=content_type, headers=headers)
        held = self._hold(request, len(body))
        try:
            response = web.StreamResponse(headers=headers)
            response.content_type = content_type
            response.content_length = len(body)
            await response.prepare(request)
            view = memoryview(body)
            for start in range(0, len(body), PIECE_BYTES):
                async with asyncio.timeout(self._stuck_s):
                    await response.write(view[start : start + PIECE_BYTES])
                held.moved_at = time.monotonic()
            async with asyncio.timeout(self._stuck_s):
                await response.write_eof()
        except TimeoutError:
            cut(held.request)
            raise ConnectionResetError(f"the caller took nothing for {self._stuck_s:g} s") from None
        finally:
            self._release(held)
        return response

    def _hold(self, request: web.Request, size: int) -> _Held:
        while self._answers and self.held_bytes + size > self._limit:
            oldest = min(self._answers, key=lambda held: held.moved_at)
            if time.monotonic() - oldest.moved_at < self._idle_s:
                raise Overloaded()
            cut(oldest.request)
            self._release(oldest)
        held = _Held(request, size)
        self._answers.add(held)
        self.held_bytes += size
        return held

    def _release(self, held: _Held) -> None:
        if held in self._answers:
            self._answers.remove(held)
            self.held_bytes -= held.size
