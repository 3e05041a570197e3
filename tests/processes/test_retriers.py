"""Exactly once: clients that retry blindly through failovers. The long form is `make soak-retriers`."""

import pytest

from tests.processes.cluster import Clusters
from tests.processes.retriers import CLIENTS, FAILOVERS, FLAGS, run


@pytest.mark.soak
def test_what_blind_retries_count_up_through_failovers_is_counted_once(clusters: Clusters) -> None:
    figures = run(clusters.formed(flags=FLAGS), CLIENTS, FAILOVERS, commands=100)

    assert figures["acknowledged"] >= 2 * FAILOVERS * 100
    assert figures["of_them_retries"] > 0
