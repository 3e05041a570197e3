"""`GET /cluster`: every member's status, as the asked node gets it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from quire.cluster.http.members import ASKED_AT_ONCE, STATUS_LIMIT_BYTES
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.scripted import document, foreign, scripted, silent
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@EVERYWHERE
async def test_the_cluster_is_every_member_s_own_status(cluster: RunningCluster, at: str) -> None:
    reply = await cluster.ask(at, "GET", "/cluster")

    assert (reply.document["node_id"], reply.document["leader"]) == (at, "n1")
    assert list(reply.document["nodes"]) == ["n1", "n2", "n3"]
    for node_id, row in reply.document["nodes"].items():
        assert (row["address"], row["failure"]) == (cluster.address(node_id), None)
        assert row["status"]["node_id"] == node_id
        assert row["status"]["role"] == ("leader" if node_id == "n1" else "follower")


async def test_the_cluster_call_answers_in_msgpack(cluster: RunningCluster) -> None:
    reply = await cluster.ask("n1", "GET", "/cluster", headers={"Accept": "application/msgpack"})

    assert unpacked(reply.body)["nodes"]["n2"]["status"]["node_id"] == "n2"


@EVERYWHERE
async def test_a_member_that_is_gone_is_shown_as_unreachable(cluster: RunningCluster, at: str) -> None:
    await cluster.stop("n2")

    rows = (await cluster.ask(at, "GET", "/cluster")).document["nodes"]

    assert rows["n2"]["status"] is None
    assert "connect" in rows["n2"]["failure"].lower()
    assert all(rows[node_id]["status"]["node_id"] == node_id for node_id in ("n1", "n3"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("steps", "failure"),
    [
        ([], "no answer within 0.2 s"),
        ([foreign(502)], "it answered 502"),
        ([document({"node_id": "n9"})], "another program answered"),
        ([document({"node_id": "n2", "long": "x" * STATUS_LIMIT_BYTES})], "its answer is too long"),
        ([lambda _request: None], "disconnected"),
    ],
)
async def test_a_member_that_does_not_answer_as_itself_is_shown_with_the_reason(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, steps: list[object], failure: str
) -> None:
    monkeypatch.setattr("quire.cluster.http.members.DEADLINE_S", 0.2)
    config = cluster.nodes["n1"].config
    async with silent() as nobody, scripted(*steps) as server:  # type: ignore[arg-type]
        monkeypatch.setitem(config.link, "n2", server.address if steps else nobody)
        async with asyncio.timeout(20):
            rows = await asked(cluster)
            while rows["n3"]["failure"] or failure not in rows["n2"]["failure"].lower():  # The machine stood still.
                rows = await asked(cluster)

    assert rows["n2"]["status"] is None


async def asked(cluster: RunningCluster) -> dict[str, Any]:
    """What the first node says of each."""
    nodes: dict[str, Any] = (await cluster.ask("n1", "GET", "/cluster")).document["nodes"]
    return nodes


@pytest.mark.full
async def test_asking_all_members_uses_few_connections_to_each(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, enough = 0, asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        if connected == ASKED_AT_ONCE:
            enough.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        monkeypatch.setitem(cluster.nodes["n1"].config.link, "n2", "{}:{}".format(*server.sockets[0].getsockname()))
        asking = [asyncio.create_task(cluster.ask("n1", "GET", "/cluster")) for _ in range(2 * ASKED_AT_ONCE)]
        async with asyncio.timeout(20):
            await enough.wait()
            for _ in range(20):
                await cluster.ask("n1", "GET", "/healthz")
            at_once = connected
            rows = [(await reply).document["nodes"]["n2"] for reply in asking]

    assert {row["failure"] for row in rows} == {"no answer within 1 s"}
    assert at_once == ASKED_AT_ONCE


async def test_the_cluster_takes_no_parameters(cluster: RunningCluster) -> None:
    reply = await cluster.ask("n1", "GET", "/cluster?deep=1")

    assert (reply.status, reply.problem) == (400, "malformed")
