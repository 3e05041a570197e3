"""Limits of a node, each at the limit and one past it: connections, headers, the writer's queue, a session's window."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from quire.cluster.config.serve import FRAME_OVERHEAD_BYTES
from quire.cluster.errors import LimitExceeded
from quire.cluster.http.admission.addresses import LEAST_SHARE
from quire.cluster.http.admission.admission import ADMISSION
from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.routes.peers import PEER_ROUTES
from quire.cluster.http.routes.sessions import BODY_BYTES, NAME_CHARACTERS
from quire.cluster.node.views.status import visible_bounds
from quire.cluster.node.writing import FutureWaiter
from quire.log import Kind, encode_blob
from quire.replication import Write
from quire.replication.address import host_and_port
from quire.replication.core.status import Queues
from quire.replication.disk import RUN_BYTES
from quire.sm import SESSION_WINDOW
from tests.cluster.conditions import held, replica_of
from tests.cluster.running import Reply, RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
JSON, NDJSON, OCTETS = "application/json", "application/x-ndjson", "application/octet-stream"
DEADLINE_S = 30.0
TURNS = 100
"""Of the event loop, in which the nodes see that connections have ended: each needs a few."""
ADD_0 = b'{"commands": [["add", 0]]}'
ADD_0_BYTES = len(b"\x91\x92\xa3add\x00") + RUN_BYTES
HEADERS_LIMIT, HEADER_BYTES_LIMIT = 128, 8190  # aiohttp's own.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("limits"), election_timeout_ms=30_000) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    folder = tmp_path_factory.mktemp("small")
    async with running_cluster(folder, machine="log", max_request_bytes=1 << 15, max_frame_bytes=1 << 16) as running:
        yield running


async def add_0(cluster: RunningCluster, at: str, headers: dict[str, str] | None = None, body: bytes = ADD_0) -> Reply:
    return await cluster.ask(at, "POST", "/commands", body, JSON, headers)


def queues_of(cluster: RunningCluster) -> Queues:
    leader = replica_of(cluster).core.status().leader
    assert leader is not None
    return leader.queues


async def waiting(cluster: RunningCluster, count: int) -> None:
    """Return when `count` requests wait for the leader's writer."""
    async with asyncio.timeout(DEADLINE_S):
        while queues_of(cluster).waiting_requests < count:
            await cluster.ask("n1", "GET", "/healthz")


# Requests


