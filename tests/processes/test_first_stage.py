"""Clusters in which some nodes run the first stage, which knows no features (`first_stage/README.md`)."""

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.processes.cluster import CHECKED, QUIRE, Cluster, Clusters, Node

WHEEL = Path(__file__).parent / "first_stage" / "quire-0.1.0-py3-none-any.whl"
RUN = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("quire.cluster.cli.main", run_name="__main__")
"""

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def first_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first-stage")
    ZipFile(WHEEL).extractall(folder)
    return folder


ALL = ["fitness", "session_ttl", "state_quota"]


def downgrade(node: Node, first_stage: Path) -> None:
    """Run it with the first stage from its next start on."""
    node.program = (sys.executable, "-c", RUN, str(first_stage))
    node.flags = [flag for flag in node.flags if flag not in CHECKED]


def upgrade(node: Node) -> None:
    node.program = QUIRE


def features_of(node: Node) -> list[str]:
    return list(node.status().get("features", []))


def restart(cluster: Cluster, node: Node) -> None:
    node.stop()
    node.start()
    cluster.wait_until_ready(*cluster)


def all_agree(cluster: Cluster, expected: str) -> None:
    cluster.wait_until(expected, lambda: all(node.local_state()["state"] == expected for node in cluster))


def test_a_cluster_is_upgraded_node_by_node_and_uses_the_features_when_the_last_one_has_them(
    clusters: Clusters, first_stage: Path
) -> None:
    cluster = clusters.make()
    for node in cluster:
        downgrade(node, first_stage)
    cluster.start()
    cluster.wait_until_ready(*cluster)
    cluster["n1"].apply(["add", 1])

    answer = 43
    for number, node_id in enumerate(("n1", "n2", "n3"), 1):  # 2 + 1, then 1 + 2, then all.
        assert not any(features_of(node) for node in cluster)
        upgrade(cluster[node_id])
        restart(cluster, cluster[node_id])
        for leader in ("n1", "n3") if number < 3 else ("n2",):  # Both versions lead the other.
            cluster.lead(leader)
            for node in cluster:
                node.apply(["add", 1])
                answer += 1
        all_agree(cluster, str(answer))
    cluster.wait_until("the features are in use", lambda: all(features_of(node) == ALL for node in cluster))

    downgrade(cluster["n3"], first_stage)
    cluster["n3"].stop()
    cluster["n3"].start()
    cluster.wait_until(
        "the first stage is refused", lambda: "upgrade that node" in str(cluster["n3"].status()["link_failures"])
    )
    cluster["n1"].apply(["add", 1])
    upgrade(cluster["n3"])
    restart(cluster, cluster["n3"])
    all_agree(cluster, str(answer + 1))


def test_a_node_of_the_first_stage_among_new_ones_keeps_the_cluster_without_features(
    clusters: Clusters, first_stage: Path
) -> None:
    cluster = clusters.make()
    downgrade(cluster["n1"], first_stage)
    cluster.start()
    cluster.wait_until_ready(*cluster)

    for leader in ("n1", "n2"):
        cluster.lead(leader)
        for node in cluster:
            node.apply(["add", 1])

    all_agree(cluster, "48")
    assert not any(features_of(node) for node in cluster)


def test_a_cluster_of_new_nodes_has_the_features_from_its_first_record_on(clusters: Clusters) -> None:
    cluster = clusters.formed()

    cluster.wait_until("the features are in use", lambda: all(features_of(node) == ALL for node in cluster))
