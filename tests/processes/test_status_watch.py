"""`quire status --watch` beside a real cluster whose leader is frozen, or killed."""

import json
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from quire.cluster.cli.output import Exit
from quire.cluster.cli.status import WATCH_TIMEOUT_S
from quire.cluster.config.serve import ServeConfig
from tests.processes.cluster import QUIRE, Clusters, environment, run_quire

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


def wait_until_shown(refreshed: Callable[[], Rows], holds: Callable[[Rows], bool]) -> None:
    """Return once a refresh is as wanted."""
    end = time.monotonic() + DEADLINE_S
    while not holds(refreshed()):
        assert time.monotonic() < end


@pytest.mark.full
def test_a_frozen_leader_and_then_a_killed_one_are_shown_within_an_election_timeout(clusters: Clusters) -> None:
    cluster = clusters.formed()
    leader = cluster.leader

    with watching(leader.address) as refreshed:
        assert all(row["problems"] == [] for row in refreshed().values())

        leader.pause()
        wait_until_shown(refreshed, lambda rows: rows["n1"]["status"] is None)
        [frozen] = refreshed()["n1"]["problems"]
        leader.resume()
        wait_until_shown(refreshed, lambda rows: rows["n1"]["status"] is not None)

        leader.kill()
        wait_until_shown(refreshed, lambda rows: rows["n1"]["status"] is None)
        rows = refreshed()

    assert frozen.startswith("does not answer within 1 s; ")
    assert rows["n1"]["problems"] == ["is not reached: connection refused; start it, or see its journal"]
    assert set(rows) == {"n1", "n2", "n3"}
    assert ServeConfig.model_fields["election_timeout_ms"].default / 1000 >= WATCH_TIMEOUT_S


@pytest.mark.full
def test_status_waits_until_every_node_is_ready(clusters: Clusters) -> None:
    cluster = clusters.formed()
    cluster.kill_all()
    at_once = run_quire("status", "--server", cluster.servers)
    command = [*QUIRE, "status", "--wait", "60", "--server", cluster.servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as waiting:
        for node in cluster:
            node.start()
        said, _ = waiting.communicate(timeout=2 * DEADLINE_S)

    assert at_once.code == Exit.UNAVAILABLE
    assert waiting.returncode == Exit.DONE
    assert said.startswith("problems: none\n")
    assert run_quire("status", "--wait", "1", "--watch", "--server", cluster.servers).code == Exit.USAGE
