"""`quire roll` restarts every node of a cluster under load, and no request fails."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quire import connect_sync
from quire.cluster.client import BlockingClient
from tests.processes.cluster import QUIRE, Cluster, Clusters, environment, run_quire
from tests.processes.unread import full_pipe

# What `--exec` runs: it asks the test to restart the node, since the node's process is the test's.
ASKS = """
import os, pathlib, sys
asked = pathlib.Path(sys.argv[1], sys.argv[2] + ".asked")
os.mkfifo(asked)
asked.read_text()  # Waits for the test to write.
"""


class Callers:
    """Clients in threads: each makes one request after another, and stops at the first that fails."""

    def __init__(self, servers: str, count: int) -> None:
        self.made = [0] * count
        self.failed: list[Exception] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(number, servers)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _call(self, number: int, servers: str) -> None:
        try:
            with connect_sync(servers) as client:
                while not self._ends.is_set():
                    self._request(number, client)
                    self.made[number] += 1
        except Exception as error:  # noqa: BLE001  # The test raises it.
            self.failed.append(error)

    @staticmethod
    def _request(number: int, client: BlockingClient) -> None:
        if number % 2:
            client.query(None)
        else:
            client.apply(["add", 1])

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        assert self.failed == []
        assert min(self.made) > 0


def rolled(cluster: Cluster, folder: Path, out: int = subprocess.PIPE) -> str:
    """What the command printed, if `out` is not given; it must succeed."""
    command = f"{sys.executable} {folder / 'asks.py'} {folder} {{node}}"
    (folder / "asks.py").write_text(ASKS)
    roll = subprocess.Popen(
        [*QUIRE, "roll", "--exec", command, "--server", cluster.servers],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    for node in cluster:
        node.may_end = True  # While it is restarted; whether it came back the command itself looks at.

    answered: set[str] = set()

    def restarted() -> bool:
        for node in cluster:
            asked = folder / f"{node.node_id}.asked"
            if asked.exists() and node.node_id not in answered:
                assert node.stop() == 0, node.last_words()
                node.start()
                answered.add(node.node_id)
                asked.write_text("done")
        return roll.poll() is not None

    cluster.wait_until("all are restarted", restarted, 120)
    said, complained = roll.communicate()
    assert roll.returncode == 0, complained
    return said


def test_three_nodes_are_restarted_under_load_and_no_request_fails(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.formed(flags=["--election-timeout-ms", "1000"])
    before = {node.node_id: node.status()["started_at"] for node in cluster}
    cluster.lead("n1")
    callers = Callers(cluster.servers, 4)
    try:
        said = rolled(cluster, tmp_path)
    finally:
        callers.end()
    assert [line.split()[0] for line in said.splitlines()] == ["n2", "n3", "n1"], "the leader is the last"
    for node in cluster:
        assert node.status()["started_at"] > before[node.node_id]
        assert not node.status()["drained"]
    cluster.wait_for_equal()


@pytest.mark.full
def test_a_roll_goes_on_though_nobody_reads_its_output(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.formed(flags=["--election-timeout-ms", "1000"])
    before = {node.node_id: node.status()["started_at"] for node in cluster}
    with full_pipe() as full:
        rolled(cluster, tmp_path, full)
    assert all(node.status()["started_at"] > before[node.node_id] for node in cluster)


@pytest.mark.full
def test_a_node_that_does_not_come_back_ends_the_roll(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--election-timeout-ms", "1000"])
    cluster.lead("n1")
    for command, why in (("false", "failed with 1"), ("true", "it is the same process")):
        ended = run_quire("roll", "--exec", command, "--server", cluster.servers, "--timeout", "3")
        assert (ended.code, why in ended.stderr) == (1, True), ended
    only = run_quire("drain", "n2", "--server", cluster.servers)
    assert "n2 is drained" in only.stdout, only
    assert cluster["n2"].status()["drained"]
    assert run_quire("undrain", "n2", "--server", cluster.servers).code == 0
    cluster["n3"].kill()
    needed = run_quire("drain", "n2", "--server", cluster.servers, "--timeout", "3")
    assert (needed.code, "n3 is not heard" in needed.stderr) == (3, True), needed


@pytest.mark.full
def test_braces_that_are_no_placeholder_are_refused_before_a_node_is_drained(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"])
    cluster.start("n1")
    cluster.elected()
    for command in ("echo {hots}", "echo {}", "echo {0}", "echo {node", "echo {node.there}", 'sh -c "echo ${X}"'):
        ended = run_quire("roll", "--exec", command, "--server", cluster.servers)
        assert (ended.code, "{node}, {host}, {port} and {address}" in ended.stderr) == (2, True), ended
    assert not cluster["n1"].status()["drained"]
    alone = run_quire("roll", "--exec", "echo {{}}", "--server", cluster.servers, "--timeout", "1")
    assert (alone.code, "the only voter" in alone.stderr) == (1, True), alone
    assert "`quire undrain n1`" in alone.stderr


@pytest.mark.full
def test_what_the_members_say_of_a_lone_node_is_whole(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"])
    cluster.start("n1")
    address = cluster["n1"].address
    again = run_quire("members", "add", f"n1={address}", "--server", address)
    assert (again.code, again.stdout.strip()) == (0, "n1: already a member; nothing was changed"), again
    shown = run_quire("members", "--server", address)
    assert address in shown.stdout, "not cut, whatever the width of the terminal"
