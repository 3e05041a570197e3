"""Workers that share a log, and are killed, as leaders are; `python -m tests.processes.workers` is the full size."""

from pathlib import Path

import pytest

from tests.processes.cluster import Clusters
from tests.processes.workers import FLAGS, run


@pytest.mark.full
def test_workers_and_leaders_are_killed_and_every_record_is_given_out_at_least_once(
    clusters: Clusters, tmp_path: Path
) -> None:
    figures = run(clusters.formed(flags=FLAGS), tmp_path, worker_kills=4, leader_kills=1, idle_s=5)

    assert figures["deliveries"] >= figures["records"] > 0
