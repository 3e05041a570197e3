"""The rule on all tests with real nodes: a turn of the loop that took too long is found, and named."""

import time
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster

TURN = "long turn  "
JSON = {"Content-Type": "application/json"}


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
