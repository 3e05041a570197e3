"""Real nodes whose machine computes for 200 ms a command: writers wait, and nobody is deposed."""

import pytest

from tests import tuned
from tests.processes.cluster import Clusters
from tests.processes.load import running_load

COMMANDS = 20
DEADLINE_S = 300.0


@pytest.mark.soak
def test_a_machine_that_takes_200_ms_a_command_deposes_nobody(clusters: Clusters) -> None:
    cluster = clusters.formed(
        flags=("--machine", "tests.cluster.machines:Slow", *tuned.flags(request_timeout_ms=120_000))
    )
    leader = cluster.leader
    before = leader.status()["epoch"]
    with running_load(cluster, clients=4, commands_of=lambda _: iter([["count"]] * 1000), batch=1) as load:
        load.wait_for_more(cluster, COMMANDS)
    cluster.wait_for_equal(deadline_s=DEADLINE_S)
    assert [node.status()["epoch"] for node in cluster] == [before] * 3
    assert leader.status()["role"] == "leader"
    assert load.history.unknown == []
