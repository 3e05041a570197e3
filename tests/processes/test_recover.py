"""Two of three nodes lose their directories: the third is recovered, and is three again by printed commands."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread

import pytest

from quire.cluster.cli.output import Exit
from tests.processes.cluster import Cluster, Clusters, Node, Unreachable, run_quire
from tests.processes.retriers import COUNT, COUNTER, FLAGS

MACHINE = FLAGS[FLAGS.index("--machine") + 1]
WRITERS = 4
WRITTEN = 200
"""Commands that are acknowledged before all nodes are killed."""


class Load:
    """Writers that count on one node until it is gone."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.indices: list[int] = []
        self._threads = [Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        try:
            while True:
                self.indices.append(int(self._node.apply(COUNT)["index"]))
        except (Unreachable, AssertionError):
            return

    def has_written(self) -> bool:
        return len(self.indices) >= WRITTEN

    def end(self) -> None:
        for thread in self._threads:
            thread.join()


def lines_of(data_dir: Path, to: int) -> list[str]:
    """The records below an index."""
    ended = run_quire("log", "dump", str(data_dir), "--to", str(to))
    assert ended.code == 0, ended
    return ended.stdout.splitlines()


def recover(node: Node, *more: str) -> dict[str, object]:
    ended = run_quire("recover", "--data-dir", str(node.data_dir), "--cluster", "lab", "--json", *more)
    assert ended.code == 0, ended
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def inspected(node: Node) -> dict[str, object]:
    ended = run_quire("recover", "--inspect", "--data-dir", str(node.data_dir), "--json")
    assert ended.code == 0, ended
    return dict(json.loads(ended.stdout))


def history_of(node: Node) -> object:
    """The history of a node's identity file."""
    return json.loads((node.data_dir / "identity").read_text().splitlines()[0])["history"]


def voters(node: Node) -> list[str]:
    try:
        return [row["node_id"] for row in node.status()["members"] if row["role"] == "voter"]
    except (Unreachable, KeyError):
        return []


def start_as_printed(cluster: Cluster, node: Node, line: object, data_dir: Path) -> None:
    """Start a node with the flags that `quire recover` printed."""
    words = shlex.split(str(line).replace("EMPTY_DIR", str(data_dir)))
    assert words[:2] == ["quire", "serve"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert (given.pop("--node"), given.pop("--listen")) == (node.node_id, node.address)
    assert given.pop("--data-dir") == str(data_dir)
    assert given["--machine"] == MACHINE
    node.data_dir = data_dir
    node.flags = [word for pair in given.items() for word in pair] + cluster.flags
    node.start()


def counted(node: Node) -> int:
    return int(node.local_state()["state"][COUNTER])


def is_level(node: Node, end: int) -> bool:
    return bool(node.status()["applied_index"] >= end)


def test_one_of_three_directories_is_recovered_and_is_three_again(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    survivor, *lost = cluster
    load = Load(cluster.elected())
    cluster.wait_until("the commands are acknowledged", load.has_written)
    cluster.kill_all()
    load.end()
    old = lost[0].data_dir.rename(lost[0].data_dir.with_name("old"))
    shutil.rmtree(lost[1].data_dir)
    began = time.monotonic()
    found = inspected(survivor)
    end = found["end"]
    assert isinstance(end, int)
    before = lines_of(survivor.data_dir, end)

    done = recover(survivor)

    assert (done["end"], done["commit_index"]) == (end, found["commit_index"])
    assert lines_of(survivor.data_dir, end) == before
    start_as_printed(cluster, survivor, done["start"], survivor.data_dir)
    cluster.wait_until_ready(survivor)
    serving_s = time.monotonic() - began
    assert voters(survivor) == [survivor.node_id]
    below = [index for index in load.indices if index < end]
    assert counted(survivor) >= len(below)
    assert history_of(survivor) == done["history"]

    joins = done["join"]
    assert isinstance(joins, dict)
    for node in lost:
        start_as_printed(cluster, node, joins[node.node_id], node.data_dir.with_name(f"{node.node_id}-new"))
    add = shlex.split(str(done["add"]))
    assert add[0] == "quire"
    ended = run_quire(*add[1:], timeout_s=120)
    assert ended.code == 0, ended
    cluster.wait_until("all three vote", lambda: len(voters(survivor)) == len(cluster.nodes))
    whole_s = time.monotonic() - began
    survivor.apply(COUNT)
    newest = int(survivor.status()["applied_index"])
    for node in lost:
        cluster.wait_until(f"{node.node_id} has applied all", partial(is_level, node, newest))
        assert counted(node) == counted(survivor)
        assert history_of(node) == done["history"]
    sys.stdout.write(f"serving after {serving_s:.1f} s, three voters after {whole_s:.1f} s\n")
    refuse_old_disk(survivor, lost[0], old)


def refuse_old_disk(survivor: Node, node: Node, old: Path) -> None:
    """The old disk of a lost node is refused with a sentence, and is not changed into another's."""
    node.kill()
    node.may_end, node.data_dir = True, old
    node.start()
    assert node.ended() == Exit.FAILED, node.last_words()
    assert "or of a history of it that a forced recovery ended" in node.last_words()
    assert history_of(node) != history_of(survivor)


def test_a_directory_in_use_or_of_a_cluster_that_answers_is_not_recovered(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    node = cluster["n3"]
    arguments = ("recover", "--data-dir", str(node.data_dir), "--cluster", "lab")

    in_use = run_quire(*arguments)
    assert in_use.code == 1, in_use
    assert "is in use; stop that node first" in in_use.stderr
    node.kill()
    answered = run_quire(*arguments)
    assert answered.code == 1, answered
    assert "the cluster goes on there" in answered.stderr
    cluster.start_again(node)
    assert len(voters(node)) == len(cluster.nodes)


@contextmanager
def answering(node: Node, handler: type[BaseRequestHandler], server: type[TCPServer]) -> Generator[None]:
    """Something else that answers at a node's address."""
    host, _, port = node.address.rpartition(":")
    with server((host, int(port)), handler) as running:
        thread = Thread(target=running.serve_forever)
        thread.start()
        try:
            yield
        finally:
            running.shutdown()
            thread.join()


class ReboundServer(TCPServer):
    """Binds a port whose connections of a killed process linger."""

    allow_reuse_address = True


class Silent(BaseRequestHandler):
    """Closes each connection, as a node does that wants TLS of a plain caller."""


class OtherProgram(BaseHTTPRequestHandler):
    """Knows no path."""

    def do_GET(self) -> None:
        self.send_error(404)


@pytest.mark.full
def test_what_cannot_be_told_apart_from_a_member_refuses_and_another_program_does_not(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    survivor, other = cluster["n1"], cluster["n2"]
    cluster.kill_all()
    before = inspected(survivor)

    with answering(other, Silent, ReboundServer):
        refused = run_quire("recover", "--data-dir", str(survivor.data_dir), "--cluster", "lab")
    assert refused.code == 1, refused
    assert "cannot be told apart from a member" in refused.stderr
    assert inspected(survivor) == before
    with answering(other, OtherProgram, HTTPServer):
        done = recover(survivor)
    assert done["end"] == before["end"]
