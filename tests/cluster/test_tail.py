"""`tail` yields every record once, whatever happens to the servers; the blocking client matches the async one."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from aiohttp import web

from quire.cluster.client import (
    BatchReply,
    BlockingClient,
    Client,
    ClientError,
    CommandRefused,
    NotFound,
    Record,
    ServerFault,
    Unavailable,
    connect,
    connect_sync,
)
from quire.cluster.http.api import API
from quire.cluster.http.routes.ranges import WAIT_LIMIT_MS
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.scripted import broken, lines, refusing, scripted

DEADLINE_S = 30.0


@pytest_asyncio.fixture
async def three(tmp_path: Path) -> AsyncGenerator[RunningCluster, None]:
    machine = "tests.cluster.machines:Notes"
    async with running_cluster(tmp_path, machine=machine) as running:
        yield running


def servers_of(cluster: RunningCluster) -> str:
    return ",".join(running.config.listen for running in cluster.nodes.values())


async def taken(client: Client, from_index: int | None, count: int) -> list[Record]:
    """The first records of a tail."""
    found: list[Record] = []
    async with asyncio.timeout(DEADLINE_S):
        async for record in client.tail(from_index):
            found.append(record)
            if len(found) == count:
                break
    return found


@pytest.mark.full
async def test_a_tail_yields_every_record_once_while_each_node_restarts(three: RunningCluster) -> None:
    servers, numbers = servers_of(three), list(range(60))
    async with connect(servers) as cluster, connect(servers) as writing:
        following = asyncio.create_task(taken(cluster, 0, len(numbers)))
        for number in numbers:
            await writing.append(number)
            if number % 20 == 10:
                await three.restart(f"n{1 + number // 20}")
                await three.ready()

        records = await following

    indices = [record.index for record in records]
    assert [record.value for record in records] == numbers
    assert indices == sorted(set(indices))


async def test_a_tail_without_an_index_yields_only_new_records(three: RunningCluster) -> None:
    async with connect(servers_of(three)) as cluster:
        await cluster.append("before")
        tail = cluster.pages.tail(None)
        following = asyncio.create_task(anext(tail))
        end = (await cluster.status())["commit_index"]
        apps = [app for running in three.nodes.values() if (app := running.runner.app)]
        async with asyncio.timeout(DEADLINE_S):
            while not any(len(app[API].long_polls) for app in apps):
                await cluster.ready(three.address("n1"))
        await cluster.append("after")

        [record] = await following
        await tail.aclose()

    assert (record.index, record.value) == (end, "after")


async def test_a_tail_continues_after_a_broken_connection() -> None:
    steps = [lines(3, 4, next_index=5), broken, refusing(503, "no-leader"), lines(next_index=6), lines(6, next_index=7)]
    async with scripted(*steps) as server, connect(server.address) as cluster:
        assert [record.index for record in await taken(cluster, 3, 3)] == [3, 4, 6]
        asked = [path.partition("&")[0] for _, path, _ in server.requests]

    assert asked == [f"/records?from={index}" for index in (3, 5, 5, 5, 6)]


async def test_a_tail_waits_for_a_server_that_lags() -> None:
    behind = refusing(404, "out-of-bounds", index=5, lowest_index=0, highest_index=4)
    async with scripted(behind, behind, lines(5, next_index=6)) as server, connect(server.address) as cluster:
        assert [record.index for record in await taken(cluster, 5, 1)] == [5]


async def test_a_tail_whose_index_no_server_reaches_ends_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = refusing(404, "out-of-bounds", index=5, lowest_index=0, highest_index=4)
    async with scripted(behind) as server, connect(server.address) as cluster:
        # The timeout passes at the third answer, however long the machine takes for each.
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (1000.0 if len(server.requests) > 2 else 0.0))
        monkeypatch.setattr("quire.cluster.client.records.pages.time", clock)
        with pytest.raises(NotFound):
            await taken(cluster, 5, 1)


async def test_a_tail_from_an_expired_index_ends_at_once() -> None:
    async with scripted(refusing(410, "expired", lowest_index=9)) as server, connect(server.address) as cluster:
        with pytest.raises(NotFound) as expired:
            await taken(cluster, 5, 1)
        assert [urlsplit(path).path for _, path, _ in server.requests] == ["/records", "/index_bounds"]

    assert expired.value.problem["lowest_index"] == 9


async def test_a_tail_without_any_server_is_unavailable_at_the_timeout() -> None:
    async with scripted(refusing(503, "stopping")) as server, connect(server.address, timeout_s=0.3) as cluster:
        with pytest.raises(Unavailable):
            await taken(cluster, 5, 1)


@pytest.mark.parametrize("timeout_s", [1.0, 3.0, 30.0])
async def test_a_tail_asks_a_server_to_wait_no_longer_than_the_caller_does(
    timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()  # No call's time passes but at `late`, however long the machine takes.
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("quire.cluster.client.transport.time", clock)
    refuse = refusing(503, "stopping")

    def late(request: web.Request) -> web.Response | None:
        nonlocal now
        now += timeout_s * 0.5
        return refuse(request)

    steps = [lines(next_index=5), late, lines(5, next_index=6)]
    async with scripted(*steps) as server, connect(server.address, timeout_s=timeout_s) as cluster:
        assert [record.index for record in await taken(cluster, 5, 1)] == [5]
    asked_ms = [int(parse_qs(urlsplit(path).query)["wait_ms"][0]) for _, path, _ in server.requests]

    assert 0 < asked_ms[0] < timeout_s * 1000
    assert 0 < asked_ms[-1] < timeout_s * 500


async def test_a_tail_that_was_patient_through_an_outage_asks_no_server_to_wait_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", 10 * WAIT_LIMIT_MS / 1000)
    async with scripted(lines(5, next_index=6)) as server, connect(server.address, timeout_s=3600.0) as cluster:
        assert [record.index for record in await taken(cluster, 5, 1)] == [5]
    [(_, path, _)] = server.requests

    assert int(parse_qs(urlsplit(path).query)["wait_ms"][0]) == WAIT_LIMIT_MS


@pytest.mark.parametrize(
    "step", [lines(4, next_index=6), lines(5, 5, next_index=6), lines(6, next_index=6), lines(next_index=4)]
)
async def test_a_page_that_repeats_or_skips_a_record_raises(step: object) -> None:
    async with scripted(step) as server, connect(server.address) as cluster:  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="a server"):
            await taken(cluster, 5, 2)


async def test_a_query_is_answered_or_refused_or_raises_server_fault(three: RunningCluster) -> None:
    async with connect(servers_of(three)) as cluster:
        await cluster.append("first")

        assert await cluster.query(["at", 0]) == "first"
        assert await cluster.query(["echo", b"\x00"], "local", server=three.address("n3")) == b"\x00"
        with pytest.raises(CommandRefused) as refused:
            await cluster.query("nonsense")
        with pytest.raises(ServerFault):
            await cluster.query("fail")

    assert (refused.value.code, refused.value.index) == ("QUERY_UNKNOWN", None)


async def test_bytes_above_a_mebibyte_are_appended_as_a_blob(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4097
    async with running_cluster(tmp_path, count=1, machine="log") as one, connect(one.address("n1")) as cluster:
        index = await cluster.append(body)
        [record] = [record async for record in cluster.read_range(index)]

        assert await cluster.append(b"short") == index + 1
        assert await cluster.read(index + 1) == b"short"

    assert (record.kind, record.value == body) == ("blob", True)


# The blocking client


def test_the_blocking_client_has_every_call_of_the_async_client_with_the_same_parameters() -> None:
    def calls(client: type) -> dict[str, list[str]]:
        public = {name: call for name, call in inspect.getmembers(client, inspect.isfunction) if name[0] != "_"}
        return {name: list(inspect.signature(call).parameters) for name, call in public.items()}

    expected = {name: call for name, call in calls(Client).items() if not name.endswith("_pages")}
    assert calls(BlockingClient) == expected


async def test_the_blocking_client_returns_what_the_async_client_returns(three: RunningCluster) -> None:
    def session() -> None:
        with connect_sync(servers_of(three)) as cluster:
            assert cluster.apply("one") == 1
            assert cluster.apply_batch(["two", "twice", "twice"]).results == [2, 3, None]
            answer = cluster.submit("five")
            batch: BatchReply = cluster.submit_batch(["five and", "a half"]).result(DEADLINE_S)
            index = cluster.append("six")
            assert cluster.append_batch(["seven", "eight"]) == index + 1
            assert cluster.read(index) == "six"
            assert [record.value for record in cluster.read_range(index, index + 2)] == ["six", "seven"]
            tail = cluster.tail(index)
            assert [next(tail).value for _ in range(3)] == ["six", "seven", "eight"]
            tail.close()
            assert cluster.query(["at", 0]) == "one"
            state = cluster.state().state
            assert isinstance(state, list)
            assert state[:2] == ["one", "two"]
            assert cluster.status()["role"] == "leader"
            assert cluster.ready(three.address("n2"))
            assert (answer.result(DEADLINE_S), batch.results) == (4, [5, 6])
            assert cluster.session().sequence == 0
            with pytest.raises(CommandRefused):
                cluster.apply("nope")

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.to_thread(session)


def test_a_blocking_client_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(RuntimeError, match=r"with quire\.connect_sync"):
        connect_sync("127.0.0.1:1").apply("x")


async def test_a_closed_blocking_client_leaves_no_thread_and_no_blocked_call() -> None:
    def session() -> None:
        before = set(threading.enumerate())
        with connect_sync(server.address) as cluster:
            tail = cluster.tail(0)
            assert next(tail).index == 0
        assert set(threading.enumerate()) - before == set()
        with pytest.raises(RuntimeError, match="not open"):
            next(tail)

    async with scripted(lines(0, next_index=1), lines(next_index=1)) as server:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.to_thread(session)
