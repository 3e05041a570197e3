"""`POST /query` of a real cluster, through leader and follower."""

from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from quire.log import pack
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON, MSGPACK = "application/json", "application/msgpack"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
CONSISTENCIES = pytest.mark.parametrize("consistency", ["linearizable", "leader", "local"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    folder = tmp_path_factory.mktemp("query")
    async with running_cluster(folder, machine="tests.cluster.machines:Notes", state_limit_bytes=4096) as running:
        await running.commands("n1", "first", "second")
        bounds = (await running.ask("n1", "GET", "/index_bounds")).document
        await running.ask("n3", "GET", f"/records?from={bounds['highest_index'] - 1}&wait_ms=10000")
        yield running


async def query(cluster: RunningCluster, at: str, request: object, parameters: str = "") -> Reply:
    return await cluster.ask(at, "POST", f"/query{parameters}", orjson.dumps({"request": request}), JSON)


@EVERYWHERE
@CONSISTENCIES
async def test_a_query_is_answered_by_the_machine(cluster: RunningCluster, at: str, consistency: str) -> None:
    reply = await query(cluster, at, ["at", 1], f"?consistency={consistency}")

    highest = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]
    assert reply.document == {"answer": "second", "applied_index": highest}


@EVERYWHERE
async def test_a_null_request_asks_for_the_whole_state(cluster: RunningCluster, at: str) -> None:
    assert (await query(cluster, at, None)).document["answer"] == ["first", "second"]


@EVERYWHERE
async def test_a_query_speaks_msgpack_both_ways(cluster: RunningCluster, at: str) -> None:
    body = pack({"request": ["echo", b"\x00"]})

    reply = await cluster.ask(at, "POST", "/query", body, MSGPACK, {"Accept": MSGPACK})

    assert unpacked(reply.body)["answer"] == b"\x00"


@EVERYWHERE
@CONSISTENCIES
async def test_a_query_that_the_machine_refuses_is_422(cluster: RunningCluster, at: str, consistency: str) -> None:
    reply = await query(cluster, at, "nonsense", f"?consistency={consistency}")

    assert (reply.status, reply.problem) == (422, "query-refused")
    assert reply.document["refused"] == [[0, "QUERY_UNKNOWN", "ask for at or echo"]]


@EVERYWHERE
@pytest.mark.parametrize("asked", ["fail", "unsendable"])
async def test_a_query_on_which_the_machine_fails_is_500_and_stops_nothing(
    cluster: RunningCluster, at: str, asked: str
) -> None:
    for accept in (JSON, MSGPACK):
        body = orjson.dumps({"request": asked})
        reply = await cluster.ask(at, "POST", "/query", body, JSON, {"Accept": accept})
        assert (reply.status, reply.problem) == (500, "machine-failed")

    assert (await query(cluster, at, ["at", 0])).document["answer"] == "first"


@EVERYWHERE
@pytest.mark.parametrize(
    ("body", "content_type", "status", "problem"),
    [
        (b"", JSON, 400, "malformed"),
        (b"[]", JSON, 400, "malformed"),
        (b"{}", JSON, 400, "malformed"),
        (b'{"request": 1, "more": 2}', JSON, 400, "malformed"),
        (b'{"request": 18446744073709551616}', JSON, 400, "malformed"),
        (b"\xc1", MSGPACK, 400, "malformed"),
        (b'{"request": 1}', "text/plain", 415, "unsupported-media-type"),
        (b'{"request": "' + b"x" * (1 << 20) + b'"}', JSON, 413, "limit-exceeded"),
    ],
)
async def test_a_malformed_query_is_refused(
    cluster: RunningCluster, at: str, body: bytes, content_type: str, status: int, problem: str
) -> None:
    reply = await cluster.ask(at, "POST", "/query", body, content_type)

    assert (reply.status, reply.problem) == (status, problem)


@EVERYWHERE
@pytest.mark.parametrize("parameters", ["?consistency=sometimes", "?max_lag=1", "?consistency=local&max_lag=x", "?a=1"])
async def test_a_query_of_unknown_consistency_is_malformed(cluster: RunningCluster, at: str, parameters: str) -> None:
    reply = await query(cluster, at, None, parameters)

    assert (reply.status, reply.problem) == (400, "malformed")


@EVERYWHERE
async def test_an_answer_may_be_as_long_as_the_limit_and_no_longer(cluster: RunningCluster, at: str) -> None:
    highest = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]
    frame = len(orjson.dumps({"answer": "", "applied_index": highest}))

    fits = await query(cluster, at, ["echo", "x" * (4096 - frame)])
    too_long = await query(cluster, at, ["echo", "x" * (4097 - frame)])

    assert fits.status == 200
    assert (too_long.status, too_long.problem, too_long.document["limit"]) == (413, "limit-exceeded", 4096)


async def test_a_query_without_a_leader_is_503_and_a_local_one_is_answered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as three:
        for node_id in ("n1", "n2"):
            await three.stop(node_id)

        reply = await query(three, "n3", None)
        local = await query(three, "n3", None, "?consistency=local")
        state = await three.ask("n3", "GET", "/state")

    assert reply.status == state.status == 503
    assert reply.problem in ("no-leader", "leader-unreachable")
    assert "Retry-After" in reply.headers
    assert local.document["answer"] == "42"