@EVERYWHERE
async def test_a_batch_may_be_as_long_as_the_limit_and_no_longer(small_cluster: RunningCluster, at: str) -> None:
    limit = small_cluster.nodes[at].config.max_request_bytes
    longest = b'"' + b"x" * (limit - 10) + b'"'
    fits = await small_cluster.ask(at, "POST", "/records", longest.ljust(limit), JSON)
    longer = await small_cluster.ask(at, "POST", "/records", longest.ljust(limit + 1), JSON)
    swollen = await small_cluster.ask(at, "POST", "/records", b"[" + b"1.5," * (limit // 4 - 1) + b"1]", JSON)

    assert fits.status == 200
    assert (longer.status, longer.problem, longer.document["limit"]) == (413, "limit-exceeded", limit)
    assert (swollen.status, swollen.document["what"], swollen.document["limit"]) == (413, "the batch as msgpack", limit)


@EVERYWHERE
async def test_a_request_may_have_as_many_commands_or_records_as_the_limit_and_no_more(
    small_cluster: RunningCluster, at: str
) -> None:
    limit = small_cluster.nodes[at].config.max_commands
    before = visible_bounds(small_cluster.nodes["n1"].node).highest_index
    for path, line in (("/records", b"1\n"), ("/commands", b"1\n")):
        fits = await small_cluster.ask(at, "POST", path, line * limit, NDJSON)
        more = await small_cluster.ask(at, "POST", path, line * (limit + 1), NDJSON)
        assert fits.status == 200
        assert (more.status, more.problem, more.document["limit"]) == (413, "limit-exceeded", limit)
    session = await small_cluster.ask(at, "POST", "/sessions", b"{}", JSON)
    assert session.document["session_window"] == min(limit, SESSION_WINDOW)
    assert (await small_cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"] == before + 2 * limit + 1


@EVERYWHERE
async def test_raw_bytes_may_be_as_long_as_a_frame_and_no_longer(small_cluster: RunningCluster, at: str) -> None:
    limit = small_cluster.nodes[at].config.max_frame_bytes - FRAME_OVERHEAD_BYTES

    longest = await small_cluster.ask(at, "POST", "/records", bytes(limit), OCTETS)
    longer = await small_cluster.ask(at, "POST", "/records", bytes(limit + 1), OCTETS)

    assert longest.status == 200
    assert (longer.status, longer.problem, longer.document["limit"]) == (413, "limit-exceeded", limit)


async def test_a_write_may_be_as_long_as_a_frame_s_payload_and_no_longer(small_cluster: RunningCluster) -> None:
    # The handlers refuse a little less; this limit holds for every proposal.
    node = small_cluster.nodes["n1"].node
    assert node.formed is not None
    limit = node.formed.genesis.payload_bytes
    head = len(encode_blob(b"")) + RUN_BYTES

    written = await node.components.writing.write(
        Write(encode_blob(bytes(limit - head)), 1, Kind.BLOB, owner=FutureWaiter(applied=True))
    )
    too_long = Write(encode_blob(bytes(limit - head + 1)), 1, Kind.BLOB, owner=FutureWaiter(applied=True))
    with pytest.raises(LimitExceeded) as longer:
        await node.components.writing.write(too_long)

    assert written.count == 1
    assert (longer.value.size, longer.value.limit) == (limit + 1, limit)


@EVERYWHERE
async def test_a_session_s_body_and_name_may_be_as_long_as_their_limits_and_no_longer(
    cluster: RunningCluster, at: str
) -> None:
    async def open_session(body: bytes) -> Reply:
        return await cluster.ask(at, "POST", "/sessions", body, JSON)

    assert (await open_session(b"{}".ljust(BODY_BYTES))).status == 200
    assert (await open_session(b"{}".ljust(BODY_BYTES + 1))).problem == "limit-exceeded"
    assert (await open_session(orjson.dumps({"name": "\u00e4" * NAME_CHARACTERS}))).status == 200
    assert (await open_session(orjson.dumps({"name": "\u00e4" * (NAME_CHARACTERS + 1)}))).problem == "malformed"


# The writer's queue


@EVERYWHERE
@pytest.mark.parametrize("limit", [{"waiting_requests": 3}, {"waiting_bytes": 3 * ADD_0_BYTES}])
async def test_as_many_writes_as_the_limit_wait_and_one_more_is_overloaded(
    cluster: RunningCluster, at: str, limit: dict[str, int]
) -> None:
    with held(cluster, **limit):
        writes = [asyncio.create_task(add_0(cluster, at)) for _ in range(3)]
        await waiting(cluster, 3)
        queues = queues_of(cluster)

        refused = await add_0(cluster, at)
        flood = await asyncio.gather(*(add_0(cluster, at) for _ in range(200)))

        assert queues_of(cluster) == queues
        assert queues.waiting_bytes == 3 * ADD_0_BYTES
    async with asyncio.timeout(DEADLINE_S):
        assert [reply.status for reply in await asyncio.gather(*writes)] == [200] * 3
    assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (429, "overloaded", "1")
    assert {reply.status for reply in flood} == {429}
    assert (await add_0(cluster, at)).status == 200


# A session's window


async def opened(cluster: RunningCluster, at: str) -> int:
    return int((await cluster.ask(at, "POST", "/sessions", b"{}", JSON)).document["session"])


def place(session: int, sequence: int) -> dict[str, str]:
    return {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}


@EVERYWHERE
async def test_a_session_may_have_its_window_in_flight_and_no_more(cluster: RunningCluster, at: str) -> None:
    session, other = await opened(cluster, at), await opened(cluster, at)
    window = orjson.dumps({"commands": [["add", 0]] * (SESSION_WINDOW - 1)})
    with held(cluster):
        most = asyncio.create_task(add_0(cluster, at, place(session, 1), window))
        await waiting(cluster, 1)
        last = asyncio.create_task(add_0(cluster, at, place(session, SESSION_WINDOW)))
        await waiting(cluster, 2)

        beyond = await add_0(cluster, at, place(session, SESSION_WINDOW + 1))
        others = asyncio.create_task(add_0(cluster, at, place(other, 1)))
        await waiting(cluster, 3)

    assert (beyond.status, beyond.problem, beyond.headers["Retry-After"]) == (429, "overloaded", "1")
    assert beyond.document["detail"].startswith(f"at most {SESSION_WINDOW:,} commands of a session are under way;")
    async with asyncio.timeout(DEADLINE_S):
        assert [(await reply).status for reply in (most, last, others)] == [200] * 3
    assert (await add_0(cluster, at, place(session, SESSION_WINDOW + 1))).status == 200


# Connections


async def connections_of(cluster: RunningCluster, at: str) -> ConnectionLimit:
    """The node's connections, among them none that an earlier test has closed."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[ADMISSION].connections


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, path: str, headers: bytes = b"") -> tuple[bytes, dict[bytes, bytes], Any]:
        """The answer to a GET: its status line, its headers and its body."""
        self._writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path.encode(), headers))
        return await self.told()

    async def told(self) -> tuple[bytes, dict[bytes, bytes], Any]:
        async with asyncio.timeout(DEADLINE_S):
            status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines if line)
            return status, headers, await self._reader.readexactly(int(headers[b"Content-Length"]))

    async def at_end(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return not await self._reader.read()

    def close(self) -> None:
        self._writer.close()


async def caller(cluster: RunningCluster, at: str, opened: ExitStack) -> Caller:
    caller = Caller(*await asyncio.open_connection(*host_and_port(cluster.address(at))))
    opened.callback(caller.close)
    return caller


@EVERYWHERE
async def test_above_the_connection_limit_only_peers_are_answered_and_above_the_reserve_none(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = await connections_of(cluster, at)
    with ExitStack() as opened:
        last = await caller(cluster, at, opened)
        assert (await last.ask("/healthz"))[0] == b"HTTP/1.1 200 OK"
        monkeypatch.setattr(connections, "limit", len(connections))
        monkeypatch.setattr(connections, "reserve", 2)

        surplus, peer = await caller(cluster, at, opened), await caller(cluster, at, opened)
        too_many = await caller(cluster, at, opened)
        refusal_status, refusal_headers, refusal = await too_many.told()
        status, headers, body = await surplus.ask("/healthz")
        peer_status, _, _ = await peer.ask("/peer")

        assert status == refusal_status == b"HTTP/1.1 429 Too Many Requests"
        assert headers[b"Retry-After"] == refusal_headers[b"Retry-After"] == b"1"
        assert orjson.loads(body)["type"] == orjson.loads(refusal)["type"] == "urn:quire:problem:overloaded"
        assert "connections are open" in orjson.loads(body)["detail"]
        assert "connections are open" in orjson.loads(refusal)["detail"]
        assert await surplus.at_end()
        assert await too_many.at_end()
        assert peer_status == b"HTTP/1.1 400 Bad Request"  # Admitted; the request is no WebSocket's.
        assert (await last.ask("/healthz"))[0] == b"HTTP/1.1 200 OK"
    async with asyncio.timeout(DEADLINE_S):
        while len(connections) >= connections.limit:
            await asyncio.to_thread(lambda: None)
    with ExitStack() as opened:
        assert (await (await caller(cluster, at, opened)).ask("/healthz"))[0] == b"HTTP/1.1 200 OK"


@EVERYWHERE
async def test_above_the_connection_limit_every_path_of_the_peers_is_answered(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [route.path for route in PEER_ROUTES]
    connections = await connections_of(cluster, at)
    with ExitStack() as opened:
        monkeypatch.setattr(connections, "limit", len(connections))
        for path in paths:
            status, _, _ = await (await caller(cluster, at, opened)).ask(path)
            assert (path, status) == (path, b"HTTP/1.1 400 Bad Request")  # Admitted; the request is no WebSocket's.

    assert "/peer/snapshot" in paths


@EVERYWHERE
async def test_connections_that_arrive_together_are_counted_one_by_one(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = await connections_of(cluster, at)
    monkeypatch.setattr(connections, "limit", len(connections) + 5)
    monkeypatch.setattr(connections, "reserve", 5)
    with ExitStack() as opened:
        callers = await asyncio.gather(*(caller(cluster, at, opened) for _ in range(30)))
        answers = await asyncio.gather(*(caller.ask("/healthz") for caller in callers))

    statuses = [status.split()[1] for status, _, _ in answers]
    assert (statuses.count(b"200"), statuses.count(b"429")) == (5, 25)


async def test_one_address_gets_its_share_of_the_connections_and_peers_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        connections = await connections_of(cluster, "n1")
        monkeypatch.setattr(connections, "limit", LEAST_SHARE + 100)
        with ExitStack() as opened:
            callers = [await caller(cluster, "n1", opened) for _ in range(LEAST_SHARE)]
            surplus = await caller(cluster, "n1", opened)
            peer = await caller(cluster, "n1", opened)

            assert (await callers[0].ask("/healthz"))[0] == b"HTTP/1.1 200 OK"
            assert (await surplus.ask("/healthz"))[0] == b"HTTP/1.1 429 Too Many Requests"
            assert (await peer.ask("/peer"))[0] == b"HTTP/1.1 400 Bad Request"
        async with asyncio.timeout(DEADLINE_S):
            while len(connections) > LEAST_SHARE // 2:
                await asyncio.to_thread(lambda: None)
        with ExitStack() as opened:
            assert (await (await caller(cluster, "n1", opened)).ask("/healthz"))[0] == b"HTTP/1.1 200 OK"


# Headers


@EVERYWHERE
async def test_as_many_headers_as_the_limit_are_taken_and_no_more(cluster: RunningCluster, at: str) -> None:
    def headers(count: int) -> bytes:
        return b"".join(b"X-%d: x\r\n" % number for number in range(count - 1))  # Host is a header, too.

    with ExitStack() as opened:
        most = await (await caller(cluster, at, opened)).ask("/healthz", headers(HEADERS_LIMIT))
        too_many = await (await caller(cluster, at, opened)).ask("/healthz", headers(HEADERS_LIMIT + 1))

    assert most[0] == b"HTTP/1.1 200 OK"
    assert too_many[0].split()[1] == b"400"


@EVERYWHERE
async def test_a_header_may_be_as_long_as_the_limit_and_no_longer(cluster: RunningCluster, at: str) -> None:
    with ExitStack() as opened:
        longest = await (await caller(cluster, at, opened)).ask("/healthz", b"X: %s\r\n" % (b"x" * HEADER_BYTES_LIMIT))
        longer = await (await caller(cluster, at, opened)).ask(
            "/healthz", b"X: %s\r\n" % (b"x" * (HEADER_BYTES_LIMIT + 1))
        )

    assert longest[0] == b"HTTP/1.1 200 OK"
    assert longer[0].split()[1] == b"400"
