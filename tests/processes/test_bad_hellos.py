"""A node that strangers call keeps nothing of them. The long form is `make soak-hellos`."""

from pathlib import Path

import pytest

from quire.replication.net.hello import PATHS
from tests.processes.bad_hellos import formed, run
from tests.processes.cluster import Clusters
from tests.replication.strangers import BAD_HELLOS

COUNT = 200
GROWTH_BYTES = 1 << 20
"""Of all kinds together. A connection that leaves what its task and its traceback hold, some 11 KiB, is twice that."""


@pytest.mark.soak
def test_bad_hellos_leave_a_node_its_memory_its_turns_and_its_leadership(clusters: Clusters, tmp_path: Path) -> None:
    """The fixture asserts that no turn of a loop was long."""
    cluster = formed(clusters, tmp_path)
    for purpose, path in PATHS.items():
        figures = run(cluster, list(BAD_HELLOS), COUNT, path)
        assert sum(each.grown_bytes[1] for each in figures.values()) < GROWTH_BYTES, f"{purpose}: {figures}"
