"""Long turns of a node's loop are found and named; a slow machine makes none, and nobody is deposed for it."""

import time
from pathlib import Path

import pytest

from tests import tuned
from tests.processes.cluster import Cluster, Clusters
from tests.processes.load import running_load

TURN = "long turn  "
JSON = {"Content-Type": "application/json"}
SLOW_COMMANDS = 20
DEADLINE_S = 300.0


@pytest.mark.full
def test_a_turn_that_took_too_long_is_in_the_journal_with_what_ran_and_is_found(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, flags=("--machine", "tests.cluster.machines:Hasty"))
    try:
        cluster.start()
        cluster.refuse_long_turns()
        deadline = time.monotonic() + 60
        while TURN not in cluster.leader.output.read_text():  # The first command may come before it looked.
            cluster.leader.apply(["count"])
            assert time.monotonic() < deadline
        with pytest.raises(AssertionError, match=r"what='.* > machines\.Slow\.apply:"):
            cluster.refuse_long_turns()
        text = cluster.leader.call("GET", "/metrics").body.decode()
        (longest,) = [line for line in text.splitlines() if line.startswith("quire_loop_turn_longest_seconds{")]
        assert float(longest.rpartition(" ")[2]) > 0.1
    finally:
        cluster.close()


@pytest.mark.soak
def test_millions_of_containers_are_not_visited_by_the_garbage_collector_all_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, flags=("--machine", "tests.cluster.machines:Hoard"))
    try:
        cluster.start()
        body = b'{"commands": [' + b", ".join([b"0"] * 100) + b"]}"
        for _ in range(150):  # 2.5 million, and five times as many in their place.
            assert cluster.leader.call("POST", "/commands", body, JSON).status == 200
        cluster.wait_for_equal()
        cluster.refuse_long_turns()
    finally:
        cluster.close()


@pytest.mark.soak
def test_a_machine_that_takes_200_ms_a_command_deposes_nobody(clusters: Clusters) -> None:
    cluster = clusters.formed(
        flags=("--machine", "tests.cluster.machines:Slow", *tuned.flags(request_timeout_ms=120_000))
    )
    leader = cluster.leader
    before = leader.status()["epoch"]
    with running_load(cluster, clients=4, commands_of=lambda _: iter([["count"]] * 1000), batch=1) as load:
        load.wait_for_more(cluster, SLOW_COMMANDS)
    cluster.wait_for_equal(deadline_s=DEADLINE_S)
    assert [node.status()["epoch"] for node in cluster] == [before] * 3
    assert leader.status()["role"] == "leader"
    assert load.history.unknown == []
