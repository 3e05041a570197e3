"""What a connection that breaks leaves behind: nothing that only the garbage collector can free.

A node with a large state freezes what exists now and then (`serve/collector.py`): a cycle of references that is frozen
and becomes garbage later stays until the process ends.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, web

from quire.cluster.http.admission.connections import Connection
from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 60.0
BROKEN = 10
LASTING = (Connection, web.BaseRequest, ClientWebSocketResponse)
POST = (
    b"POST /commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    b"Expect: 100-continue\r\n\r\n"  # Its answer tells that the node waits for the body.
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("garbage"), 2, election_timeout_ms=30_000) as running:
        yield running


@contextmanager
def garbage() -> Generator[list[Any], None, None]:
    """Afterwards, what a collection found that had not been freed before."""
    gc.collect()
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def connections(cluster: RunningCluster) -> int:
    """How many connections the nodes have."""
    servers = [node.runner.server for node in cluster.nodes.values()]
    return sum(len(server.connections) for server in servers if server is not None)


async def send_and_break(cluster: RunningCluster, node_id: str, head: bytes, times: int) -> None:
    """Each time send something, and break the connection when the node has begun to answer. All are gone then."""
    before = connections(cluster)
    for _ in range(times):
        reader, writer = await asyncio.open_connection(*host_and_port(cluster.address(node_id)))
        writer.write(head)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
    async with asyncio.timeout(DEADLINE_S):
        while connections(cluster) > before:  # noqa: ASYNC110  # Nothing tells.
            await asyncio.sleep(0)


def opening(session: int) -> bytes:
    """Of a stream."""
    return (
        f"GET /commands/stream?session={session} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("node_id", ["n1", "n2"])
@pytest.mark.parametrize("kind", ["half a body", "stream"])
async def test_a_connection_that_breaks_leaves_nothing_to_the_garbage_collector(
    cluster: RunningCluster, kind: str, node_id: str
) -> None:
    session = (await cluster.ask("n1", "POST", "/sessions", b"{}", "application/json")).document["session"]
    sent = POST + b'{"comm' if kind == "half a body" else opening(session)
    await send_and_break(cluster, node_id, sent, 1)  # What is made once only.

    with garbage() as found:
        await send_and_break(cluster, node_id, sent, BROKEN)

    kept = [each for each in found if isinstance(each, LASTING)]
    assert kept == []
