"""Clients of /commands/stream that are slow, stalled, or too many: what they cost a leader and a follower."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession, ClientWebSocketResponse, TCPConnector, WSMsgType

from quire.cluster.http.admission import slow_callers
from quire.cluster.http.admission.streams import StreamLimit
from quire.cluster.http.api import API
from quire.cluster.http.forwarding import CONNECTION_LIMIT
from quire.cluster.http.request import FORWARDED
from quire.cluster.http.routes.stream import WINDOW_BYTES
from quire.log import pack, unpack
from quire.sm import SESSION_WINDOW
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
DEADLINE_S = 60.0
COMMANDS, RESULT_BYTES, MESSAGES = 16, 1 << 12, 3200  # The answers are 200 MiB, if a node makes them all.
WINDOW_RESULTS_BYTES = SESSION_WINDOW * RESULT_BYTES  # Accepted before the first answer was left untaken.
SOCKET_BUFFERS_BYTES = 32 << 20  # More than the kernel buffers, both ways, on both hops.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    machine = "tests.cluster.machines:Wide"
    async with running_cluster(
        tmp_path_factory.mktemp("slow_streams"), machine=machine, election_timeout_ms=5000, answer_bytes=16 << 20
    ) as running:
        yield running


def streams_of(cluster: RunningCluster, at: str) -> StreamLimit:
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[API].streams


async def opened(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "POST", "/sessions", b"{}", "application/json")).document["session"])


async def highest_index(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])


async def stream(cluster: RunningCluster, at: str) -> ClientWebSocketResponse:
    url = f"http://{cluster.address(at)}/commands/stream?session={await opened(cluster)}"
    return await cluster.session.ws_connect(url, compress=0, max_msg_size=0)


async def said(socket: ClientWebSocketResponse) -> Any:
    message = await socket.receive(timeout=DEADLINE_S)
    assert message.type is WSMsgType.BINARY, message
    return unpack(message.data)


async def none_open(cluster: RunningCluster) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(len(streams_of(cluster, at)) for at in cluster.nodes):
            await cluster.ask("n1", "GET", "/healthz")


async def flooded_by_a_silent_caller(cluster: RunningCluster, at: str) -> int:
    """The bytes of the answers that the leader made for it, while another caller was served."""
    await none_open(cluster)
    before = await highest_index(cluster)
    silent, lively = await stream(cluster, at), await stream(cluster, at)

    async def flood() -> None:
        for number in range(MESSAGES):
            await silent.send_bytes(pack([1 + COMMANDS * number, [RESULT_BYTES] * COMMANDS]))

    flooding = asyncio.create_task(flood())
    for sequence in range(1, 31):
        await lively.send_bytes(pack([sequence, [1]]))
        assert (await said(lively))[3] == ["x"]
    await lively.close()
    with suppress(ConnectionError):
        await flooding
    await none_open(cluster)
    return (await highest_index(cluster) - before) * RESULT_BYTES


@pytest.mark.full
@EVERYWHERE
async def test_a_caller_that_takes_no_answers_holds_bounded_memory_and_is_cut_off(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 1.0)

    taken = await flooded_by_a_silent_caller(cluster, at)

    assert taken <= WINDOW_BYTES + WINDOW_RESULTS_BYTES + SOCKET_BUFFERS_BYTES


@pytest.mark.full
async def test_a_follower_that_cuts_a_silent_caller_off_has_the_leader_answer_nothing_more(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 1.0)
    unsent_bytes = slow_callers.unsent_bytes
    monkeypatch.setattr(
        slow_callers, "unsent_bytes", lambda request: FORWARDED not in request.headers and unsent_bytes(request)
    )

    taken = await flooded_by_a_silent_caller(cluster, "n3")

    assert taken <= WINDOW_BYTES + WINDOW_RESULTS_BYTES + SOCKET_BUFFERS_BYTES


@pytest.mark.full
@EVERYWHERE
async def test_a_slow_caller_that_takes_something_now_and_then_is_not_cut_off(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 0.2)
    slow = await stream(cluster, at)
    for number in range(20):
        await slow.send_bytes(pack([1 + COMMANDS * number, [RESULT_BYTES] * COMMANDS]))

    for number in range(20):
        assert (await said(slow))[0] == 1 + COMMANDS * number
        await cluster.ask(at, "GET", f"/records?from={await highest_index(cluster)}&wait_ms=50")
    await slow.close()


@EVERYWHERE
async def test_an_answer_is_as_long_as_its_results_are(cluster: RunningCluster, at: str) -> None:
    socket = await stream(cluster, at)
    await socket.send_bytes(pack([1, [9 << 20]]))

    assert len((await said(socket))[3][0]) == 9 << 20
    await socket.close()


@EVERYWHERE
async def test_as_many_streams_as_the_limit_are_open_and_one_more_is_overloaded(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await none_open(cluster)
    monkeypatch.setattr(streams_of(cluster, at), "_limit", 2)
    async with AsyncExitStack() as open_streams:
        for _ in range(2):
            await open_streams.enter_async_context(await stream(cluster, at))

        refused = await cluster.ask(at, "GET", f"/commands/stream?session={await opened(cluster)}")
    await none_open(cluster)
    socket = await stream(cluster, at)
    await socket.close()

    assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (429, "overloaded", "1")


async def test_streams_that_a_follower_carries_leave_room_for_its_other_requests(
    cluster: RunningCluster,
) -> None:
    url = f"http://{cluster.address('n3')}/commands/stream?session={await opened(cluster)}"
    async with ClientSession(connector=TCPConnector(limit=0)) as session, AsyncExitStack() as open_streams:
        for _ in range(CONNECTION_LIMIT + 1):
            await open_streams.enter_async_context(await session.ws_connect(url))

        assert (await cluster.commands("n3", 1))["results"] == ["x"]
    await none_open(cluster)
