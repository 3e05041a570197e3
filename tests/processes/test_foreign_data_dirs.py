"""A data_dir of another cluster with the same node ids is refused, and does not disturb the running cluster."""

import shutil

import pytest

from tests.processes.cluster import Clusters
from tests.processes.data_files import contents
from tests.processes.refusals import FAILED, check_refused, last_sentence

ENDS_WITHIN_S = 20.0  # Only its peers can tell it, once it has reached one.


@pytest.mark.soak
def test_a_data_dir_of_another_cluster_is_refused_and_left_as_it_is(clusters: Clusters) -> None:
    other = clusters.formed()
    other.leader.apply(["add", 100])
    other.wait_for_equal()
    foreign_id = other.leader.status()["cluster_id"]
    other.stop()
    cluster = clusters.formed()
    cluster.leader.apply(["add", 3])
    before = cluster.wait_for_equal()["n1"]
    cluster.stop("n2")
    before_log = contents(other["n2"].data_dir / "log")

    ended = cluster["n2"].run_to_end("--data-dir", str(other["n2"].data_dir), timeout_s=ENDS_WITHIN_S)

    sentence = last_sentence(ended, FAILED)
    assert foreign_id in sentence or "another cluster" in sentence, sentence
    assert contents(other["n2"].data_dir / "log") == before_log
    assert cluster.leader.status()["digest"] == before["digest"]
    cluster.start("n2")
    assert cluster.leader.apply(["div", 5])["results"] == ["9"]
    cluster.wait_for_equal()


@pytest.mark.soak
def test_a_log_of_another_cluster_below_this_one_s_identity_is_refused(clusters: Clusters) -> None:
    other = clusters.formed()
    other.stop()
    cluster = clusters.formed()
    cluster.stop("n2")
    node = cluster["n2"]
    for name in ("log", "mark"):
        moved = node.data_dir / name
        moved.rename(node.data_dir.with_name(f"kept-{name}"))
    shutil.copytree(other["n2"].data_dir / "log", node.data_dir / "log")
    shutil.copy(other["n2"].data_dir / "mark", node.data_dir / "mark")
    before = contents(node.data_dir / "log")

    ended = node.run_to_end()

    check_refused(ended, FAILED, f"data_dir {node.data_dir}", cluster.leader.status()["cluster_id"])
    assert contents(node.data_dir / "log") == before
