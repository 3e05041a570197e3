"""How many Python functions a leader calls for a command: a count, so that no machine's speed matters."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import quire
from quire.cluster.client import Client
from tests import tuned
from tests.processes.cluster import Cluster, Clusters
from tests.processes.traced import Traced

ALONE, MOST_ALONE = 400, 600
CLIENTS, EACH, MOST_OF_MANY = 64, 100, 80
IDLE_S = 2.0


class Counted:
    """The calls of a leader between two moments."""

    def __init__(self, cluster: Cluster, leader: Traced) -> None:
        self._cluster, self._leader = cluster, leader
        end = time.monotonic() + IDLE_S
        leader.begin()
        cluster.wait_until("the leader was idle for a while", lambda: time.monotonic() > end)
        calls, seconds = self._ended()
        self._idle_calls_per_s = calls / seconds

    def _ended(self) -> tuple[int, float]:
        self._leader.end()
        self._cluster.wait_until("the recording is written", self._leader.ended)
        recorded = self._leader.recorded
        return recorded["calls"], recorded["seconds"]

    async def a_command(self, clients: int, each: int) -> float:
        """The calls for a command of clients that send one after the other, without those of an idle leader."""

        async def send(client: Client, commands: int) -> None:
            for _ in range(commands):
                await client.apply(["add", 1])

        async with AsyncExitStack() as stack:
            address = self._leader.node.address
            opened = [await stack.enter_async_context(quire.connect(address)) for _ in range(clients)]
            await asyncio.gather(*(send(client, 1) for client in opened))  # Opens the sessions and streams.
            self._leader.begin()
            await asyncio.gather(*(send(client, each) for client in opened))
            calls, seconds = self._ended()
        return (calls - self._idle_calls_per_s * seconds) / (clients * each)


@pytest.mark.full
def test_a_leader_calls_few_functions_for_a_command_alone_and_fewer_for_one_of_many(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make(flags=tuned.flags(check_invariants=False))
    leader = next(Traced(node, tmp_path) for node in cluster)
    cluster.start()
    counted = Counted(cluster, leader)
    assert asyncio.run(counted.a_command(1, ALONE)) < MOST_ALONE
    assert asyncio.run(counted.a_command(CLIENTS, EACH)) < MOST_OF_MANY
