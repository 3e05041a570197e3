"""One of three clocks is wrong: a node still leads, the log's time is right, and an alarm names the wrong clock."""

import time
from pathlib import Path

import pytest

from quire.log import walk_frames
from tests.processes.cluster import Cluster, Clusters, Node
from tests.processes.faulty import Faults

AHEAD_S = 11


def cluster_with_a_fast_clock(clusters: Clusters, folder: Path, fast: str) -> Cluster:
    cluster = clusters.make(flags=("--election-timeout-ms", "1000"))
    Faults(folder / "faults").of(cluster[fast]).set_clock(AHEAD_S)
    cluster.start()
    return cluster


def timestamps(node: Node) -> list[int]:
    return [frame.header.timestamp for frame in walk_frames(node.raw_frames())]


@pytest.mark.full
def test_a_node_whose_clock_is_fast_leads_when_only_it_has_every_record(clusters: Clusters, tmp_path: Path) -> None:
    cluster = cluster_with_a_fast_clock(clusters, tmp_path, "n2")
    cluster["n3"].kill()
    cluster["n1"].apply(["add", 5])
    cluster["n1"].kill()
    cluster["n3"].start()

    assert cluster.elected() is cluster["n2"]

    cluster["n2"].apply(["mul", 2])
    stamped = timestamps(cluster["n2"])
    assert stamped == sorted(stamped)
    assert stamped[-1] <= time.time_ns() // 1_000
    told = f"the clock of n2 is {AHEAD_S} s ahead of the majority's; set it right (NTP)"
    cluster.wait_until("n2's clock is named", lambda: told in cluster["n2"].status()["alarms"])
    cluster.start_again(cluster["n1"])
    cluster.wait_for_equal()
