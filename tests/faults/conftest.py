"""Fixtures of the fault tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.faults.toxiproxy import ToxiproxyServer, running_toxiproxy
from tests.processes.cluster import Clusters, ending_clusters


@pytest.fixture
async def toxiproxy() -> AsyncIterator[ToxiproxyServer]:
    """A toxiproxy server of the test's own, gone afterwards with all its links and toxics."""
    async with running_toxiproxy() as server:
        yield server


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """Makes clusters of real processes; all are gone after the test."""
    with ending_clusters(tmp_path) as made:
        yield made
