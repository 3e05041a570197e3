"""`spark.read.format("quire")` from files, in a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.pipeline.logs import SECOND, SMALL, START, Clock, append_and_flush, every_kind, expected_rows, writing


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("quire").options(**options).load(str(path))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()}
        for row in frame.orderBy("index").collect()
    ]


def indices(frame: DataFrame) -> list[int]:
    return [row["index"] for row in frame.select("index").collect()]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every kind of record in several segments."""
    path = tmp_path_factory.mktemp("history")
    with writing(path) as log:
        every_kind(log)
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records in frames of three, a second between frames."""
    path = tmp_path_factory.mktemp("numbers")
    clock = Clock()
    with writing(path, clock=clock) as log:
        for number in range(0, 300, 3):
            clock.now = START + number // 3 * SECOND
            log.append([number, number + 1, number + 2])
    return path


@pytest.mark.full
def test_a_read_equals_the_log_column_by_column(spark: SparkSession, history: Path) -> None:
    assert rows_of(load(spark, history, includeHeaders="true")) == expected_rows(history)


@pytest.mark.full
def test_spark_finds_the_source_without_being_told(spark: SparkSession, numbers: Path) -> None:
    assert load(spark, numbers).count() == 300


@pytest.mark.full
def test_headers_are_no_column_unless_they_are_asked_for(spark: SparkSession, history: Path) -> None:
    assert "headers" not in load(spark, history).columns
    assert "headers" in load(spark, history, INCLUDEHEADERS="TRUE").columns


@pytest.mark.full
def test_a_schema_of_the_user_s_chooses_columns(spark: SparkSession, history: Path) -> None:
    chosen = spark.read.format("quire").schema("value binary, index long").load(str(history))

    assert chosen.columns == ["value", "index"]
    expected = [(row["value"], row["index"]) for row in expected_rows(history)]
    assert [(bytes(row[0]), row[1]) for row in chosen.orderBy("index").collect()] == expected


@pytest.mark.full
@pytest.mark.parametrize("schema", ["index int", "nothing string", "index long, value string"])
def test_a_schema_that_does_not_fit_is_refused(spark: SparkSession, history: Path, schema: str) -> None:
    with pytest.raises(PySparkException, match="there is no column"):
        spark.read.format("quire").schema(schema).load(str(history)).collect()


@pytest.mark.full
def test_a_partition_is_a_segment_and_is_split_where_more_are_asked_for(spark: SparkSession, numbers: Path) -> None:
    segments = len({row["segment"] for row in expected_rows(numbers)})

    assert segments > 2
    assert load(spark, numbers).rdd.getNumPartitions() == segments
    split = load(spark, numbers, minPartitions=12)
    assert 12 <= split.rdd.getNumPartitions() <= 12 + segments
    assert sorted(indices(split)) == list(range(300))


@pytest.mark.full
@pytest.mark.parametrize(("start", "end"), [(0, 300), (1, 299), (100, 101), (151, 151), (300, 300)])
def test_a_range_of_indices_is_half_open(spark: SparkSession, numbers: Path, start: int, end: int) -> None:
    frame = load(spark, numbers, startingOffsets=json.dumps({"index": start}), endingOffsets=str(end))

    assert sorted(indices(frame)) == list(range(start, end))


@pytest.mark.full
@pytest.mark.parametrize(
    ("start_ms", "end_ms", "expected"),
    [(0, 1_000, (0, 3)), (10_000, 20_000, (30, 60)), (9_999, 10_001, (30, 33)), (10_001, 99_000, (33, 297))],
)
def test_a_range_of_time_begins_with_what_is_not_older(
    spark: SparkSession, numbers: Path, start_ms: int, end_ms: int, expected: tuple[int, int]
) -> None:
    first = START // 1000
    frame = load(spark, numbers, startingTimestamp=first + start_ms, endingTimestamp=first + end_ms)

    assert sorted(indices(frame)) == list(range(*expected))


@pytest.mark.full
def test_a_time_that_the_log_has_not_come_to_is_refused_or_is_its_end(spark: SparkSession, numbers: Path) -> None:
    late = START // 1000 + 1_000_000

    with pytest.raises(PySparkException, match="no record is as recent"):
        load(spark, numbers, startingTimestamp=late).collect()
    assert load(spark, numbers, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest").collect() == []


@pytest.mark.full
def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with writing(tmp_path / "empty", first=7):
        pass

    assert load(spark, tmp_path / "empty").collect() == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "earliest"}, "startingoffset: is unknown"),
        ({"startingOffsets": '{"index": 301}'}, "past the end of the log, 300"),
        ({"endingOffsets": "301"}, "past the end of the log, 300"),
        ({"startingOffsets": '{"index": '}, "must be earliest, latest or"),
        ({"bootstrap": "127.0.0.1:1"}, "give either path"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    spark: SparkSession, numbers: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        load(spark, numbers, **options).collect()


@pytest.mark.full
def test_a_folder_without_a_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="holds no log of quire"):
        load(spark, tmp_path).collect()


@pytest.mark.full
def test_a_corrupt_frame_is_an_error_with_segment_and_position(spark: SparkSession, tmp_path: Path) -> None:
    with writing(tmp_path / "log", SMALL) as log:
        append_and_flush(log, *[[number] for number in range(100)])
        base = log.segments.bases[1]
    store = tmp_path / "log" / "log" / f"{base:020d}.store"
    raw = bytearray(store.read_bytes())
    raw[64 + 3 * 66 + 64] ^= 1  # The payload of the fourth frame: 64 bytes of header and an array of one small int.
    store.write_bytes(raw)

    with pytest.raises(
        PySparkException, match=rf"{base:020d}.store is corrupt at byte {64 + 3 * 66}: the payload's crc"
    ):
        load(spark, tmp_path / "log").collect()


@pytest.mark.full
@pytest.mark.parametrize("pushed", ["false", "true"])
def test_a_filter_of_one_query_takes_no_row_from_another_of_the_same_frame(
    spark: SparkSession, numbers: Path, pushed: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = load(spark, numbers)
        late, early = frame.where("index > 290"), frame.where(f"timestamp < timestamp_micros({START + SECOND})")

        assert sorted(indices(late)) == list(range(291, 300))
        assert sorted(indices(frame)) == list(range(300))
        assert sorted(indices(early)) == [0, 1, 2]
        assert sorted(indices(late.union(early))) == [0, 1, 2, *range(291, 300)]
        assert sorted(indices(late.union(frame))) == sorted([*range(300), *range(291, 300)])
        assert late.crossJoin(early.select("kind")).count() == 9 * 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.full
def test_a_count_of_any_columns_is_the_number_of_records(spark: SparkSession, history: Path) -> None:
    count = len(expected_rows(history))

    for schema in ("index long", "segment long", "value binary", "headers map<string, string>"):
        assert spark.read.format("quire").schema(schema).load(str(history)).count() == count
    with pytest.raises(PySparkException, match="at least one column"):
        spark.read.format("quire").schema(StructType([])).load(str(history)).count()
