"""Servers whose stdout and stderr are a full pipe that nobody reads."""

import os
import shlex
from collections.abc import Iterator

import pytest

from tests.processes.cluster import QUIRE, TUNED, Clusters


def into(descriptor: int) -> str:
    """What sends the output of a shell's command into a descriptor of this process."""
    return f">>/proc/{os.getpid()}/fd/{descriptor} 2>&1"


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that has no room."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.full
def test_a_standalone_log_serves_and_stops_though_nobody_reads_its_output(clusters: Clusters, full_pipe: int) -> None:
    cluster = clusters.make(("n1",))
    node = cluster["n1"]
    command = [*QUIRE, "serve", "--standalone", "--listen", node.address, "--data-dir", str(node.data_dir)]
    node.program = ("/bin/sh", "-c", f"exec {shlex.join(command)} {into(full_pipe)}")

    node.start()

    cluster.wait_until("it serves", lambda: node.call("GET", "/healthz").status == 200)
    assert node.stop() == 0


@pytest.mark.full
def test_nodes_elect_serve_and_stop_though_nobody_reads_their_output(clusters: Clusters, full_pipe: int) -> None:
    cluster = clusters.make()
    for node in cluster:
        node.program = ("/bin/sh", "-c", f'exec "$0" "$@" {into(full_pipe)}', *TUNED)
    cluster.start()
    cluster.leader.apply(["add", 3])

    cluster.leader.kill()

    leader = cluster.elected()
    assert leader.apply(["add", 4])["results"] == ["49"]
    cluster.stop()
