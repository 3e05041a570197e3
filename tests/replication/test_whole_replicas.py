"""Several replicas over real sockets: what one takes, all of them commit."""

import pytest

from quire.log import Kind, frame_values
from tests.replication.loopback import calling, turns, until
from tests.replication.running import Cluster, Running, cluster_of


@pytest.mark.parametrize("secret", [None, b"a secret of the peers"])
async def test_what_one_replica_takes_all_of_them_commit_in_order(secret: bytes | None) -> None:
    async with cluster_of("n1", "n2", "n3", secret=secret) as cluster:
        for number in range(500):
            cluster["n1"].write(number)
            await turns(1)
        cluster["n1"].write("large", "x" * 3_000_000)
        cluster["n1"].write("last")

        await until(lambda: committed(cluster, "last"))

        expected = [*range(500), "large", "x" * 3_000_000, "last"]
        for node in cluster.nodes.values():
            assert stored(node) == expected
            assert node.owner.halts == []


def stored(node: Running) -> list[object]:
    """The clients' values that a running node has committed."""
    frames = node.log.reader.stream(0, node.owner.applied_index)
    return [value for frame in frames if frame.header.kind != Kind.SYSTEM for value in frame_values(frame)]


def committed(cluster: Cluster, value: object) -> bool:
    """Whether every node has committed this value as its last."""
    ends = {node.owner.applied_index for node in cluster.nodes.values()}
    if len(ends) != 1 or ends != {node.log.tail.index for node in cluster.nodes.values()}:
        return False
    return all(node.log.read(node.log.tail.index - 1).value == value for node in cluster.nodes.values())


async def test_a_follower_that_lost_power_comes_back_and_is_sent_what_it_lacks() -> None:
    async with cluster_of("n1", "n2", "n3") as cluster, calling() as session:
        cluster["n1"].write("before")
        await until(lambda: committed(cluster, "before"))
        node = cluster.nodes.pop("n3")
        await node.replica.stop()
        node.device.lose_power()
        for number in range(20):
            cluster["n1"].write(number)

        cluster.make("n3", node.device).replica.start(session, nominated=False)
        cluster["n1"].write("after")
        await until(lambda: committed(cluster, "after"))

        assert stored(cluster["n3"]) == stored(cluster["n1"])
        await cluster.stop("n3")


async def test_a_node_that_is_named_after_the_leader_stopped_leads_and_the_old_one_follows() -> None:
    async with cluster_of("n1", "n2", "n3") as cluster, calling() as session:
        cluster["n1"].write("first")
        await until(lambda: committed(cluster, "first"))
        epoch = cluster["n1"].replica.core.state.promise.epoch
        devices = {node_id: await cluster.stop(node_id) for node_id in ("n1", "n2")}

        cluster.make("n2", devices["n2"]).replica.start(session, nominated=True)
        await until(lambda: cluster["n2"].serves)
        cluster.make("n1", devices["n1"]).replica.start(session, nominated=False)
        cluster["n2"].write("second")
        await until(lambda: committed(cluster, "second"))

        assert [stored(node) for node in cluster.nodes.values()] == [["first", "second"]] * 3
        assert {node.replica.core.state.promise for node in cluster.nodes.values()} == {
            cluster["n2"].replica.core.state.promise
        }
        assert cluster["n2"].replica.core.state.promise.epoch > epoch
        for node_id in ("n1", "n2"):
            await cluster.stop(node_id)
