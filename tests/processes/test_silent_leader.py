"""A leader whose process is frozen: its connections stay open, and nothing comes on them."""

import asyncio

import pytest

from quire.cluster.client import connect
from tests.processes.cluster import DEADLINE_S, Cluster, Clusters, run_quire

AN_HOUR_S = 3600.0
IN_FLIGHT = 50


async def added(cluster: Cluster, pauses: int) -> int:
    """Add 1 again and again while leaders are frozen, one after the other; how often it was acknowledged."""
    done, moved, total = asyncio.Event(), asyncio.Event(), 0
    async with asyncio.timeout(DEADLINE_S), connect(cluster.servers, timeout_s=DEADLINE_S) as client:

        async def add() -> None:
            nonlocal total
            while not done.is_set():
                await client.apply(["add", 1])
                total += 1
                moved.set()

        async def more() -> None:
            before = total
            while total <= before + IN_FLIGHT:  # So not all of these were in flight before.
                moved.clear()
                await moved.wait()

        adding = [asyncio.create_task(add()) for _ in range(IN_FLIGHT)]
        await more()
        for _ in range(pauses):
            frozen = await asyncio.to_thread(cluster.elected)
            frozen.pause()
            await more()
            await asyncio.to_thread(run_quire, "members", "--server", cluster.servers, timeout_s=DEADLINE_S)
            frozen.resume()
            await asyncio.to_thread(cluster.wait_until_ready, frozen)
        done.set()
        await asyncio.gather(*adding)
    return total


def test_a_client_goes_on_while_the_leader_is_frozen_and_each_command_executes_once(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_S", "READ_ATTEMPT_TIMEOUT_S", "STREAM_CONNECT_TIMEOUT_S"):
        monkeypatch.setattr(f"quire.cluster.client.transport.{name}", AN_HOUR_S)
    cluster = clusters.formed(flags=["--election-timeout-ms", "1000"])
    before = int(cluster.leader.query(None))

    total = asyncio.run(added(cluster, pauses=2))

    assert int(cluster.elected().query(None)) == before + total
