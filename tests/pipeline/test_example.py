"""The jobs from a log that expires to a proof, on the command line and on a cluster of real processes."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import quire
from quire.pipeline.archive.log import ArchiveLog
from quire.pipeline.errors import NoLog
from quire.pipeline.jobs import archive, report, scrub
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.source.options import SourceOptions
from tests.pipeline.test_jobs import history, quire_spark
from tests.processes.cluster import Cluster, Clusters, Node, ending_clusters, run_quire

pytestmark = pytest.mark.full

COMMANDS = 24_000
BATCH = 200
BEGINS_WITHIN_S = 300.0  # Two JVMs and Python workers start on a busy machine.
ENDS_WITHIN_S = 300.0
LINES = (
    "spark archive archive --path data/n1 --every 60 &",
    "snapshot",
    "expire",
    "spark scrub --path data/n1 --path archive",
    "spark replay --path data/n1 --archive archive --bootstrap 127.0.0.1:7001",
    "spark report report --path data/n1 --archive archive",
)
"""Arguments of `quire`, as on the cluster of the README."""
BOUNDED = ("--segment-bytes", "65536", "--retention-bytes", "65536")
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with COMMANDS, under a session, with a snapshot half-way; every node's mark is at its end."""
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        yield _filled(made)


def _filled(clusters: Clusters) -> Cluster:
    cluster = clusters.formed(flags=BOUNDED)
    with quire.connect_sync(cluster.servers, session="example") as client:
        for start in range(0, COMMANDS, BATCH):
            if start == COMMANDS // 2:
                cluster.wait_for_equal()
                run_quire("snapshot", extra={"QUIRE_SERVER": cluster.servers})
            client.apply_batch([["add", number] for number in range(start, start + BATCH)])
    end = cluster.wait_for_equal()["n1"]["highest_index"]
    for node in cluster:
        cluster.wait_until(f"{node.node_id} has a snapshot, and a mark at the end", partial(_is_settled, node, end))
    return cluster


def _is_settled(node: Node, end: int) -> bool:
    kept = node.status()["snapshots"]["kept"]
    return len(kept) == 1 and DataDirLog(str(node.data_dir)).bounds().highest_index == end


@contextmanager
def archiving(cluster: Cluster, node: Node, *arguments: str) -> Generator[None]:
    """The archive is written meanwhile, by a process that ends well when it is interrupted; the log grows beside it."""
    command = [sys.executable, "-m", "quire.cluster.cli.main", *arguments]
    kept = Path(arguments[2])
    with subprocess.Popen([*command[:-1], "0.5"], stdout=subprocess.PIPE, text=True) as process:
        try:
            cluster.wait_until("the archive has begun", lambda: has_reached(kept, 1), BEGINS_WITHIN_S)
            run_quire("apply", "add", "1", extra={"QUIRE_SERVER": cluster.servers})
            end = cluster.wait_for_equal()["n1"]["highest_index"]
            cluster.wait_until("n1 has a mark at the end", partial(_is_settled, node, end))
            cluster.wait_until("the archive has all of the log", lambda: has_reached(kept, end))
            yield
        finally:
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=ENDS_WITHIN_S)[0]
        assert process.returncode == 0, output
    assert output.count(" new files") >= 2


def has_reached(archive_dir: Path, index: int) -> bool:
    """Whether the archive holds all below an index."""
    try:
        return ArchiveLog(str(archive_dir)).bounds().highest_index >= index
    except NoLog:
        return False


def test_what_has_expired_is_proven_from_the_archive(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = cluster["n1"]
    said: dict[str, str] = {}
    with ExitStack() as beside:
        for line in LINES:
            own = line.replace("data/n1", str(node.data_dir)).replace("127.0.0.1:7001", node.address)
            group, *arguments = shlex.split(own)
            if arguments[-1:] == ["&"]:
                beside.enter_context(archiving(cluster, node, group, *arguments[:-1]))
            elif group == "spark":
                code, said[arguments[0]], complained = quire_spark(*arguments)
                assert code == 0, (line, said, complained)
            else:
                run = run_quire(group, *arguments, extra={"QUIRE_SERVER": cluster.servers})
                assert run.code == 0, run

    lowest = node.status()["lowest_index"]
    assert lowest > 0
    assert "whole, and the same on each" in said["scrub"]
    assert "proven: all of it follows from the log" in said["replay"]
    assert said["replay"].count(": equal\n") == 3
    assert f"[0, {node.status()['highest_index']})" in said["replay"]
    assert re.search(r"^add +24,001 records$", said["report"], re.MULTILINE)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["from_index"] == 0
    for theme in ("light", "dark"):
        assert (tmp_path / "report" / f"report-{theme}.png").read_bytes().startswith(PNG)
    # Both as one history, from the cluster's nodes, too.
    both = history(spark, bootstrap=cluster.servers, archive=str(tmp_path / "archive"))
    assert both.where("index < 100").count() == 100


def test_the_jobs_ask_the_nodes_of_a_cluster_for_frames(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.pipeline.origin.cluster.STRETCH_BYTES", 20_000)  # Several pieces.
    options, servers = SourceOptions(bootstrap=tuple(cluster.servers.split(","))), cluster.servers.split(",")

    copied = archive(options, str(tmp_path / "archive"))
    assert copied.files > 3
    assert copied.to_index == cluster["n1"].status()["highest_index"]
    compared = scrub([str(tmp_path / "archive"), str(cluster["n2"].data_dir)], servers)
    assert compared.findings == []
    assert len(compared.nodes) == 5
    told = report(options, str(tmp_path / "report"), servers=servers)
    assert sorted(each.role for each in told.lag) == ["follower", "follower", "leader"]
    assert [each.records for each in told.lag] == [0, 0, 0]
