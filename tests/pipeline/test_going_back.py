"""A stream whose source goes back: a first batch that is run again after its log expired or its cursor moved, a
checkpoint or a cursor of an earlier day, and a log that lost what was read, or has other records in its place. In a
real Spark, and asked as Spark asks.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from quire.pipeline.errors import CheckpointAhead, ForeignLog, LogRewritten, OptionRefused, RecordsLost
from quire.pipeline.origin.nodes import CURSOR_UNKNOWN
from quire.pipeline.source.offsets import Offset, OffsetInvalid
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogStreamReader
from tests.pipeline.logs import CLUSTER, SECOND, START, Clock, append_and_flush, writing
from tests.pipeline.servers import Told, answers_of, pages, serving
from tests.pipeline.test_archive import archived, expire, grow
from tests.pipeline.test_nodes import HIGHEST, cursor_at, frames_below, raw_frames

DEADLINE_S = 120
RECORDS = 100
NO_CURSOR = 404, json.dumps({"type": CURSOR_UNKNOWN, "detail": "no"}).encode()


@contextmanager
def reader(**options: Any) -> Generator[LogStreamReader]:
    given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    stream = LogStreamReader(SourceOptions.parse(given, streaming=True), StructType().add("index", LongType()))
    try:
        yield stream
    finally:
        stream.stop()


def planned(start: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The end of the batch that starts there, or of a query's first, which Spark logs before the batch runs."""
    with reader(**options) as stream:
        return stream.latestOffset(start or stream.initialOffset(), stream.getDefaultReadLimit())


