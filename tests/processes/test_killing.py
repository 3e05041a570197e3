"""All nodes are killed at once, in the middle of a load: nothing acknowledged is lost."""

import pytest

from tests.processes.cluster import Clusters
from tests.processes.load import COMMANDS, running_load, unique_commands
from tests.verdict.verdict import system_records

ROUNDS = 2
CLIENTS = 4
SMALL_BATCH = 25  # Many frames: a kill finds some in every state.


@pytest.mark.full
def test_every_acknowledged_command_survives_a_kill_of_all_nodes_in_order(clusters: Clusters) -> None:
    cluster = clusters.formed()
    with running_load(cluster, clients=CLIENTS, commands_of=unique_commands, batch=SMALL_BATCH) as load:
        for _ in range(ROUNDS):
            load.wait_for_more(cluster, COMMANDS // 20)
            cluster.kill_all()
            cluster.start()
        load.wait_for_more(cluster, COMMANDS // 20)
        load.end()

    load.check(cluster)
    epochs = [epoch for epoch, _ in system_records(cluster.leader.raw_frames(), "epoch_start")]
    assert len(epochs) >= ROUNDS + 1, "each start of the leader began an epoch"
    assert epochs == sorted(set(epochs))


@pytest.mark.full
def test_what_was_acknowledged_is_there_when_only_a_majority_comes_back(clusters: Clusters) -> None:
    cluster = clusters.formed()
    with running_load(cluster, clients=CLIENTS, commands_of=unique_commands, batch=SMALL_BATCH) as load:
        load.wait_for_more(cluster, COMMANDS // 20)
        cluster.kill_all()
        cluster.start("n1", "n3")
        load.end()

    load.check(cluster, "n1", "n3")
