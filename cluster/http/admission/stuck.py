"""A caller of a stream that takes nothing of what is sent: it is cut off, for an orderly end would wait for it, too."""

import asyncio
from collections.abc import Collection

from aiohttp import web

from .connection import cut

STUCK_S = 30.0
LOOKS = 10  # In STUCK_S. Bytes that flow leave a buffer at the same size once by chance, not as often as this.
CLOSE_S = 5.0  # For the closing handshake.


async def first_done(request: web.Request, tasks: Collection["asyncio.Task[object]"]) -> bool:
    """Whether one of the tasks is done. If not, the caller took nothing for `STUCK_S`, and its connection is cut."""
    unsent, looks = 0, 0
    while looks < LOOKS:
        done, _ = await asyncio.wait(tasks, timeout=STUCK_S / LOOKS, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return True
        before, unsent = unsent, unsent_bytes(request)
        looks = looks + 1 if unsent and unsent == before else 0
    cut(request)
    return False


async def close(request: web.Request, socket: web.WebSocketResponse) -> None:
    """End the connection, in order as far as the caller plays along."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    except TimeoutError:
        cut(request)


def unsent_bytes(request: web.Request) -> int:
    """What the caller has not taken, beyond what the kernel holds for it."""
    return 0 if request.transport is None else request.transport.get_write_buffer_size()