def run(end: dict[str, Any], start: dict[str, Any] | None = None, **options: Any) -> list[int]:
    """What a batch delivers when it is run, by a reader that did not plan it; of a first batch if it has no start."""
    with reader(**options) as stream:
        parts = stream.partitions(start or stream.initialOffset(), end)
        return [index for part in parts for batch in stream.read(part) for index in batch[0].to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """RECORDS in frames of one, in several segments."""
    grow(tmp_path / "log", 0, RECORDS)
    return tmp_path / "log"


def test_a_first_batch_that_is_run_again_names_what_has_expired_since(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = planned(path=log)
    small = planned(path=log, maxOffsetsPerTrigger=10)
    lowest = expire(log, RECORDS // 2)
    assert 10 < lowest < RECORDS

    for each, to_index in ((end, lowest), (small, 10)):
        with pytest.raises(RecordsLost) as lost:
            run(each, path=log)
        assert (lost.value.from_index, lost.value.to_index) == (0, to_index)
    with caplog.at_level(logging.WARNING):
        assert run(end, path=log, failOnDataLoss="false") == list(range(lowest, RECORDS))
    assert f"records [0, {lowest}) of {log} are lost" in caplog.text


@pytest.mark.parametrize(
    ("option", "began"),
    [
        ({"startingOffsets": "latest"}, RECORDS),
        ({"startingOffsets": 70}, 70),
        ({"startingTimestamp": START // 1000}, 0),
    ],
)
def test_a_first_batch_that_is_run_again_begins_where_it_began(log: Path, option: dict[str, Any], began: int) -> None:
    end = planned(path=log, **option)
    grow(log, RECORDS, 20)
    following = planned(end, path=log, **option)

    assert run(end, path=log, **option) == list(range(began, RECORDS))
    assert run(following, end, path=log, **option) == list(range(RECORDS, RECORDS + 20))


def test_a_first_batch_without_records_says_where_it_began_and_the_next_continues_there(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 0)
    end = planned(path=tmp_path / "log")
    assert end == {"began": 0, "cluster": CLUSTER.hex(), "index": 0}
    assert planned(end, path=tmp_path / "log") == end

    grow(tmp_path / "log", 0, RECORDS)
    following = planned(end, path=tmp_path / "log")
    assert following.keys() == {"cluster", "crc32c", "index"}
    assert following["index"] == RECORDS
    assert run(end, path=tmp_path / "log") == []
    assert run(following, end, path=tmp_path / "log") == list(range(RECORDS))
    assert planned(following, path=tmp_path / "log") == following


def test_a_first_batch_of_an_archive_is_run_again_after_its_records_expired_from_the_log(
    log: Path, tmp_path: Path
) -> None:
    archived(log, tmp_path / "archive")
    end = planned(path=log, archive=tmp_path / "archive")
    assert expire(log, RECORDS) > 0

    assert run(end, path=log, archive=tmp_path / "archive") == list(range(RECORDS))


def test_a_first_batch_that_an_earlier_version_planned_is_run_as_it_would_run_it(log: Path) -> None:
    end = Offset(CLUSTER.hex(), 80).to_document()

    assert run(end, path=log, startingOffsets=70) == list(range(70, 80))
    with pytest.raises(OffsetInvalid):
        run(Offset(CLUSTER.hex(), None).to_document(), path=log)


@pytest.mark.parametrize("place", ["latest", "earliest", 90])
def test_a_first_batch_that_an_earlier_version_planned_is_refused_if_it_would_begin_at_its_end(
    log: Path, place: str | int
) -> None:
    """At its end as well: without records it would be over in silence."""
    lowest = expire(log, RECORDS // 2)
    to_index = RECORDS if place == "latest" else lowest
    for each in (to_index, to_index - 5):
        end = Offset(CLUSTER.hex(), each).to_document()
        with pytest.raises(OptionRefused, match=rf'ends at index {each}, .* set startingOffsets={{"index": n}}'):
            run(end, path=log, startingOffsets=place)


def test_a_first_batch_that_an_earlier_version_planned_says_where_it_begins(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(Offset(CLUSTER.hex(), 80).to_document(), path=log, startingOffsets=80) == []  # The user's own word.
        assert run(Offset(CLUSTER.hex(), 80).to_document(), path=log) == list(range(80))
    assert "does not hold where its first batch began; it begins at index 80" in caplog.text
    assert "does not hold where its first batch began; it begins at index 0" in caplog.text


def test_a_first_batch_of_the_log_of_another_cluster_is_refused(log: Path, tmp_path: Path) -> None:
    end = planned(path=log)
    with writing(tmp_path / "other", cluster_id=b"o" * 16) as other:
        append_and_flush(other, *[[number] for number in range(RECORDS)])

    with pytest.raises(ForeignLog, match=r"is of cluster 6f6f.*, not of 6363"):
        run(end, path=tmp_path / "other")


@contextmanager
def cursor_of(folder: Path, index: int) -> Generator[tuple[str, dict[str, Told]]]:
    """A cluster of one with HIGHEST records and the cursor `mail`, and what it says of the cursor, to be changed."""
    told = {"cursor": cursor_at(index)}
    answers = answers_of(records=pages(raw_frames(folder))) | {"/cursors/mail": lambda _: told["cursor"]}
    with serving(answers) as server:
        yield server, told


@pytest.mark.parametrize("then", [cursor_at(80), cursor_at(10), cursor_at(HIGHEST), NO_CURSOR])
def test_a_first_batch_that_is_run_again_begins_where_the_cursor_was(tmp_path: Path, then: Told) -> None:
    with cursor_of(tmp_path, 40) as (server, told):
        options: dict[str, Any] = {"bootstrap": server, "startingOffsets": "cursor:mail"}
        end = planned(**options)
        told["cursor"] = then

        assert run(end, **options) == list(range(40, HIGHEST))
        assert planned(end, **options) == end


class History:
    """A log of frames of three records, of which a copy is kept; it goes back to the copy, and grows again."""

    def __init__(self, folder: Path) -> None:
        self.path, self.archive = folder / "log", folder / "archive"
        self._copy, self._clock, self._folder = folder / "copy", Clock(), folder
        self.grow(30)
        self.keep()

    def grow(self, records: int) -> None:
        """Append records, a second apart from all that came before."""
        with writing(self.path, clock=self._clock) as log:
            for number in range(0, records, 3):
                self._clock.now += SECOND
                append_and_flush(log, [number] * 3)

    def keep(self) -> None:
        """Copy the log as it is, and its archive."""
        shutil.copytree(self.path, self._copy)
        archived(self.path, self.archive)
        shutil.copytree(self.archive, self._folder / "archive copy")

    def go_back(self) -> None:
        """Put the copies in the place of the log and the archive."""
        for path, copy in ((self.path, self._copy), (self.archive, self._folder / "archive copy")):
            shutil.rmtree(path)
            shutil.copytree(copy, path)

    @contextmanager
    def options(self, origin: str) -> Generator[dict[str, Any]]:
        """To read the log by way of an origin, as it is now."""
        if origin == "cluster":
            with writing(self.path) as log:
                highest = log.bounds.highest_index
                raw = frames_below(log, highest)
            with serving(answers_of(records=pages(raw), highest=highest)) as server:
                yield {"bootstrap": server}
        elif origin == "archive":
            archived(self.path, self.archive)
            yield {"path": self.archive}
        else:
            yield {"path": self.path} | ({"archive": self.archive} if origin == "joined" else {})


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


ORIGINS = ["data_dir", "cluster", "archive", "joined"]


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("read", [33, 34, 35, 36])
def test_a_log_that_went_back_and_grew_past_the_checkpoint_is_an_error_whatever_the_options(
    history: History, origin: str, read: int
) -> None:
    history.grow(9)
    with history.options(origin) as options:
        start = planned(maxOffsetsPerTrigger=read, **options)
        assert start["index"] == read
        assert run(planned(start, **options), start, **options) == list(range(read, 39))
    history.go_back()
    history.grow(15)
    with history.options(origin) as options:
        end = planned(start, **options)
        for lossy in ("true", "false"):
            with pytest.raises(LogRewritten, match=f"the stream is at index {read}, .* with a new checkpoint"):
                run(end, start, failOnDataLoss=lossy, **options)


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_log_that_goes_on_from_what_was_read_passes_at_any_index(history: History, origin: str) -> None:
    history.go_back()  # A copy of the same records is the same log.
    history.grow(9)
    with history.options(origin) as options:
        for read in range(1, 39):
            start = planned(maxOffsetsPerTrigger=read, **options)
            following = planned(start, **options)
            assert run(following, start, minPartitions=3, **options) == list(range(read, 39))
            assert planned(following, **options) == following


def test_a_log_that_went_back_behind_the_checkpoint_is_told_as_shorter(history: History) -> None:
    history.grow(9)
    start = planned(path=history.path)
    history.go_back()

    with pytest.raises(CheckpointAhead, match=r"the stream is at index 39, but the log .* ends at 30"):
        planned(start, path=history.path, fetchTimeoutMs=1)


def test_what_has_expired_since_it_was_read_is_not_compared(log: Path) -> None:
    start = planned(path=log, maxOffsetsPerTrigger=10)
    lowest = expire(log, RECORDS // 2)

    following = planned(start, path=log, failOnDataLoss="false")
    assert run(following, start, path=log, failOnDataLoss="false") == list(range(lowest, RECORDS))


class Query:
    """A stream into a list, to be started again and again on one checkpoint, of which the sink can be made to raise."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self.delivered: list[int] = []

    def run(self, *, raising: bool = False, **options: Any) -> None:
        """Deliver what the log holds now."""

        def deliver(rows: DataFrame, _batch: int) -> None:
            if raising:
                raise RuntimeError("the sink is away")
            self.delivered += sorted(row["index"] for row in rows.select("index").collect())

        given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
        stream = self._spark.readStream.format("quire").options(**given).load()
        query = stream.writeStream.foreachBatch(deliver).option("checkpointLocation", str(self.checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)

    def fail(self, **options: Any) -> None:
        """Plan a batch and log it, which the sink then does not take."""
        with pytest.raises(StreamingQueryException, match="the sink is away"):
            self.run(raising=True, **options)


@pytest.mark.full
def test_a_query_whose_first_batch_expired_after_its_sink_raised_fails_with_the_range(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.fail(path=log)
    lowest = expire(log, RECORDS // 2)
    grow(log, RECORDS, 20)

    with pytest.raises(PySparkException, match=rf"records \[0, {lowest}\) of .* are lost: they have expired"):
        query.run(path=log)
    query.run(path=log, failOnDataLoss="false")
    assert query.delivered == list(range(lowest, RECORDS + 20))


@pytest.mark.full
def test_a_query_delivers_each_record_from_its_cursor_on_once_wherever_the_cursor_goes(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    with cursor_of(tmp_path / "log", 40) as (server, told):
        options: dict[str, Any] = {"bootstrap": server, "startingOffsets": "cursor:mail", "maxOffsetsPerTrigger": 30}
        query.fail(**options)
        told["cursor"] = cursor_at(80)
        query.fail(**options)
        told["cursor"] = NO_CURSOR
        query.run(**options)
        assert query.delivered == list(range(40, HIGHEST))

        for then in (cursor_at(10), NO_CURSOR):
            told["cursor"] = then
            query.run(**options)
        assert query.delivered == list(range(40, HIGHEST))
        with pytest.raises(PySparkException, match="the cluster has no cursor mail"):
            Query(spark, tmp_path / "new").run(**options)


@pytest.mark.full
def test_a_query_on_a_checkpoint_of_an_earlier_day_reads_again_and_misses_nothing(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.run(path=log)
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    for first in (RECORDS, RECORDS + 20):
        grow(log, first, 20)
        query.run(path=log)
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "copy", query.checkpoint)
    query.run(path=log)

    assert query.delivered == [*range(RECORDS + 40), *range(RECORDS, RECORDS + 40)]


@pytest.mark.full
def test_a_query_on_a_log_that_went_back_fails_while_it_is_shorter_and_when_it_has_grown_again(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    history.grow(9)
    query.run(path=history.path)
    history.go_back()

    with pytest.raises(PySparkException, match=r"CheckpointAhead.* the stream is at index 39, but .* ends at 30"):
        query.run(path=history.path, fetchTimeoutMs=1)
    history.grow(15)
    for lossy in ("true", "false"):
        with pytest.raises(PySparkException, match=r"LogRewritten.* the stream is at index 39"):
            query.run(path=history.path, failOnDataLoss=lossy)
    assert query.delivered == list(range(39))
