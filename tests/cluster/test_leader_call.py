"""`GET /leader`: whom a node hears, and a long poll for the next leader."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from quire.cluster.http.api import API
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.replication.loopback import until

A_MINUTE = 60_000


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path) as running:
        yield running


async def polling(cluster: RunningCluster, at: str, epoch: int) -> "asyncio.Task[Reply]":
    """A call that waits for a later leader than that of `epoch`."""
    app = cluster.nodes[at].runner.app
    assert app is not None
    polls = app[API].leader_polls
    before = len(polls)
    asking = asyncio.create_task(cluster.ask(at, "GET", f"/leader?epoch={epoch}&wait_ms={A_MINUTE}"))
    await until(lambda: len(polls) > before)
    return asking


@pytest.mark.parametrize("at", ["n1", "n2", "n3"])
async def test_every_node_tells_at_once_of_a_leader_of_a_later_epoch(cluster: RunningCluster, at: str) -> None:
    now = (await cluster.ask(at, "GET", "/leader")).document
    assert (now["node_id"], now["leader"]) == (at, "n1")
    asking = await polling(cluster, at, now["epoch"])

    await cluster.lead("n2")
    reply = await asking

    assert reply.document["leader"] == "n2"
    assert reply.document["epoch"] > now["epoch"]
    assert reply.headers["Quire-Leader"] == f"n2={cluster.address('n2')}"


async def test_who_waits_for_another_leader_is_told_that_the_node_stops(cluster: RunningCluster) -> None:
    epoch = (await cluster.ask("n3", "GET", "/leader")).document["epoch"]
    asking = await polling(cluster, "n3", epoch)

    cluster.nodes["n3"].node.leadership.leave()

    assert (await asking).problem == "stopping"


async def test_as_many_clients_as_the_limit_wait_for_another_leader_and_one_more_is_overloaded(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = cluster.nodes["n3"].runner.app
    assert app is not None
    monkeypatch.setattr(app[API].leader_polls, "_limit", 3)
    epoch = (await cluster.ask("n3", "GET", "/leader")).document["epoch"]
    waiting = [await polling(cluster, "n3", epoch) for _ in range(3)]

    refused = await cluster.ask("n3", "GET", f"/leader?epoch={epoch}&wait_ms={A_MINUTE}")
    at_once = await cluster.ask("n3", "GET", f"/leader?epoch={epoch}")
    await cluster.lead("n2")

    assert (refused.status, refused.problem) == (429, "overloaded")
    assert at_once.document["leader"] == "n1"
    assert [(await reply).document["leader"] for reply in waiting] == ["n2"] * 3
