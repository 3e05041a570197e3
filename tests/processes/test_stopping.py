"""Stops, kills, and the start after each: the mark (`log/DESIGN.md`), and rules 3 and 6 of `docs/protocol.md`."""

import signal
import sys

import pytest

from tests.processes.cluster import Clusters, Node, Unreachable
from tests.processes.data_files import read_mark
from tests.processes.load import COMMANDS, running_load, unique_commands
from tests.verdict.verdict import system_records

# The earliest moment at which a signal can hit the child: before any code of quire runs there.
HIT_AT_FORK = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
from tests.tuned import main
main()
"""
ROUNDS = 2
CLIENTS = 4
SMALL_BATCH = 25  # Many frames: a kill finds some in every state.


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.full),
    ],
)
def test_a_signal_stops_each_node_cleanly_with_exit_code_0(clusters: Clusters, number: signal.Signals) -> None:
    cluster = clusters.formed()
    cluster.leader.apply(["add", 3], ["div", 5])
    statuses = cluster.wait_for_equal()

    for node in reversed(list(cluster)):
        node.running.send_signal(number)
        assert node.stop() == 0, node.last_words()

    for node in cluster:
        mark, status = read_mark(node.data_dir), statuses[node.node_id]
        assert mark.clean, node.node_id
        assert (mark.durable_index, mark.epoch) == (status["durable_index"], status["epoch"])
        assert "Traceback" not in node.output.read_text()


def test_a_node_that_runs_or_was_killed_is_not_marked_clean(clusters: Clusters) -> None:
    cluster = clusters.formed()
    cluster.leader.apply(["add", 3])
    for node in cluster:
        assert not read_mark(node.data_dir).clean

    cluster.kill_all()

    for node in cluster:
        assert not read_mark(node.data_dir).clean


def test_a_signal_to_the_child_that_writes_a_snapshot_does_not_stop_the_node(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"])
    node = cluster["n1"]
    node.program = (sys.executable, "-c", HIT_AT_FORK)
    cluster.start()
    node.apply(["add", 3])

    refused = node.call("POST", "/admin/snapshot")

    node.apply(["add", 5])
    assert (refused.status, "ended with status 15" in refused.document["detail"]) == (503, True), refused
    assert "stopping" not in node.output.read_text()


@pytest.mark.soak
def test_a_stop_in_the_middle_of_a_load_loses_nothing_acknowledged(clusters: Clusters) -> None:
    cluster = clusters.formed()
    with running_load(cluster, clients=2) as load:
        for node_id in ("n3", "n1", "n2"):
            load.wait_for_more(cluster, COMMANDS // 50)
            assert cluster[node_id].stop() == 0
            cluster.start(node_id)
        load.wait_for_more(cluster, COMMANDS // 50)
        load.end()

    load.check(cluster)


@pytest.mark.full
def test_a_restarted_node_serves_the_state_that_it_had_though_it_is_alone(clusters: Clusters) -> None:
    cluster = clusters.formed()
    with running_load(cluster) as load:
        load.wait_for_more(cluster, COMMANDS // 4)
        load.end()
    cluster.wait_for_equal()
    node = cluster["n2"]
    before = node.local_state()
    cluster.stop("n2")
    cluster.stop()

    node.start()  # alone: nobody can tell it anything

    cluster.wait_until("n2 has applied what it had", lambda: local_state_if_any(node) == before)
    assert node.status()["role"] != "leader"
    cluster.start("n1", "n3")
    statuses = cluster.wait_for_equal()
    begun = system_records(cluster.leader.raw_frames(before["applied_index"]), "epoch_start")
    assert statuses["n1"]["applied_index"] == before["applied_index"] + len(begun), "nothing but new epochs came"


def local_state_if_any(node: Node) -> dict[str, object]:
    """The node's own state; nothing while it does not answer."""
    try:
        return node.local_state()
    except Unreachable:
        return {}


@pytest.mark.soak
def test_a_leader_takes_a_new_epoch_at_each_start_however_it_ended(clusters: Clusters) -> None:
    cluster = clusters.formed()
    epochs = [cluster.leader.status()["epoch"]]

    for end in (cluster.leader.stop, cluster.leader.kill, cluster.leader.kill, cluster.leader.stop):
        end()
        cluster.start("n1")
        epochs.append(cluster.leader.status()["epoch"])

    assert epochs == sorted(set(epochs)), "each is above the one before"
    cluster.leader.apply(["add", 3])
    cluster.wait_for_equal()
    for node in cluster:
        begun = system_records(node.raw_frames(), "epoch_start")
        assert [epoch for epoch, _ in begun] == sorted({epoch for epoch, _ in begun}), "an epoch begins once"
        assert {epoch for epoch, record in begun if record["node_id"] == "n1"} >= set(epochs)


@pytest.mark.full
def test_a_restart_of_a_follower_begins_no_new_epoch(clusters: Clusters) -> None:
    cluster = clusters.formed()
    epoch = cluster.leader.status()["epoch"]

    for node_id in ("n2", "n3"):
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster[node_id].kill()
        cluster.start(node_id)

    assert cluster.leader.apply(["add", 3])["epoch"] == epoch
    cluster.wait_for_equal()


# Kills of all nodes at once, in the middle of a load


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
