"""Servers whose stdout and stderr are a full pipe that nobody reads."""

import os
import shlex
from collections.abc import Iterator

import pytest

from tests.processes.cluster import QUIRE, TUNED, Clusters
from tests.processes.unread import full_pipe


def into(descriptor: int) -> str:
    """What sends the output of a shell's command into a descriptor of this process."""
    return f">>/proc/{os.getpid()}/fd/{descriptor} 2>&1"


@pytest.fixture
def unread() -> Iterator[int]:
    with full_pipe() as writing:
        yield writing


@pytest.mark.full
def test_a_standalone_log_serves_and_stops_though_nobody_reads_its_output(clusters: Clusters, unread: int) -> None:
    cluster = clusters.make(("n1",))
    node = cluster["n1"]
    command = [*QUIRE, "serve", "--standalone", "--listen", node.address, "--data-dir", str(node.data_dir)]
    node.program = ("/bin/sh", "-c", f"exec {shlex.join(command)} {into(unread)}")

    node.start()

    cluster.wait_until("it serves", lambda: node.call("GET", "/healthz").status == 200)
    assert node.stop() == 0


@pytest.mark.full
def test_nodes_elect_serve_and_stop_though_nobody_reads_their_output(clusters: Clusters, unread: int) -> None:
    cluster = clusters.make()
    for node in cluster:
        node.program = ("/bin/sh", "-c", f'exec "$0" "$@" {into(unread)}', *TUNED)
    cluster.start()
    cluster.leader.apply(["add", 3])

    cluster.leader.kill()

    leader = cluster.elected()
    assert leader.apply(["add", 4])["results"] == ["49"]
    cluster.stop()
