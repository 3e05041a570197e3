"""Whatever the control plane suggests, a leader that is heard stays, and one is found where nothing is suggested."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cluster.client import connect
from quire.replication.core.events import Nominated
from tests.cluster.running import RunningCluster, running_cluster

DEADLINE_S = 30.0


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    """Return when it holds; meanwhile the nodes answer something."""
    node_id = next(iter(cluster.nodes))
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask(node_id, "GET", "/healthz")


def epochs(cluster: RunningCluster) -> set[int]:
    return {running.node.leadership.role.epoch for running in cluster.nodes.values()}


def nominated(cluster: RunningCluster) -> list[str]:
    return [node_id for node_id, running in cluster.nodes.items() if running.node.leadership.nominated]


async def silence(cluster: RunningCluster) -> None:
    """Stop every control plane, as if PySyncObj were not there."""
    for running in cluster.nodes.values():
        await running.node.leadership.stop()


async def test_all_that_pysyncobj_knew_may_be_lost_everywhere_and_no_leader_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await until(cluster, lambda: len(nominated(cluster)) == 1)
        before = epochs(cluster)

        for running in cluster.nodes.values():
            parts = running.node.formed
            assert parts is not None
            await running.node.leadership.stop()
            running.node.leadership.run(parts.replica, parts.pending.lost)
        await cluster.commands("n2", ["add", 1])
        await until(cluster, lambda: len(nominated(cluster)) == 1)
        await cluster.commands("n3", ["add", 1])

        assert epochs(cluster) == before


@pytest.mark.full
async def test_two_nodes_that_are_both_suggested_take_nothing_from_a_leader_that_is_heard(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=1000) as cluster:
        before = epochs(cluster)
        await silence(cluster)
        replicas = [cluster.nodes[node_id].node.formed for node_id in ("n2", "n3")]

        for parts in replicas:
            assert parts is not None
            parts.replica.driver.step(Nominated(True))
        for _ in range(20):
            await cluster.commands("n2", ["add", 1])

        assert epochs(cluster) == before
        await cluster.stop("n1")
        await until(cluster, lambda: any(running.node.leadership.is_leader for running in cluster.nodes.values()))
        assert (await cluster.commands("n2", ["add", 1]))["results"] == ["63"]


@pytest.mark.full
async def test_without_any_suggestion_another_leads_when_the_leader_is_gone(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=1000) as cluster:
        await silence(cluster)
        async with connect(cluster.address("n2"), timeout_s=DEADLINE_S) as client:
            assert await client.apply(["add", 1]) == "43"
            await cluster.stop("n1")

            assert await client.apply(["add", 1]) == "44"

        (reason,) = [
            running.node.leadership.role.reason
            for running in cluster.nodes.values()
            if running.node.leadership.is_leader
        ]
        assert reason in (  # Which of the two depends on how long ago n1 was promised: five election timeouts or more.
            "no leader was heard for three election timeouts",
            "the node that was promised last was lost soon after",
        )
