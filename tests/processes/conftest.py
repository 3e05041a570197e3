"""Fixtures of the process tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.cluster import Clusters, ending_clusters


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """Makes clusters of real processes; all are gone after the test."""
    with ending_clusters(tmp_path) as made:
        yield made
