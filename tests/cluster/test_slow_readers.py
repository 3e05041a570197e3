"""Readers of long responses that are slow, or take nothing: what they cost a leader and a follower."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from quire.cluster.http.admission.admission import ADMISSION
from quire.cluster.http.admission.slow_callers import ResponseBodyLimit
from quire.log import pack
from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON, NDJSON, RAW_FRAMES = "application/json", "application/x-ndjson", "application/vnd.quire.frames"
EVERYWHERE = pytest.mark.parametrize("at", ["n3"])
ENCODED = pytest.mark.parametrize("accept", [NDJSON, RAW_FRAMES])
DEADLINE_S = 60.0
LIMIT_BYTES = 20 << 20
FIRST, LAST = 20, 27
FALSES = 1_000_000  # A byte each as msgpack, six as JSON: more than socket buffers hold.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    """The records FIRST to LAST have 1 MiB each and are visible everywhere; elections may use the indices below."""
    folder = tmp_path_factory.mktemp("slow_readers")
    async with running_cluster(folder, machine="log", election_timeout_ms=5000) as running:
        begun = (await running.ask("n1", "GET", "/index_bounds")).document["highest_index"]
        await running.ask("n1", "POST", "/records", pack([0] * (FIRST - begun)), "application/msgpack")
        for index in range(FIRST, LAST + 1):
            reply = await running.ask("n1", "POST", "/records", pack([[False] * FALSES]), "application/msgpack")
            assert reply.document["write_index"] == index
        for node_id in running.nodes:
            reply = await running.ask(node_id, "GET", f"/records?from={LAST}&wait_ms=20000")
            assert (reply.status, len(reply.body) > 6 * FALSES) == (200, True)
        yield running


def responses_of(cluster: RunningCluster, at: str) -> ResponseBodyLimit:
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[ADMISSION].response_bodies


def stalled_reader(cluster: RunningCluster, at: str, accept: str, opened: ExitStack) -> socket.socket:
    """A caller that requests a long response and takes nothing of it."""
    caller = opened.enter_context(socket.socket())
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect(host_and_port(cluster.address(at)))
    caller.sendall(f"GET /records?from={FIRST} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
    return caller


async def held(cluster: RunningCluster, at: str, *, above: int) -> None:
    """Return when the node holds more than `above` bytes for its readers."""
    async with asyncio.timeout(DEADLINE_S):
        while responses_of(cluster, at).held_bytes <= above:
            await cluster.ask(at, "GET", "/healthz")


async def nothing_held(cluster: RunningCluster, at: str) -> None:
    """Return when the node holds nothing for readers any more."""
    async with asyncio.timeout(DEADLINE_S):
        while responses_of(cluster, at).held_bytes:
            await cluster.ask(at, "GET", "/healthz")


@EVERYWHERE
@ENCODED
async def test_a_reader_that_takes_nothing_is_cut_off_in_the_end(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, at: str, accept: str
) -> None:
    await nothing_held(cluster, at)
    monkeypatch.setattr(responses_of(cluster, at), "_stall_timeout_s", 0.3)
    with ExitStack() as opened:
        stalled_reader(cluster, at, accept, opened)
        await held(cluster, at, above=0)

        await nothing_held(cluster, at)


@EVERYWHERE
@ENCODED
async def test_stalled_readers_hold_bounded_memory_and_delay_nobody_else(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, at: str, accept: str
) -> None:
    responses, epoch = responses_of(cluster, at), cluster.nodes[at].node.leadership.role.epoch
    await nothing_held(cluster, at)
    monkeypatch.setattr(responses, "_limit", LIMIT_BYTES)
    monkeypatch.setattr(responses, "_idle_s", 0.0)
    with ExitStack() as opened:
        for number in range(1, 7):
            stalled_reader(cluster, at, accept, opened)
            await held(cluster, at, above=0 if number == 1 else 5 << 20)

            written = await cluster.ask(at, "POST", "/records", b"1", JSON)
            told = await cluster.ask(at, "GET", f"/records?from={written.document['write_index']}&wait_ms=20000")
            long = await cluster.ask(at, "GET", f"/records?from={FIRST}&to={FIRST + 1}", headers={"Accept": accept})

            assert responses.held_bytes <= LIMIT_BYTES
            assert (written.status, told.status, long.status) == (200, 200, 200)
            assert told.document["value"] == 1
    assert cluster.nodes[at].node.leadership.role.epoch == epoch, "nobody started an election"


@EVERYWHERE
async def test_if_every_response_moves_a_new_one_is_overloaded(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    responses = responses_of(cluster, at)
    await nothing_held(cluster, at)
    monkeypatch.setattr(responses, "_idle_s", 3600.0)
    with ExitStack() as opened:
        stalled_reader(cluster, at, RAW_FRAMES, opened)
        await held(cluster, at, above=0)
        monkeypatch.setattr(responses, "_limit", responses.held_bytes)

        reply = await cluster.ask(at, "GET", f"/records?from={FIRST}", headers={"Accept": RAW_FRAMES})

    assert (reply.status, reply.problem, reply.headers["Retry-After"]) == (429, "overloaded", "1")


@pytest.mark.full
@EVERYWHERE
async def test_a_slow_reader_that_takes_something_now_and_then_gets_all_of_it(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    await nothing_held(cluster, at)
    monkeypatch.setattr(responses_of(cluster, at), "_stall_timeout_s", 5.0)
    url = f"http://{cluster.address(at)}/records?from={FIRST}&to={FIRST + 1}"
    loop = asyncio.get_running_loop()
    taken = 0
    async with cluster.session.get(url, headers={"Accept": NDJSON}, read_bufsize=1 << 12) as answer:
        size, began = answer.content_length or 0, loop.time()
        for eighth in range(1, 9):
            while loop.time() < began + 0.8 * eighth:
                await cluster.ask(at, "GET", "/healthz")
            while taken < size * eighth // 8:
                taken += len(await answer.content.readany())

    assert taken == size > 6 * FALSES


@EVERYWHERE
async def test_long_writes_that_come_at_once_are_all_committed(cluster: RunningCluster, at: str) -> None:
    # Each is a shipment of several messages, which fill the sockets between the nodes.
    body = bytes((2 << 20) + 1)
    writes = [cluster.ask(at, "POST", "/records", body, "application/octet-stream") for _ in range(10)]

    replies = await asyncio.gather(*writes)

    assert [reply.status for reply in replies] == [200] * 10
    last = max(reply.document["write_index"] for reply in replies)
    for node_id in cluster.nodes:
        told = await cluster.ask(node_id, "GET", f"/records?from={last}&wait_ms=20000", headers={"Accept": RAW_FRAMES})
        assert len(told.body) > len(body)
