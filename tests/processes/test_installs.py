"""A follower that was away until its leader's log began above its own gets a snapshot; it is killed at every stage."""

import os
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from tests import tuned
from tests.processes.cluster import Cluster, Clusters, Node
from tests.processes.load import Command, running_load, unique_commands

FLAGS = [
    "--machine=log",
    "--segment-bytes=65536",
    "--snapshot-records=5",
    "--retention-bytes=1",
    *tuned.flags(follower_bytes=0),
]
RECORD = b"x" * 50_000
UNDER_LOAD = [
    "--segment-bytes=65536",
    "--snapshot-records=2000",
    "--retention-bytes=1",
    *tuned.flags(follower_bytes=0),
]
MISSED = 20


def written(cluster: Cluster, records: int = 12) -> None:
    leader = cluster.leader
    for _ in range(records):
        assert leader.call("POST", "/records", RECORD).status == 200


def left_behind(cluster: Cluster, node: Node) -> None:
    """Kill it, and write until the leader's log begins above its end."""
    end = int(node.status()["highest_index"])
    node.kill()
    for _ in range(20):
        written(cluster)
        if cluster.wait_until("the leader answers", cluster.leader.status)["lowest_index"] > end:
            return
    pytest.fail(f"nothing expired: {cluster.leader.status()['expiry']}")


def names(node: Node) -> list[str]:
    folder = Path(node.data_dir) / "snapshots"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


Reached = Callable[[Node, set[str]], bool]
"""Told a node and what stood in its folder of snapshots when it came back."""

STAGES: dict[str, Reached] = {
    "a part or more is there": lambda node, before: bool(set(names(node)) - before),
    "a snapshot counts": lambda node, before: any(name.isdigit() for name in set(names(node)) - before),
    "it listens": lambda node, _: node.call("GET", "/healthz").status == 200,
}


@pytest.mark.full
@pytest.mark.parametrize("locked", [False, True], ids=["plain", "with TLS"])
def test_a_follower_that_is_killed_at_each_stage_of_an_install_ends_equal(clusters: Clusters, locked: bool) -> None:
    cluster = clusters.formed(flags=FLAGS, locked=locked)
    node = next(iter(cluster.followers))
    written(cluster)
    for stage, reached in STAGES.items():
        left_behind(cluster, node)
        before = set(names(node))
        node.start()
        cluster.wait_until(stage, partial(reached, node, before))
        node.kill()
        cluster.start_again(node)
        cluster.wait_for_equal()
        assert node.status()["lowest_index"] > 0


@pytest.mark.soak
def test_a_follower_that_missed_twenty_expiries_catches_up_while_clients_write(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=UNDER_LOAD)
    node = next(iter(cluster.followers))
    with running_load(cluster, clients=2, commands_of=unique_commands) as load:
        load.wait_for_more(cluster, 1_000)
        node.kill()
        end, before = cluster.leader.status()["highest_index"], expired(cluster)
        cluster.wait_until(f"{MISSED} segments expire", lambda: expired(cluster) >= before + MISSED)
        cluster.start_again(node)
        load.wait_for_more(cluster, 1_000)
        load.end()
    cluster.wait_for_equal()
    assert node.status()["lowest_index"] > end, "it had no need of a snapshot"
    acknowledged = 42 + sum(total(batch.commands) for batch in load.history.answered)
    possible = [
        acknowledged + sum(map(total, executed))
        for count in range(len(load.history.unknown) + 1)
        for executed in combinations(load.history.unknown, count)
    ]
    assert int(node.local_state()["state"]) in possible


def expired(cluster: Cluster) -> int:
    return int(cluster.leader.status()["expiry"]["expired_segments"])


def total(commands: list[Command]) -> int:
    return sum(operand for _, operand in commands)
