"""The log of a running cluster as the pipeline reads it: real nodes that die in the middle, and servers that lie."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import quire
from quire.log import pack, stored_records, walk_frames
from quire.log.frames import walk_headers
from quire.log.packing import Skimmer
from quire.pipeline.errors import ClusterUnavailable, ForeignLog, RecordsLost
from quire.pipeline.origin.access import PLAIN
from quire.pipeline.origin.cluster import ClusterLog, cursor_index
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.origin.nodes import CursorUnknown
from quire.pipeline.origin.origin import Stretch, split
from tests.pipeline.servers import answers_of, serving
from tests.ports import free_port
from tests.processes.cluster import DEADLINE_S, Cluster, Clusters, ending_clusters

pytestmark = pytest.mark.full

# By hand: PIPELINE_RECORDS=10000000 pytest tests/pipeline/test_cluster.py, which `make soak` does.
RECORDS = int(os.environ.get("PIPELINE_RECORDS", "500000"))
BATCH = 1000
PATIENCE_S = 30.0
READ_DEADLINE_S = max(DEADLINE_S, RECORDS / 10_000)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        yield made


@pytest.fixture(scope="module")
def filled(clusters: Clusters) -> Cluster:
    """Three nodes with RECORDS commands, each another one."""
    cluster = clusters.formed()
    with quire.connect_sync(cluster.servers) as client:
        answers = [
            client.submit_batch([["add", number] for number in range(start, min(start + BATCH, RECORDS))])
            for start in range(0, RECORDS, BATCH)
        ]
        answers[-1].result()
    cluster.wait_for_equal()
    return cluster


@pytest.fixture
def cluster(filled: Cluster) -> Iterator[Cluster]:
    """The same, all of it running again after the test."""
    yield filled
    for node in filled:
        if node.process is None:
            filled.start_again(node)
    filled.elected()
    filled.wait_until_ready()


@contextmanager
def log_of(servers: str, timeout_s: float = PATIENCE_S, known: str | None = None) -> Generator[ClusterLog]:
    """The log as a driver opens it, or, where its cluster is known, as a task does."""
    log = ClusterLog(servers.split(","), timeout_s, known=known, page_bytes=64 << 10)
    try:
        yield log
    finally:
        log.close()


def indices(log: ClusterLog, low: int, high: int) -> list[int]:
    return [index for rows in log.rows(Stretch(low, high, None), Skimmer()) for index in rows.index.tolist()]


def truth(cluster: Cluster) -> pa.Table:
    """Index and value of every record, decoded one by one from a node's own frames."""
    indices, values = array("q"), list[bytes]()
    for frame in walk_frames(cluster.elected().raw_frames()):
        for record in stored_records(frame):  # Millions: nothing of a record is kept but this.
            indices.append(record.index)
            values.append(pack(record.value))
    return pa.table({"index": pa.array(indices, pa.int64()), "value": pa.array(values, pa.binary())})


def shown(frame: DataFrame) -> pa.Table:
    """Index and value of what Spark read, ordered; by way of files, for millions do not pass through a small driver."""
    with TemporaryDirectory() as folder:
        frame.select("index", "value").write.mode("overwrite").parquet(folder)
        return parquet.read_table(folder).sort_by("index").replace_schema_metadata()


def test_a_read_survives_the_node_that_it_reads_from_and_a_change_of_leader(cluster: Cluster) -> None:
    with log_of(cluster.leader.address) as log:
        (low, high), servers, known = log.bounds(), log.servers, log.cluster_id()
    assert cluster.elected().address == servers[-1]  # The leader is spared.

    seen: list[int] = []
    killed = 0
    with log_of(",".join(servers), known=known) as task:
        for rows in task.rows(Stretch(low, high, None), Skimmer()):
            seen += rows.index.tolist()
            if killed == 0:
                next(node for node in cluster if node.address == servers[0]).kill()
                killed = 1
            elif killed == 1 and len(seen) > (high - low) // 2:
                cluster.start_again(next(node for node in cluster if node.process is None))
                cluster.elected().kill()
                killed = 2

    assert killed == 2
    assert seen == list(range(low, high))


def test_a_batch_equals_the_log_though_the_leader_is_killed_meanwhile(cluster: Cluster, spark: SparkSession) -> None:
    expected = truth(cluster)
    leader = cluster.elected()
    frame = spark.read.format("quire").option("bootstrap", cluster.servers).option("minPartitions", 6).load()
    found: list[pa.Table] = []
    reading = threading.Thread(target=lambda: found.append(shown(frame)))
    done = _tasks_done(spark)
    reading.start()
    cluster.wait_until("a task has read its part", lambda: done() or not reading.is_alive())
    leader.kill()
    reading.join(READ_DEADLINE_S)

    assert found[0].num_rows >= RECORDS
    assert found[0].equals(expected)


def _tasks_done(spark: SparkSession) -> Callable[[], bool]:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())

    def done() -> bool:
        jobs = set(tracker.getJobIdsForGroup()) - before
        stages = [stage for job in jobs if (info := tracker.getJobInfo(job)) for stage in info.stageIds]
        return any((told := tracker.getStageInfo(stage)) and told.numCompletedTasks for stage in stages)

    return done


