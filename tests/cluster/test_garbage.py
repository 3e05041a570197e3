"""What a connection that breaks leaves behind: nothing that only the garbage collector can free.

A node with a large state freezes what exists now and then (`serve/collector.py`): a cycle of references that is frozen
and becomes garbage later stays until the process ends.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator
from types import FrameType

import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, web

from quire.cluster.http.admission.connections import Connection
from quire.replication.address import host_and_port
from quire.replication.net.hello import PEER_PATHS
from tests.cluster.running import RunningCluster, running_cluster
from tests.garbage import garbage
from tests.replication.strangers import BAD_HELLOS, opened, opening, rest

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 60.0
BROKEN = 10
TURNS = 100
"""Of the event loop, in which the handlers of lost connections end: each needs a few."""
LASTING = (Connection, web.BaseRequest, web.StreamResponse, ClientWebSocketResponse, BaseException, FrameType)
POST = (
    b"POST /commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    b"Expect: 100-continue\r\n\r\n"  # Its answer tells that the node waits for the body.
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("garbage"), 2, election_timeout_ms=30_000) as running:
        yield running


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


@pytest.mark.parametrize("node_id", ["n1", "n2"])
@pytest.mark.parametrize("kind", ["half a body", "stream"])
async def test_a_connection_that_breaks_leaves_nothing_to_the_garbage_collector(
    cluster: RunningCluster, kind: str, node_id: str
) -> None:
    session = (await cluster.ask("n1", "POST", "/sessions", b"{}", "application/json")).document["session"]
    sent = POST + b'{"comm' if kind == "half a body" else opening(f"/commands/stream?session={session}")
    await send_and_break(cluster, node_id, sent, 1)  # What is made once only.

    with garbage() as found:
        await send_and_break(cluster, node_id, sent, BROKEN)

    kept = [each for each in found if isinstance(each, LASTING)]
    assert kept == []


def open_or_timed() -> int:
    """How many WebSockets something refers to, which may be a timer. Garbage of earlier tests is freed first."""
    gc.collect()
    return sum(isinstance(each, web.WebSocketResponse) for each in gc.get_objects())


REFUSED = {
    "no route": b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no route for a WebSocket": opening("/nowhere"),
    "no such method": b"PUT /peer HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no WebSocket": b"GET /peer HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no version": opening("/peer").replace(b"Version: 13", b"Version: 99"),
    "no stream": opening("/commands/stream?session=0"),
    "no session": opening("/commands/stream?session=77"),
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "an unknown header": b"GET /status HTTP/1.1\r\nHost: localhost\r\nQuire-Unknown: 1\r\n\r\n",
    "no JSON": POST.replace(b"100\r\nExpect: 100-continue", b"1") + b"{",
    "another host": b"GET /status HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
    "another origin": b"GET /status HTTP/1.1\r\nHost: localhost\r\nOrigin: http://elsewhere.example\r\n\r\n",
    "an origin at a peer's path": opening("/peer", "Origin: http://localhost\r\n"),
}
"""Requests that are refused, by what they lack."""


async def test_a_refused_request_leaves_nothing_to_the_garbage_collector(cluster: RunningCluster) -> None:
    for data in REFUSED.values():
        await send_and_break(cluster, "n1", data, 1)
    with garbage() as found:
        for data in REFUSED.values():
            await send_and_break(cluster, "n1", data, BROKEN)
    assert [each for each in found if isinstance(each, LASTING)] == []


@pytest.mark.full
@pytest.mark.parametrize("path", sorted(PEER_PATHS))
async def test_a_refused_hello_leaves_nothing_to_the_garbage_collector(cluster: RunningCluster, path: str) -> None:
    async def refused() -> None:
        before = connections(cluster)
        for bad in BAD_HELLOS.values():
            async with opened(cluster.address("n1"), path) as (reader, writer, _):
                writer.write(bad.data())
                if bad.is_ended:
                    await rest(reader)
        async with asyncio.timeout(DEADLINE_S):
            while connections(cluster) > before:  # noqa: ASYNC110  # Nothing tells.
                await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    await refused()
    before = open_or_timed()
    with garbage() as found:
        await refused()
    assert [each for each in found if isinstance(each, LASTING)] == []
    assert open_or_timed() == before
