"""A node whose disk was wiped becomes a voter again, under load; the leader may be killed meanwhile (rule 15)."""

import json
import shutil
import subprocess

import pytest

from tests import tuned
from tests.processes.cluster import QUIRE, Cluster, Clusters, Node, environment, run_quire
from tests.processes.retriers import FLAGS, Retriers, check, check_count

CLIENTS = 5
SNAPSHOTS = (
    "--segment-bytes=65536",
    "--snapshot-records=200",
    "--retention-bytes=1",
    *tuned.flags(follower_bytes=0),
)


def wiped(cluster: Cluster, node: Node) -> None:
    """It stops, loses its disk, and comes back with an empty one."""
    node.stop()
    shutil.rmtree(node.data_dir)
    node.start()
    cluster.wait_until(f"{node.node_id} observes", lambda: node.is_ready() and node.status()["role"] == "observer")


def promote(cluster: Cluster, node_id: str) -> list[int]:
    ended = run_quire("members", "promote", node_id, "--server", cluster.servers, "--json", timeout_s=120)
    assert ended.code == 0, ended
    changes: list[int] = json.loads(ended.stdout)["changes"]
    return changes


def voters(node: Node) -> list[str]:
    return [member["node_id"] for member in node.status()["members"] if member["role"] == "voter"]


def disks(node: Node) -> list[str]:
    return [member["disk_id"] for member in node.status()["members"]]


@pytest.mark.soak
def test_a_wiped_node_gets_a_snapshot_is_promoted_and_counts_when_another_is_killed(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=[*FLAGS, *SNAPSHOTS])
    cluster.lead("n1")
    with Retriers([node.address for node in cluster], CLIENTS) as retriers:
        retriers.wait_for_more(cluster, 600)
        cluster.wait_until("the log begins later", lambda: cluster.elected().status()["lowest_index"] > 0)
        wiped(cluster, cluster["n3"])
        assert cluster["n3"].status()["lowest_index"] > 0, "a snapshot was installed"

        changes = promote(cluster, "n3")

        assert len(changes) == 2
        unknown = run_quire("members", "promote", "n9", "--server", cluster.servers)
        assert (unknown.code, "not a member (n1, n2, n3)" in unknown.stderr) == (1, True)
        shown = run_quire("members", "--server", cluster.servers)
        assert shown.stdout.count("voter") == 3, shown
        killed = cluster["n2"]
        killed.kill()
        retriers.wait_for_more(cluster, 100)  # By n1's and n3's votes.
        cluster.start_again(killed)
        retriers.wait_for_more(cluster, 50)
        retriers.end()
        check_count(cluster, retriers)
    assert [voters(node) for node in cluster] == [["n1", "n2", "n3"]] * 3


@pytest.mark.soak
def test_the_leader_is_killed_while_the_members_change_and_saying_it_again_finishes(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    cluster.lead("n1")
    with Retriers([node.address for node in cluster], CLIENTS) as retriers:
        retriers.wait_for_more(cluster, 100)
        wiped(cluster, cluster["n3"])
        before = disks(cluster["n1"])
        leader = cluster.elected()
        asking = [*QUIRE, "members", "promote", "n3", "--server", cluster.servers, "--timeout", "60", "--json"]
        with subprocess.Popen(asking, stdout=subprocess.PIPE, env=environment()) as operator:
            # The first record stands in the leader's log then, or the second, too: it ends well from each.
            cluster.wait_until("a change is in the leader's log", lambda: disks(leader) != before)
            leader.kill()
            cluster.start_again(leader)
            stdout, _ = operator.communicate(timeout=120)
        assert operator.returncode == 0, "the client asks again by itself"
        assert json.loads(stdout)["node_id"] == "n3"
        assert promote(cluster, "n3") == []
        retriers.wait_for_more(cluster, 50)
        retriers.end()
        check(cluster, retriers)
    assert [voters(node) for node in cluster] == [["n1", "n2", "n3"]] * 3
