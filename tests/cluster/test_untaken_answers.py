"""Answers of every route, of which their callers take nothing: what they cost a leader and a follower."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import orjson
import pytest
import pytest_asyncio

from quire.cluster.http.admission import slow_callers
from quire.cluster.http.admission.admission import ADMISSION
from quire.cluster.http.admission.authorization import Route
from quire.cluster.http.admission.slow_callers import ResponseBodyLimit
from quire.cluster.http.app import ROUTES
from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, applied_index, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
JSON = "application/json"
DEADLINE_S = 60.0
LONG = 9 << 20  # More than the sockets' buffers hold.
BODIES = {
    "/commands": b'{"commands": [1]}',
    "/sessions": b"{}",
    "/query": b'{"request": 1}',
    "/records": b"1",
    "/admin/transfer": b"{}",
    "/members": b"{}",
    "/admin/expire": b"{}",
}
STREAM = "/commands/stream"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    folder = tmp_path_factory.mktemp("untaken")
    async with running_cluster(
        folder, machine="tests.cluster.machines:Wide", election_timeout_ms=5000, answer_bytes=32 << 20
    ) as running:
        until = (await running.commands("n1", 1))["index"] + 1
        async with asyncio.timeout(DEADLINE_S):
            while any(applied_index(each.node) < until for each in running.nodes.values()):  # So that all have records.
                await running.ask("n1", "GET", "/healthz")
        yield running


def responses_of(cluster: RunningCluster, at: str) -> ResponseBodyLimit:
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[ADMISSION].response_bodies


def stalled(cluster: RunningCluster, at: str, path: str, body: bytes, opened: ExitStack) -> None:
    """A caller that takes nothing of its answer."""
    caller = opened.enter_context(socket.socket())
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect(host_and_port(cluster.address(at)))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    caller.sendall(head.encode() + body)


async def held(cluster: RunningCluster, at: str, *, above: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while responses_of(cluster, at).held_bytes <= above:
            await cluster.ask(at, "GET", "/healthz")


async def nothing_held(cluster: RunningCluster) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(responses_of(cluster, at).held_bytes for at in cluster.nodes):
            await cluster.ask("n1", "GET", "/healthz")


@EVERYWHERE
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.path != STREAM], ids=lambda route: f"{route.method} {route.path}"
)
async def test_every_route_s_long_answer_needs_room(
    cluster: RunningCluster, at: str, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_callers, "PIECE_BYTES", 10)  # So that every answer is long.
    responses = responses_of(cluster, at)
    monkeypatch.setattr(responses, "_limit", 0)
    monkeypatch.setattr(responses, "held_bytes", 1)
    path = route.path.format(index=1, chunk=0, session=1, node="n9", name="a")

    reply = await cluster.ask(at, route.method, path, BODIES.get(route.path), JSON if route.method == "POST" else None)

    executed = {("/commands", "POST"), ("/sessions", "POST"), ("/records", "POST")}
    if (route.path, route.method) in executed:
        assert (reply.status, reply.problem) == (504, "outcome-unknown")
    else:
        assert (reply.status, reply.problem) in [(429, "overloaded"), (504, "outcome-unknown")]
        assert reply.status == 429 or route.method != "GET"


@EVERYWHERE
async def test_long_results_of_callers_that_take_nothing_count_and_end(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = responses_of(cluster, at)
    monkeypatch.setattr(responses, "_limit", 2 * LONG + 1000)
    monkeypatch.setattr(responses, "_idle_s", 0.0)
    body = orjson.dumps({"commands": [LONG]})
    with ExitStack() as opened:
        for number in range(5):
            stalled(cluster, at, "/commands", body, opened)
            await held(cluster, at, above=min(number, 1) * LONG)

            assert (await cluster.commands(at, 1))["results"] == ["x"]
            assert responses.held_bytes <= 2 * LONG + 1000
    for responses in (responses_of(cluster, node_id) for node_id in cluster.nodes):
        monkeypatch.setattr(responses, "_stall_timeout_s", 0.3)
    await nothing_held(cluster)
