"""Real sockets on this machine for the asyncio adapters: a server for any routes, and waiting with a deadline."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

from quire.replication.net.hello import NO_CLUSTER, PeerInfo
from quire.replication.net.sockets import peer_session
from quire.replication.net.trust import Trust

HOST = "127.0.0.1"
DEADLINE_S = 30.0
CLUSTER_ID = bytes(range(16))

ANYBODY = Trust((), lambda _: True)
"""Whoever calls from this machine is believed to be a member."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def trusting(secret: bytes | None) -> Trust:
    """What a dialler without certificates needs: its secret, if it has one."""
    return Trust(() if secret is None else (secret,), lambda _: False)


def who(node_id: str, *, cluster_id: bytes = CLUSTER_ID, incarnation: int = 1) -> PeerInfo:
    """What a node says of itself in a hello."""
    return PeerInfo(cluster_id, node_id, node_id.encode().ljust(16, b"\0"), incarnation, f"{HOST}:1")


def unformatted(node_id: str) -> PeerInfo:
    """An unformatted node."""
    return who(node_id, cluster_id=NO_CLUSTER)


async def until(holds: Callable[[], Any], *, within_s: float = DEADLINE_S) -> None:
    """Let others run until something holds.

    Raises:
        AssertionError: it does not within the deadline.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s")
        await asyncio.sleep(0)


async def turns(number: int) -> None:
    """Let all ready tasks run this many times."""
    for _ in range(number):
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(routes: dict[str, Handler]) -> AsyncGenerator[str]:
    """HOST:PORT of a server for these paths."""
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        yield f"{HOST}:{runner.addresses[0][1]}"
    finally:
        await asyncio.wait_for(runner.cleanup(), DEADLINE_S)


@asynccontextmanager
async def calling() -> AsyncGenerator[ClientSession]:
    """An HTTP session for dialling."""
    async with peer_session() as session:
        yield session
