"""`quire restore` left in a start script refuses beside live members; a second history alarms both sides."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, Clusters, Ended, Node, run_quire

REFUSED = "nothing was changed"


def showing(cluster: Cluster) -> list[str]:
    """What a command line shows to these nodes."""
    token, ca = cluster.caller.token, cluster.caller.ca
    return [] if token is None else ["--token-file", str(token), "--ca", str(ca)]


def backed_up(cluster: Cluster, place: Path) -> Path:
    """The place of a backup of a cluster that runs."""
    ended = run_quire("backup", str(place), "--server", cluster.servers, *showing(cluster))
    assert ended.code == 0, ended
    return place


def restored(place: Path, node: Node, *more: str) -> Ended:
    """What a start script's restore of a node says, after its disk was lost."""
    shutil.rmtree(node.data_dir)
    return run_quire("restore", str(place), "--data-dir", str(node.data_dir), "--node", node.node_id, *more)


def status(cluster: Cluster, node: Node) -> Ended:
    return run_quire("status", "--server", node.address, *showing(cluster))


def is_alarmed(cluster: Cluster, node: Node, others: Sequence[Node]) -> bool:
    """Whether a node names each of the others as one of another history, in `/status` and to an operator."""
    if set(node.status().get("other_histories", ())) != {other.node_id for other in others}:
        return False
    ended = status(cluster, node)
    assert ended.code == 1, ended
    for other in others:
        assert any(f"{other.node_id} is of another history" in alarm for alarm in node.status()["alarms"])
        assert f"{other.node_id} is of another history" in ended.stdout
    return True


@pytest.mark.parametrize("locked", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_restore_beside_live_members_refuses_and_a_forced_one_is_an_alarm_on_both_sides(
    clusters: Clusters, tmp_path: Path, locked: bool
) -> None:
    cluster = clusters.formed(locked=locked)
    place, (lost, *others) = backed_up(cluster, tmp_path / "place"), list(cluster)
    lost.kill()

    refused = restored(place, lost)
    assert (refused.code, REFUSED in refused.stderr) == (1, True), refused
    assert [path.name for path in lost.data_dir.iterdir()] == ["lock"]

    assert restored(place, lost, "--new-history").code == 0
    lost.start()
    cluster.wait_until("the restored node hears both", lambda: is_alarmed(cluster, lost, others))
    for node in others:
        cluster.wait_until("a live member hears the restored node", partial(is_alarmed, cluster, node, [lost]))

    lost.kill()
    shutil.rmtree(lost.data_dir)
    lost.start()
    cluster.wait_until("the alarm has ended", lambda: status(cluster, others[0]).code == 0)


@pytest.mark.parametrize("locked", [False, pytest.param(True, marks=pytest.mark.full)])
def test_three_that_are_restored_at_once_and_serve_as_before_are_three_alarms(
    clusters: Clusters, tmp_path: Path, locked: bool
) -> None:
    cluster = clusters.formed(locked=locked)
    place, nodes = backed_up(cluster, tmp_path / "place"), list(cluster)
    cluster.kill_all()

    for node in nodes:
        ended = restored(place, node)
        assert ended.code == 0, ended
    for node in nodes:
        node.start()

    for node in nodes:
        others = [other for other in nodes if other is not node]
        cluster.wait_until("each hears the others", partial(is_alarmed, cluster, node, others))
