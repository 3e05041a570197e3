"""Real leaders with permanent faults: another leads soon, writes are served, and the faulty node reports the fault."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.processes import faulty as faulty_program
from tests.processes.cluster import Cluster, Clusters, Node, Unreachable, run_quire
from tests.processes.faulty import Faults

FLAGS = ("--election-timeout-ms", "3000", "--segment-bytes", str(1 << 20))
VOLUME_BYTES = 12 << 20
BALLAST_PIECE = bytes(64 << 10)
MANY = b'{"commands": [%s]}' % b", ".join([b'["add", 1]'] * 1_000)


def write(node: Node) -> int:
    """A write through a node: the status of the answer."""
    try:
        return node.call("POST", "/commands", MANY, {"Content-Type": "application/json"}).status
    except Unreachable:
        return 0


def _is_written(node: Node) -> bool:
    return write(node) == 200


def another_leads(cluster: Cluster) -> Node:
    """Write until one of the others leads; then writes through every node must be acknowledged."""

    def led() -> Node | None:
        write(cluster["n2"])
        return next((node for node in cluster.followers if node.status()["serving"]), None)

    leader = cluster.wait_until("another node leads", led)
    for node in cluster:
        cluster.wait_until(f"a write through {node.node_id} is acknowledged", partial(_is_written, node))
    return leader


@contextmanager
def small_volume(folder: Path, faulty: Node) -> Generator[Path]:
    """Put a node on a file system of its own, in memory, of VOLUME_BYTES; yield the file that fills it.

    Without the right to mount one (CAP_SYS_ADMIN) the node runs on a disk that is full while that file exists.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(folder)]
    faulty.data_dir = folder / faulty.node_id
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield Faults(folder).of(faulty).folder / "full"
        return
    try:
        yield folder / "ballast"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Have a file take all the room that is left, or as much as the node's volume has if that is none of its own."""
    with ballast.open("wb", buffering=0) as file:
        try:
            for _ in range(0, VOLUME_BYTES, len(BALLAST_PIECE)):
                if file.write(BALLAST_PIECE) != len(BALLAST_PIECE):
                    break
        except OSError:
            pass


@pytest.mark.soak
def test_a_leader_on_a_full_volume_loses_the_lead_and_is_fit_again_when_there_is_room(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make(flags=FLAGS)
    faulty = cluster.leader
    with small_volume(tmp_path / "volume", faulty) as ballast:
        try:
            cluster.start()
            fill(ballast)
            another_leads(cluster)
            cluster.wait_until("n1 reports its fault", lambda: faulty.status()["fitness"]["name"] == "no_room")
            status = faulty.status()
            assert any(f"free space on the volume of {faulty.data_dir}" in alarm for alarm in status["alarms"])
            ballast.unlink()
            cluster.wait_until("n1 is fit again", lambda: faulty.status()["fitness"]["level"] == 0)
            end = cluster.elected().status()["commit_index"]
            cluster.wait_until("n1 has caught up", lambda: faulty.status()["applied_index"] >= end)
        finally:
            cluster.close()


@pytest.mark.soak
def test_a_leader_whose_machine_alone_fails_loses_the_lead_and_a_restart_fixes_it(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make(flags=FLAGS)
    faulty = cluster.leader
    faults = Faults(tmp_path / "faults").of(faulty)
    cluster.start()
    faults.begin("fails")
    another_leads(cluster)
    cluster.wait_until("n1 reports its fault", lambda: faulty.status()["fitness"]["name"] == "machine_failed")
    status = faulty.status()
    assert status["ready"] is False
    [sentence] = [reason for reason in status["reasons"] if "MemoryError: says the test" in reason]
    assert sentence.startswith("applying stopped at index")
    assert str(faulty_program.__file__) in sentence
    shown = run_quire("status", "--server", faulty.address, extra={"COLUMNS": "2000"})
    assert (shown.stdout + shown.stderr).count(sentence) == 1
    assert faulty.output.read_text().count("applying stopped at index") == 1
    faults.end("fails")
    faulty.kill()
    cluster.start_again(faulty)
    end = cluster.elected().status()["commit_index"]
    cluster.wait_until("n1 has applied on", lambda: faulty.status()["applied_index"] >= end)
