"""What a driver and its tasks fetch of three real nodes, and what they ask of one that was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark.sql.types import LongType, StructType

import quire
from quire.log import walk_frames
from quire.log.packing import Skimmer
from quire.pipeline.origin.cluster import ClusterLog
from quire.pipeline.origin.nodes import Nodes
from quire.pipeline.source.offsets import Offset
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader, LogStreamReader
from quire.pipeline.source.reading import LogPartition
from tests.processes.cluster import Cluster, ending_clusters

pytestmark = pytest.mark.full

LARGE, TINY, BATCH = 40, 4000, 5
SCHEMA = StructType().add("index", LongType())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with records of 10,000 bytes, and many tiny ones after them."""
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        cluster = made.formed(flags=("--machine", "kv"))
        with quire.connect_sync(cluster.servers) as client:
            for count, value in ((LARGE, "x" * 10_000), (TINY, "y")):
                answers = [client.submit_batch([["put", "key", value]] * BATCH) for _ in range(count // BATCH)]
                answers[-1].result()
        cluster.wait_for_equal()
        yield cluster


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The path and the bytes of each answer."""
    found: list[tuple[str, int]] = []
    send = vars(Nodes)["_send"]

    def noted(self: Nodes, server: str, connection, path: str, accept: str, shown):  # type: ignore[no-untyped-def]
        answer = send(self, server, connection, path, accept, shown)
        found.append((f"{server}{path}", len(answer.body)))
        return answer

    monkeypatch.setattr(Nodes, "_send", noted)
    return found


def given(cluster: Cluster, **more: str) -> dict[str, str]:
    return {"bootstrap": cluster.servers, "fetchTimeoutMs": "30000"} | more


def test_1024_partitions_fetch_at_most_a_fifth_more_than_the_log(
    cluster: Cluster, fetched: list[tuple[str, int]]
) -> None:
    raw = cluster.elected().raw_frames()
    reader = LogReader(SourceOptions.parse(given(cluster, minPartitions="1024"), streaming=False), SCHEMA)
    parts: list[LogPartition] = [each.value for each in reader.partitions()]
    known = parts[0].cluster_id
    read: list[int] = []
    for each in parts:
        with closing(ClusterLog(each.servers, 30.0, known=known)) as task:
            read += [index for rows in task.rows(each.stretch, Skimmer()) for index in rows.index.tolist()]

    of_pages = sum(size for path, size in fetched if "/records" in path)
    assert read == list(range(len(read)))
    assert len(read) >= LARGE + TINY
    assert of_pages <= 1.2 * len(raw)


@pytest.mark.parametrize("limit", [1000, 60_000])
def test_batches_of_uneven_records_have_at_most_the_bytes_of_the_limit(cluster: Cluster, limit: int) -> None:
    frames = [frame.header for frame in walk_frames(cluster.elected().raw_frames())]
    stream = LogStreamReader(SourceOptions.parse(given(cluster, maxBytesPerTrigger=str(limit)), streaming=True), SCHEMA)
    start = 0
    with closing(ClusterLog([cluster.leader.address], 30.0)) as log:
        cluster_id = log.cluster_id()
    while start < frames[-1].next_index:
        document = Offset(cluster_id, start).to_document()
        end = Offset.from_document(stream.latestOffset(document, stream.getDefaultReadLimit())).index or 0
        held = [frame for frame in frames if start <= frame.index < end]
        size = sum(frame.size for frame in held)
        assert size <= limit or len(held) == 1
        assert held[-1].next_index == end
        start = end
    stream.stop()


def test_a_stopped_follower_is_not_waited_for_by_a_trigger(cluster: Cluster, fetched: list[tuple[str, int]]) -> None:
    stream = LogStreamReader(SourceOptions.parse(given(cluster), streaming=True), SCHEMA)
    start = stream.initialOffset()
    zero = start | {"index": 0}

    def trigger() -> set[str]:
        """A plan, and the read of its tasks; the nodes that the first task asks, in their order."""
        end = stream.latestOffset(zero, stream.getDefaultReadLimit())
        stream.reportLatestOffset()
        parts = stream.partitions(zero, end)
        rows = sum(len(batch) for each in parts for batch in stream.read(each))
        assert rows >= LARGE + TINY
        return {each.value.servers[-1] for each in parts}

    for _ in range(3):
        trigger()
    stopped = cluster.followers[0]
    stopped.pause()
    try:
        fetched.clear()
        last = [trigger() for _ in range(6)]
    finally:
        stopped.resume()
    stream.stop()
    assert last == [{stopped.address}] * 6
    assert not [path for path, _ in fetched if path.startswith(stopped.address)]