@pytest.mark.soak
def test_a_stream_equals_the_log_though_the_leader_is_killed_and_so_do_the_files_of_a_node_that_runs(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    stream = spark.readStream.format("quire").options(startingOffsets="earliest", bootstrap=cluster.servers)
    query = (
        stream.option("maxOffsetsPerTrigger", max(RECORDS // 3, 1))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    cluster.wait_until("a batch is done", lambda: query.lastProgress is not None or not query.isActive)
    cluster.elected().kill()
    assert query.awaitTermination(int(READ_DEADLINE_S))
    expected = truth(cluster)

    streamed = shown(spark.read.parquet(str(tmp_path / "rows")))
    assert streamed.num_rows >= RECORDS
    assert streamed.equals(expected.slice(0, streamed.num_rows))  # The new leader's first record came too late.
    assert len(query.recentProgress) >= 3
    data_dir = cluster.elected().data_dir
    cluster.wait_until("its mark has all", partial(_has_all, data_dir, expected.num_rows))
    assert shown(spark.read.format("quire").load(str(data_dir))).equals(expected)


def _has_all(data_dir: Path, count: int) -> bool:
    return DataDirLog(str(data_dir)).bounds().highest_index >= count


def test_times_and_bytes_are_found_on_a_cluster_too(cluster: Cluster) -> None:
    frames = [frame.header for frame in walk_frames(cluster.elected().raw_frames())]
    assert [later for earlier, later in pairwise(frames) if later.timestamp > earlier.timestamp]

    with log_of(cluster.servers) as log:
        bounds = log.bounds()
        for header in (frames[0], frames[len(frames) // 2], frames[-1]):
            first = next(each for each in frames if each.timestamp >= header.timestamp)
            assert log.index_at(header.timestamp, bounds) == first.index
        assert log.index_at(frames[-1].timestamp + 1, bounds) == bounds.highest_index
        held = next(each for each in frames if each.next_index > 10)
        assert log.index_within_bytes(10, bounds.highest_index, 1) == held.next_index
        assert log.index_within_bytes(10, 11, 1 << 40) == 11
        assert [stretch[:2] for stretch in split(log.stretches(0, 1), 4)] == [(0, 1)]


def test_any_node_says_where_a_cursor_is_and_that_there_is_none(cluster: Cluster) -> None:
    with quire.connect_sync(cluster.servers) as client:
        client.cursors.set("mail/2-4", 7)

    for node in cluster:
        assert cursor_index([node.address], PATIENCE_S, PLAIN, "mail/2-4") == 7
        with pytest.raises(CursorUnknown):
            cursor_index([node.address], PATIENCE_S, PLAIN, "mail/3-4")


def test_no_node_reachable_is_said_with_every_node_and_reason(spark: SparkSession) -> None:
    ports = [free_port(), free_port()]
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)

    with pytest.raises(PySparkException, match=rf"no node returned .* within 1 s .*{ports[0]}.*refused.*{ports[1]}"):
        spark.read.format("quire").options(bootstrap=servers, fetchTimeoutMs="1000").load().collect()


def known_id(cluster: Cluster) -> str:
    with log_of(cluster.servers) as log:
        return log.cluster_id()


def test_a_node_that_sends_what_is_no_part_of_the_log_is_passed_over(cluster: Cluster) -> None:
    known, good = known_id(cluster), cluster.elected()
    raw = good.raw_frames()
    raw = raw[: next(offset for offset, header in walk_headers(raw) if header.index >= 3)]

    for body in (raw[:-1], raw[:80] + bytes([raw[80] ^ 1]) + raw[81:], b"", b"nonsense" * 10, raw * 2):
        with serving(answers_of(bytes.fromhex(known), (200, body))) as liar:
            with log_of(f"{liar},{good.address}", known=known) as task:
                assert indices(task, 0, 4) == [0, 1, 2, 3]
            with log_of(liar, 0.3, known) as alone, pytest.raises(ClusterUnavailable, match=f"{liar}: it "):
                indices(alone, 0, 4)


def test_servers_of_two_clusters_are_refused(cluster: Cluster) -> None:
    known = known_id(cluster)
    with serving(answers_of(b"o" * 16, (200, b"frames"))) as other:
        with (
            log_of(f"{cluster.servers},{other}") as log,
            pytest.raises(ForeignLog, match=f"{other} is of cluster 6f6f"),
        ):
            log.bounds()
        with log_of(other, known=known) as task, pytest.raises(ForeignLog):
            indices(task, 0, 3)


def test_what_has_expired_on_every_node_is_lost_and_on_one_of_them_is_not(cluster: Cluster) -> None:
    known = known_id(cluster)
    gone = answers_of(bytes.fromhex(known), (410, b'{"detail": "index 0 has expired"}'), lowest=3)
    says = r"records \[0, 3\) .* index 0 has expired"
    with serving(gone) as first, serving(gone) as second:
        with log_of(f"{first},{second}", known=known) as task, pytest.raises(RecordsLost, match=says):
            indices(task, 0, 3)
        with log_of(f"{first},{cluster.elected().address}", known=known) as task:
            assert indices(task, 0, 3) == [0, 1, 2]
