"""Fixtures of the tests of backups: a gateway that is started once, and clusters of real processes."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.backup.gateway import Gateway, running_gateway
from tests.processes.cluster import Clusters, ending_clusters


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """Makes clusters of real processes; all are gone after the test."""
    with ending_clusters(tmp_path / "clusters") as made:
        yield made
