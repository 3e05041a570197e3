"""A log that lacks a segment in its middle: its records are lost, by their exact range, and no others are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from quire.log import FrameCorrupt
from quire.log.options import STORE_HEADER_BYTES
from quire.pipeline.errors import ArchiveGap, RecordsLost
from quire.pipeline.jobs import archive, scrub
from quire.pipeline.pieces import spread
from quire.pipeline.scrub import scrub as scrubbing
from quire.pipeline.source.offsets import Offset
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader, LogStreamReader
from tests.pipeline.logs import CLUSTER, SECOND, START, Clock, append_and_flush, writing

SCHEMA = StructType().add("index", LongType())
FRAME_BYTES = 130
RECORDS = 100


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """100 records in frames of two, a second apart, in some segments."""
    grow(tmp_path / "log", 0, RECORDS)
    assert len(bases(tmp_path / "log")) >= 4
    return tmp_path / "log"


def grow(path: Path, first: int, to_index: int) -> None:
    clock = Clock()
    with writing(path, clock=clock) as log:
        for number in range(first, to_index, 2):
            clock.now = START + number // 2 * SECOND
            append_and_flush(log, [b"x" * 30, b"y" * 31])


def bases(log: Path) -> list[int]:
    return sorted(int(store.stem) for store in (log / "log").glob("*.store"))


def store_of(log: Path, base: int) -> Path:
    return log / "log" / f"{base:020d}.store"


def lose(log: Path, first: int, count: int = 1) -> tuple[int, int]:
    """Remove segments, the first by its number; the range of their records."""
    gone = bases(log)[first : first + count + 1]
    for base in gone[:-1]:
        store_of(log, base).unlink()
    return gone[0], gone[-1]


def reader(log: Path, **options: Any) -> LogReader:
    given = {"path": str(log)} | {name: str(value) for name, value in options.items()}
    return LogReader(SourceOptions.parse(given, streaming=False), SCHEMA)


def read(reader: LogReader | LogStreamReader, parts: Any = None) -> Iterator[int]:
    if isinstance(reader, LogReader) and parts is None:
        parts = reader.partitions()
    for part in parts:
        for batch in reader.read(part):
            yield from batch[0].to_pylist()


def kept(lost: tuple[int, int], start: int = 0, end: int = RECORDS) -> list[int]:
    return [index for index in range(start, end) if not lost[0] <= index < lost[1]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("least", [1, 7, RECORDS])
def test_a_missing_middle_segment_is_told_by_its_exact_range(log: Path, count: int, least: int) -> None:
    lost = lose(log, 1, count)

    with pytest.raises(RecordsLost, match=f"segment {lost[0]} is missing") as told:
        list(read(reader(log, minPartitions=least)))

    assert (told.value.from_index, told.value.to_index) == lost


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("least", [1, 7, RECORDS])
def test_a_missing_middle_segment_is_skipped_exactly_and_with_a_warning(
    log: Path, caplog: pytest.LogCaptureFixture, count: int, least: int
) -> None:
    lost = lose(log, 1, count)

    with caplog.at_level(logging.WARNING):
        assert list(read(reader(log, minPartitions=least, failOnDataLoss=False))) == kept(lost)

    assert f"records [{lost[0]}, {lost[1]}) of" in caplog.text


def test_a_read_may_begin_and_end_anywhere_around_a_missing_segment(log: Path) -> None:
    lost = lose(log, 1)
    around = range(lost[0] - 3, lost[1] + 4)

    for start in around:
        for end in range(start, lost[1] + 4):
            place = {"startingOffsets": start, "endingOffsets": end}
            assert list(read(reader(log, **place, failOnDataLoss=False))) == kept(lost, start, end), (start, end)
            if start < lost[1] and end > lost[0] and start < end:
                with pytest.raises(RecordsLost) as told:
                    list(read(reader(log, **place)))
                assert (told.value.from_index, told.value.to_index) == lost
            else:
                assert list(read(reader(log, **place))) == list(range(start, end))


@pytest.mark.parametrize("least", [1, 20])
@pytest.mark.parametrize("before", [False, True])
def test_a_segment_that_vanishes_between_plan_and_read_is_told_or_skipped(log: Path, least: int, before: bool) -> None:
    lost = lose(log, 1) if before else (bases(log)[1], bases(log)[1])
    strict, lenient = (reader(log, minPartitions=least, failOnDataLoss=fails) for fails in (True, False))
    parts = [list(each.partitions()) for each in (strict, lenient)]
    lost = lost[0], lose(log, 1)[1]

    assert list(read(lenient, parts[1])) == kept(lost)
    with pytest.raises(RecordsLost) as told:
        list(read(strict, parts[0]))
    assert (told.value.from_index, told.value.to_index) == lost


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 3}, {"maxBytesPerTrigger": 2 * FRAME_BYTES}])
def test_a_stream_goes_on_behind_a_missing_segment_only_if_it_may(log: Path, limit: dict[str, int]) -> None:
    lost = lose(log, 1)

    def indices(**options: Any) -> Iterator[int]:
        given = {"path": str(log), "startingOffsets": "earliest"}
        given |= {name: str(value) for name, value in {**limit, **options}.items()}
        stream = LogStreamReader(SourceOptions.parse(given, streaming=True), SCHEMA)
        start = stream.initialOffset()
        while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
            yield from read(stream, stream.partitions(start, end))
            start = end

    assert list(indices(failOnDataLoss=False)) == kept(lost)
    with pytest.raises(RecordsLost) as told:
        list(indices())
    assert (told.value.from_index, told.value.to_index) == lost


def test_a_stream_whose_checkpoint_lies_in_a_missing_segment_says_so(log: Path) -> None:
    lost = lose(log, 1)
    start = Offset(CLUSTER.hex(), lost[0] + 3).to_document()
    for limit in ({}, {"maxBytesPerTrigger": "1"}):
        given = {"path": str(log), "failOnDataLoss": "false", **limit}
        stream = LogStreamReader(SourceOptions.parse(given, streaming=True), SCHEMA)
        end = stream.latestOffset(start, stream.getDefaultReadLimit() if limit else ReadAllAvailable())
        reached = Offset.from_document(end).index or 0
        assert reached >= lost[1]
        assert list(read(stream, stream.partitions(start, end))) == list(range(lost[1], reached))


def test_a_time_among_the_lost_records_is_no_way_around_them(log: Path) -> None:
    lost = lose(log, 1)
    inside = (START + (lost[0] // 2 + 1) * SECOND) // 1000
    for place in ({"startingTimestamp": inside}, {"endingTimestamp": inside}):
        with pytest.raises(RecordsLost) as told:
            list(read(reader(log, **place)))
        assert (told.value.from_index, told.value.to_index) == lost
    assert list(read(reader(log, startingTimestamp=inside, failOnDataLoss=False))) == list(range(lost[1], RECORDS))
    assert list(read(reader(log, endingTimestamp=inside, failOnDataLoss=False))) == list(range(lost[0]))
    behind = (START + lost[1] // 2 * SECOND) // 1000
    assert list(read(reader(log, startingTimestamp=behind))) == list(range(lost[1], RECORDS))


@pytest.mark.parametrize("harm", ["flipped", "cut in a frame", "cut between frames", "grown"])
def test_rot_beside_a_missing_segment_is_rot(log: Path, harm: str) -> None:
    """Whoever may lose records is not shown rot as such a loss."""
    lost = lose(log, 1)
    store = store_of(log, 0)
    raw = bytearray(store.read_bytes())
    assert len(raw) == STORE_HEADER_BYTES + lost[0] // 2 * FRAME_BYTES
    place = len(raw) - 5 * FRAME_BYTES
    match harm:
        case "flipped":
            raw[place + 70] ^= 1
        case "cut in a frame":
            del raw[place + 70 :]
        case "cut between frames":
            del raw[place:]
        case _:
            place = len(raw)
            raw += bytes(FRAME_BYTES)
    store.write_bytes(raw)

    with pytest.raises(FrameCorrupt) as corrupt:
        list(read(reader(log, failOnDataLoss=False)))
    assert (corrupt.value.file, corrupt.value.position) == (str(store), place)


def test_a_scrub_names_a_missing_segment_as_damage(log: Path) -> None:
    lost = lose(log, 1)

    found = scrub([str(log)])

    assert not found.is_whole
    assert [(each.kind, each.from_index, each.to_index) for each in found.findings] == [("corrupt", *lost)]


@pytest.mark.parametrize(("gone", "is_damage"), [(1, True), (0, False)])
def test_a_scrub_names_a_segment_that_vanishes_under_it_unless_it_has_expired(
    log: Path, monkeypatch: pytest.MonkeyPatch, gone: int, is_damage: bool
) -> None:
    lost: list[tuple[int, int]] = []

    def vanishing(*arguments: Any) -> Any:
        lost.append(lose(log, gone))
        return spread(*arguments)

    monkeypatch.setattr(scrubbing, "spread", vanishing)

    found = [(each.kind, each.from_index, each.to_index) for each in scrub([str(log)]).findings]
    assert found == [("corrupt", *each) for each in lost if is_damage]


def test_what_is_lost_of_the_log_and_is_archived_is_read_from_there(log: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    archive(SourceOptions(path=str(log)), path)
    lose(log, 1)
    given = SourceOptions.parse({"path": str(log), "archive": path}, streaming=False)

    assert list(read(LogReader(given, SCHEMA))) == list(range(RECORDS))


def test_of_a_lost_segment_only_what_is_not_archived_is_told(tmp_path: Path) -> None:
    log, path = tmp_path / "log", str(tmp_path / "archive")
    grow(log, 0, 40)
    archive(SourceOptions(path=str(log)), path)
    grow(log, 40, RECORDS)
    lost = lose(log, 1)
    assert lost[0] < 40 < lost[1]
    inside = (START + 21 * SECOND) // 1000
    given = {"path": str(log), "archive": path}

    for place in ({}, {"startingTimestamp": str(inside)}):
        strict = LogReader(SourceOptions.parse({**given, **place}, streaming=False), SCHEMA)
        with pytest.raises(RecordsLost) as told:
            list(read(strict))
        assert (told.value.from_index, told.value.to_index) == (40, lost[1])
    lenient = LogReader(SourceOptions.parse({**given, "failOnDataLoss": "false"}, streaming=False), SCHEMA)
    assert list(read(lenient)) == kept((40, lost[1]))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("archived", [0, 10, 32])
def test_an_archiver_refuses_a_missing_segment_as_a_gap_or_records_it(
    tmp_path: Path, count: int, archived: int
) -> None:
    log, path, end = tmp_path / "log", str(tmp_path / "archive"), 2 * RECORDS
    grow(log, 0, archived or end)
    if archived:
        archive(SourceOptions(path=str(log)), path)
        grow(log, archived, end)
    assert bases(log)[1] == 32
    gaps = [lose(log, 1, count), lose(log, 2)]

    with pytest.raises(ArchiveGap, match=rf"\[{gaps[0][0]}, {gaps[0][1]}\).*--accept-gap"):
        archive(SourceOptions(path=str(log)), path)
    summary = archive(SourceOptions(path=str(log)), path, accept_gap=True)

    held = [index for index in range(end) if not any(first <= index < last for first, last in gaps)]
    assert (summary.from_index, summary.to_index, summary.gaps) == (archived, end, gaps)
    assert list(read(reader(Path(path), failOnDataLoss=False))) == held
    assert scrub([path]).is_whole
    assert archive(SourceOptions(path=str(log)), path).files == 0
