"""A cluster grows from one node and shrinks again, and each of its nodes is replaced, under load (rule 15)."""

import json
from functools import partial

import pytest

from quire.cluster.cli.output import Exit
from tests.processes.cluster import Cluster, Clusters, Node, run_quire
from tests.processes.retriers import COUNTER, FLAGS, Retriers
from tests.verdict.verdict import check_counted

CLIENTS = 4
BETWEEN = 40
"""Commands that are answered between two changes."""


def members(cluster: Cluster, *arguments: str) -> None:
    ended = run_quire("members", *arguments, "--server", cluster.servers, "--timeout", "60", timeout_s=120)
    assert ended.code == 0, ended


def voters(cluster: Cluster) -> list[str]:
    rows = cluster.elected().status()["members"]
    return [row["node_id"] for row in rows if row["role"] == "voter"]


def add(cluster: Cluster, *nodes: Node) -> None:
    """Start nodes, add them, and wait until they are voters."""
    before = voters(cluster)
    for node in nodes:
        node.start()
    members(cluster, "add", *(f"{node.node_id}={node.address}" for node in nodes))
    became(cluster, *before, *(node.node_id for node in nodes))


def became(cluster: Cluster, *node_ids: str) -> None:
    cluster.wait_until(f"{node_ids} are the voters", lambda: voters(cluster) == sorted(node_ids))


def remove(cluster: Cluster, *nodes: Node) -> None:
    """Remove nodes, and wait until each has ended, and says why."""
    for node in nodes:
        node.may_end = True
    members(cluster, "remove", *(node.node_id for node in nodes))
    for node in nodes:
        assert node.ended() == Exit.REMOVED, node.last_words()
        assert "was removed from its cluster at index" in node.last_words()


def check(cluster: Cluster, retriers: Retriers) -> None:
    """Every request was answered, and what was answered was counted, on every node that runs."""
    retriers.end()
    assert retriers.history.unknown == []
    running = [node for node in cluster if node.process is not None]
    for node in running:
        cluster.wait_until(f"{node.node_id} has applied all", partial(_is_level, cluster, node))
        counted = node.local_state()["state"][COUNTER]
        check_counted([each.results[0] for each in retriers.history.answered], 0, counted)


def _is_level(cluster: Cluster, node: Node) -> bool:
    return bool(node.status()["applied_index"] == cluster.elected().status()["highest_index"])


def test_one_node_grows_to_three_and_five_and_shrinks_to_another_one(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"], flags=FLAGS)
    n1 = cluster["n1"]
    n2, n3, n4, n5 = (cluster.make_joining(f"n{number}", n1) for number in range(2, 6))
    cluster.start("n1")
    with Retriers([node.address for node in cluster], CLIENTS) as retriers:
        retriers.wait_for_more(cluster, BETWEEN)
        add(cluster, n2, n3)
        retriers.wait_for_more(cluster, BETWEEN)
        n4.flags[1] = n3.address  # By way of whichever member.
        add(cluster, n4, n5)
        retriers.wait_for_more(cluster, BETWEEN)
        remove(cluster, n1, n5)
        became(cluster, "n2", "n3", "n4")
        retriers.wait_for_more(cluster, BETWEEN)
        remove(cluster, n2, n3)
        became(cluster, "n4")
        retriers.wait_for_more(cluster, BETWEEN)
        check(cluster, retriers)
    again = n1.run_to_end()
    assert (again.code, "was removed from its cluster" in again.stderr) == (Exit.REMOVED, True), again


@pytest.mark.full
def test_each_node_of_three_is_replaced_though_leaders_are_killed_meanwhile(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    originals = list(cluster)
    joining = [cluster.make_joining(f"n{number}", originals[2]) for number in range(4, 7)]
    joining[2].flags[1] = joining[0].address
    with Retriers([node.address for node in cluster], CLIENTS) as retriers:
        for old, new in zip(originals, joining, strict=True):
            retriers.wait_for_more(cluster, BETWEEN)
            new.start()
            members(cluster, "add", f"{new.node_id}={new.address}")
            killed = cluster.elected()
            killed.kill()
            cluster.start_again(killed)
            cluster.wait_until(f"{new.node_id} votes", partial(_votes, cluster, new))
            remove(cluster, old)
        became(cluster, "n4", "n5", "n6")
        retriers.wait_for_more(cluster, BETWEEN)
        check(cluster, retriers)
    shown = json.loads(run_quire("members", "--json", "--server", cluster.servers).stdout)
    assert [row["node_id"] for row in shown["removed"]] == ["n1", "n2", "n3"]
    assert shown["may_fail"] == 1


def _votes(cluster: Cluster, node: Node) -> bool:
    return node.node_id in voters(cluster)
