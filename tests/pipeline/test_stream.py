"""`spark.readStream.format("quire")`: batches, limits, restarts; in a real Spark, and asked as Spark asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType

from quire.pipeline.errors import CheckpointAhead, ForeignLog, OptionRefused, RecordsLost
from quire.pipeline.source.offsets import Offset, OffsetInvalid
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogStreamReader
from tests.pipeline.logs import CLUSTER, SECOND, START, Clock, append_and_flush, expected_rows, writing

SCHEMA = StructType().add("index", LongType())
DEADLINE_S = 120


def reader(path: Path, **options: Any) -> LogStreamReader:
    given = {"path": str(path), "startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    return LogStreamReader(SourceOptions.parse(given, streaming=True), SCHEMA)


def at(index: int, cluster_id: bytes = CLUSTER) -> dict[str, Any]:
    return Offset(cluster_id.hex(), index).to_document()


def first_batch(reader: LogStreamReader) -> tuple[int | None, int | None]:
    """Where a query's first batch begins and ends, as its end says."""
    end = Offset.from_document(reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
    return end.began, end.index


def end_of_batch(reader: LogStreamReader, start: int, limit: Any = None) -> int | None:
    """Where the batch ends that starts at an index."""
    end = reader.latestOffset(at(start), limit or reader.getDefaultReadLimit())
    return Offset.from_document(end).index


def batches(reader: LogStreamReader, start: dict[str, Any], limit: Any = None) -> list[int]:
    """Where each batch ends, until there is none."""
    ends: list[int] = []
    while True:
        end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
        if end == start:
            return ends
        covered = [
            index
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
            for index in batch[0].to_pylist()
        ]
        began, until = Offset.from_document(start).index, Offset.from_document(end)
        began = until.began if began is None else began
        assert began is not None
        assert until.index is not None
        assert covered == list(range(began, until.index))
        ends.append(until.index)
        start = end


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """100 records in frames of two of 130 bytes, a second apart, in a few segments."""
    clock = Clock()
    with writing(tmp_path / "numbers", clock=clock) as log:
        for number in range(50):
            clock.now = START + number * SECOND
            log.append([b"x" * 30, b"y" * 31])
    return tmp_path / "numbers"


def test_offsets_are_one_text_with_sorted_keys_and_no_spaces() -> None:
    assert Offset("0" * 32, 7).to_text() == '{"cluster":"' + "0" * 32 + '","index":7}'
    assert Offset.from_document(json.loads(Offset("0" * 32, 7).to_text())) == Offset("0" * 32, 7)
    for offset in (Offset("0" * 32, 7), Offset("0" * 32, 7, began=3, crc32c=2**32 - 1), Offset("0" * 32, None)):
        document = offset.to_document()
        assert list(document) == sorted(document)
        assert Offset.from_document(json.loads(offset.to_text())) == offset


@pytest.mark.parametrize(
    "document",
    [
        *({}, {"index": 1}, {"cluster": "x", "index": 1}, {"cluster": "x", "index": None}, {**at(1), "more": 1}),
        *(at(-1), at(2**63), {**at(1), "began": 2}, {**at(1), "began": -1}, {**at(1), "began": True}, [], None),
        *({**at(1), "index": None, "began": 0}, {**at(1), "crc32c": -1}, {**at(1), "crc32c": 2**32}),
    ],
)
def test_a_checkpoint_that_holds_no_offset_of_a_log_is_refused(numbers: Path, document: Any) -> None:
    with pytest.raises(OffsetInvalid):
        reader(numbers).latestOffset(document, ReadAllAvailable())


@pytest.mark.parametrize(("limit", "expected"), [(100, [100]), (99, [99, 100]), (33, [33, 66, 99, 100])])
def test_a_batch_holds_no_more_records_than_the_limit(numbers: Path, limit: int, expected: list[int]) -> None:
    stream = reader(numbers, maxOffsetsPerTrigger=limit)

    assert stream.getDefaultReadLimit() == ReadMaxRows(limit)
    assert batches(stream, stream.initialOffset()) == expected


@pytest.mark.parametrize(("limit", "frames"), [(1, 1), (130, 1), (131, 1), (260, 2), (259, 1), (10_000_000, 50)])
def test_a_batch_holds_no_more_bytes_than_the_limit_but_a_frame_at_least(
    numbers: Path, limit: int, frames: int
) -> None:
    assert {part.length for part in _frames(numbers)} == {66}
    stream = reader(numbers, maxBytesPerTrigger=limit)

    assert stream.getDefaultReadLimit() == ReadMaxBytes(limit)
    assert batches(stream, stream.initialOffset()) == [*range(2 * frames, 100, 2 * frames), 100]


def _frames(path: Path) -> list[Any]:
    from quire.log import frames_of
    from quire.log.files import FileDirectory

    return [header for header, _ in frames_of(FileDirectory(path), 0)]


def test_both_limits_hold_at_once_and_neither_where_spark_asks_for_everything(numbers: Path) -> None:
    stream = reader(numbers, maxOffsetsPerTrigger=5, maxBytesPerTrigger=260)

    assert end_of_batch(stream, 0) == 4
    assert end_of_batch(stream, 0, ReadAllAvailable()) == 100


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(numbers: Path) -> None:
    ends = {
        None: 100,
        ("startingOffsets", "latest"): 100,
        ("startingOffsets", "earliest"): 0,
        ("startingOffsets", '{"index": 17}'): 17,
        ("startingTimestamp", str(START // 1000 + 10_000)): 20,
    }
    for given, index in ends.items():
        options = {"path": str(numbers), **dict([given] if given else [])}
        stream = LogStreamReader(SourceOptions.parse(options, streaming=True), SCHEMA)
        assert first_batch(stream) == (index, 100), given
    with pytest.raises(OptionRefused, match="past the end of the log, 100"):
        first_batch(reader(numbers, startingOffsets="101"))


def test_a_stream_ends_where_it_is_told_to_even_if_the_log_is_to_come_there_yet(numbers: Path) -> None:
    assert end_of_batch(reader(numbers, endingOffsets=55), 0) == 55
    assert end_of_batch(reader(numbers, endingOffsets=55), 60) == 60
    assert end_of_batch(reader(numbers, endingOffsets=155), 0) == 100
    late = reader(numbers, endingTimestamp=START // 1000 + 10_000)
    assert end_of_batch(late, 0) == 20


def test_a_stream_of_an_empty_log_stands_at_its_first_index_until_something_comes(tmp_path: Path) -> None:
    with writing(tmp_path / "empty", first=7) as log:
        stream = reader(tmp_path / "empty")
        assert first_batch(stream) == (7, 7)
        assert batches(stream, at(7)) == []
        assert stream.partitions(at(7), at(7)) == []
        append_and_flush(log, [1, 2])
        assert batches(stream, at(7)) == [9]


def test_available_now_reads_to_the_end_of_that_moment(numbers: Path) -> None:
    stream = reader(numbers, maxOffsetsPerTrigger=60)
    stream.prepareForTriggerAvailableNow()
    with writing(numbers) as log:
        append_and_flush(log, [1, 2, 3])

    assert stream.reportLatestOffset() == at(103) | {"source": str(numbers)}
    assert batches(stream, at(0)) == [60, 100]
    assert batches(stream, at(100)) == []


def test_what_expired_while_the_query_was_away_is_named_or_passed_over(numbers: Path) -> None:
    clock = Clock()
    with writing(numbers, clock=clock) as log:
        log.expiry.remove(max_bytes=3000)
        lowest = log.bounds.lowest_index
    assert 2 < lowest < 100

    calls: list[Callable[[], object]] = [
        lambda: reader(numbers).latestOffset(at(2), ReadAllAvailable()),
        lambda: reader(numbers).partitions(at(2), at(lowest + 4)),
        lambda: first_batch(reader(numbers, startingOffsets=2)),
    ]
    for call in calls:
        with pytest.raises(RecordsLost) as lost:
            call()
        assert (lost.value.from_index, lost.value.to_index) == (2, lowest)
    lenient = reader(numbers, failOnDataLoss="false", maxOffsetsPerTrigger=3)
    assert end_of_batch(lenient, 2) == lowest + 3
    [first, *_] = lenient.partitions(at(2), at(lowest + 3))
    assert first.value.stretch.from_index == lowest
    assert lenient.partitions(at(1), at(2)) == []


def test_a_checkpoint_beyond_the_log_s_end_is_told_and_not_waited_for_in_silence(numbers: Path) -> None:
    stream = reader(numbers, fetchTimeoutMs=1)
    assert stream.latestOffset(at(100), ReadAllAvailable()) == at(100)
    calls: list[Callable[[], object]] = [
        lambda: stream.latestOffset(at(101), ReadAllAvailable()),
        lambda: stream.partitions(at(90), at(101)),
    ]
    for call in calls:
        with pytest.raises(CheckpointAhead, match=r"is at index 101, but the log .*numbers ends at 100") as ahead:
            call()
        assert (ahead.value.index, ahead.value.highest_index) == (101, 100)


def test_a_directory_of_another_cluster_is_refused(numbers: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "other", cluster_id=b"o" * 16) as log:
        append_and_flush(log, [1], [2])
    stream = reader(numbers)
    parts = stream.partitions(at(0), at(100))

    with pytest.raises(ForeignLog):
        reader(tmp_path / "other").latestOffset(at(1), ReadAllAvailable())
    with pytest.raises(ForeignLog):
        list(reader(tmp_path / "other").read(parts[0]))


def streamed(spark: SparkSession, log: Path, folder: Path, **options: Any) -> Callable[[], StreamingQuery]:
    """A query from a log to files, that can be started again and again on its checkpoint."""

    def start(**trigger: Any) -> StreamingQuery:
        given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
        stream = spark.readStream.format("quire").options(**given).load(str(log)).select("index", "value")
        sink = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        return sink.trigger(**(trigger or {"availableNow": True})).start(str(folder / "rows"))

    return start


def rows_in(spark: SparkSession, folder: Path) -> list[tuple[int, bytes]]:
    return [(row["index"], bytes(row["value"])) for row in spark.read.parquet(str(folder / "rows")).collect()]


def test_progress_tells_the_lag_behind_the_batch_and_a_name(numbers: Path) -> None:
    stream = reader(numbers, maxOffsetsPerTrigger=60, sourceName="orders")

    for end, lag in ((60, 40), (100, 0), (100, 0)):
        stream.latestOffset(at(max(0, end - 60)), stream.getDefaultReadLimit())
        assert stream.reportLatestOffset() == at(100) | {"source": "orders", "lag_records": lag}


def test_the_progress_of_a_query_tells_its_sources_apart_with_lag_and_rows(
    spark: SparkSession, numbers: Path, tmp_path: Path
) -> None:
    def source(**options: Any) -> DataFrame:
        given = {"startingOffsets": "earliest", **options}
        return spark.readStream.format("quire").options(**given).load(str(numbers)).select("index", "value")

    def started() -> StreamingQuery:
        both = source(maxOffsetsPerTrigger=60).union(source(maxOffsetsPerTrigger=90, sourceName="again"))
        sink = both.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sink.trigger(availableNow=True).start()

    query = started()
    assert query.awaitTermination(DEADLINE_S)

    told = [
        [
            (each["latestOffset"]["source"], each["numInputRows"], each["latestOffset"]["lag_records"])
            for each in sources
        ]
        for sources in (json.loads(progress.json)["sources"] for progress in query.recentProgress)
    ]
    assert told[:2] == [
        [(str(numbers), 60, 40), ("again", 90, 10)],
        [(str(numbers), 40, 0), ("again", 10, 0)],
    ]
    again = started()
    assert again.awaitTermination(DEADLINE_S)
    assert sum(progress.numInputRows for progress in again.recentProgress) == 0


@pytest.mark.full
def test_a_query_goes_on_where_it_stopped_and_delivers_every_record_once(
    spark: SparkSession, numbers: Path, tmp_path: Path
) -> None:
    start = streamed(spark, numbers, tmp_path, maxOffsetsPerTrigger=40)
    assert start().awaitTermination(DEADLINE_S)
    with writing(numbers) as log:
        append_and_flush(log, *[[number] for number in range(20)])
    query = start()
    assert query.awaitTermination(DEADLINE_S)

    assert sorted(rows_in(spark, tmp_path)) == [(row["index"], row["value"]) for row in expected_rows(numbers)]
    [source] = query.recentProgress[-1]["sources"]
    assert json.loads(source["latestOffset"]) == at(120) | {"source": str(numbers), "lag_records": 0}
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [20]


@pytest.mark.full
def test_a_query_on_a_log_of_another_cluster_fails_by_name(spark: SparkSession, numbers: Path, tmp_path: Path) -> None:
    start = streamed(spark, numbers, tmp_path)
    assert start().awaitTermination(DEADLINE_S)
    numbers.rename(tmp_path / "elsewhere")
    with writing(numbers, cluster_id=b"o" * 16) as log:
        append_and_flush(log, *[[number] for number in range(200)])

    with pytest.raises(PySparkException, match=r"is of cluster 6f6f.*, not of 6363"):
        start().awaitTermination(DEADLINE_S)
