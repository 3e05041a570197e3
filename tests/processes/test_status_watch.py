"""`quire status --watch` beside a real cluster whose leader is frozen, or killed."""

import json
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.processes.cluster import CALM, QUIRE, Clusters, environment

ELECTION_TIMEOUT_S = int(CALM[-1]) / 1000
DEADLINE_S = 60.0
Rows = dict[str, dict[str, Any]]


@contextmanager
def watching(servers: str) -> Generator[Callable[[], Rows]]:
    """The next refresh of `quire status --watch`."""
    command = [*QUIRE, "status", "--watch", "--interval", "0.1", "--json", "--server", servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:

        def refreshed() -> Rows:
            assert process.stdout is not None
            rows: Rows = json.loads(process.stdout.readline())
            return rows

        try:
            yield refreshed
        finally:
            process.kill()


def shown_after_s(refreshed: Callable[[], Rows], holds: Callable[[Rows], bool]) -> float:
    """How long it takes until a refresh is as wanted."""
    began = time.monotonic()
    while not holds(refreshed()):
        assert time.monotonic() < began + DEADLINE_S
    return time.monotonic() - began


@pytest.mark.full
def test_a_frozen_leader_and_then_a_killed_one_are_shown_within_an_election_timeout(clusters: Clusters) -> None:
    cluster = clusters.formed()
    leader = cluster.leader

    with watching(leader.address) as refreshed:
        assert all(row["problems"] == [] for row in refreshed().values())

        leader.pause()
        frozen_s = shown_after_s(refreshed, lambda rows: rows["n1"]["status"] is None)
        [frozen] = refreshed()["n1"]["problems"]
        leader.resume()
        shown_after_s(refreshed, lambda rows: rows["n1"]["status"] is not None)

        leader.kill()
        killed_s = shown_after_s(refreshed, lambda rows: rows["n1"]["status"] is None)
        rows = refreshed()

    assert frozen.startswith("does not answer within 1 s; ")
    assert rows["n1"]["problems"] == ["is not reached: connection refused; start it, or see its journal"]
    assert set(rows) == {"n1", "n2", "n3"}
    assert max(frozen_s, killed_s) < ELECTION_TIMEOUT_S
