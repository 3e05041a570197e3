"""A node that strangers call keeps nothing of them. The long form is `make soak-hellos`."""

from pathlib import Path

import pytest

from quire.replication.net.hello import PATHS
from tests.processes.bad_hellos import GROWTH_BYTES, formed, run
from tests.processes.cluster import Clusters
from tests.replication.strangers import BAD_HELLOS

COUNT = 200


@pytest.mark.full
def test_bad_hellos_leave_a_node_its_memory_its_turns_and_its_leadership(clusters: Clusters, tmp_path: Path) -> None:
    """The fixture asserts that no turn of a loop was long."""
    cluster = formed(clusters, tmp_path)
    for purpose, (_, path) in PATHS.items():
        figures = run(cluster, list(BAD_HELLOS), COUNT, path)
        assert all(each.grown_bytes[1] < GROWTH_BYTES for each in figures.values()), f"{purpose}: {figures}"
