"""Whole nodes that know each other by names, and what resolves those is lost with one of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from enum import Enum
from random import Random

import pytest

from quire.log.simulated.faulty import Keep
from tests.glue.cluster import Cluster
from tests.glue.host import GlueDisk, below
from tests.glue.loop import run_until_end
from tests.glue.network import GlueLoop, Network

LONG_S = 20.0
LOOK_S = 0.2
WRITE = {"commands": [["incr", "n"]]}


class NameServer:
    """What the nodes' names are asked of."""

    class Mood(Enum):
        ANSWERS = "answers"
        FAILS = "fails"
        IS_SILENT = "is silent"

    def __init__(self, loop: GlueLoop) -> None:
        self.mood = self.Mood.ANSWERS
        self._loop = loop

    def look_up(self, host: str) -> list[str]:
        """The address of `n2.example`."""
        if self.mood is self.Mood.IS_SILENT:
            self._loop.pass_time(round(30 * LONG_S * 1e6))
        if self.mood is not self.Mood.ANSWERS:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [Network.address(int(host.removeprefix("n").removesuffix(".example"))).partition(":")[0]]


def on_named_nodes(test: Callable[[Cluster, NameServer], Awaitable[None]]) -> None:
    """Run this on three nodes that have formed a cluster."""
    loop, disks = GlueLoop(Random(1)), dict[str, GlueDisk]()
    server = NameServer(loop)
    cluster = Cluster(loop, "names", disks, {"machine": "kv", "request_timeout_ms": 2_000}, look_up=server.look_up)

    async def run() -> None:
        cluster.add_hosts(3, 3)
        await cluster.open()
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.hosts))
        for node_id in cluster.hosts:
            await written(cluster, node_id)
        await test(cluster, server)
        await cluster.session.close()

    with below(loop, disks, "names"):
        run_until_end(loop, run())


async def written(cluster: Cluster, node_id: str) -> None:
    """Return once a node has answered a write with success."""
    deadline, told = cluster.loop.time() + LONG_S, ""
    while cluster.loop.time() < deadline:
        answer = await cluster.ask(node_id, "/commands", WRITE)
        if answer.status == 200:
            return
        told = answer.body.decode()
        await cluster.loop.after(LOOK_S)
    raise AssertionError(told)


def leader_of(cluster: Cluster) -> str | None:
    leading = (host.node_id for host in cluster.hosts.values() if host.node and host.node.leadership.is_leader)
    return next(leading, None)


@pytest.mark.parametrize("mood", [NameServer.Mood.FAILS, NameServer.Mood.IS_SILENT])
def test_the_survivors_of_a_leader_that_takes_the_name_server_along_commit_and_forward(mood: NameServer.Mood) -> None:
    async def fail_over(cluster: Cluster, server: NameServer) -> None:
        lost = leader_of(cluster)
        assert lost is not None
        await cluster.loop.after(LONG_S)  # No answer to a lookup is used for so long.
        server.mood = mood
        cluster.crash(lost, Keep.SOME)
        survivors = sorted(cluster.hosts.keys() - {lost})
        for node_id in survivors:
            await written(cluster, node_id)
        nodes = (await cluster.ask(survivors[0], "/cluster", method="GET")).document["nodes"]
        assert sorted(node_id for node_id, row in nodes.items() if row["status"]) == survivors

    on_named_nodes(fail_over)
