"""An archive of many small files: few tasks read it, and none of them reads its manifest."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

from quire.log import LogOptions
from quire.pipeline.archive import log as archive_log
from quire.pipeline.archive import manifest
from quire.pipeline.archive.log import ArchiveLog
from quire.pipeline.archive.manifest import MANIFEST_FILE, open_manifest
from quire.pipeline.errors import ArchiveDamaged, ArchiveDiverges, NoLog, RecordsLost
from quire.pipeline.jobs import archive, scrub
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader, LogStreamReader
from quire.pipeline.source.reading import LogPartition
from tests.pipeline.logs import append_and_flush, expected_rows, writing
from tests.pipeline.test_archive import expire, parquet, rows_of

SCHEMA = StructType().add("index", LongType()).add("segment", LongType())
FILES = 40
RECORDS = 5 * FILES


def grow(log: Path, first: int, records: int = RECORDS) -> Path:
    with writing(log, LogOptions(segment_bytes=5000, index_bytes=1 << 20)) as writer:
        append_and_flush(writer, *[[number] for number in range(first, first + records)])
    return log


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A log and its archive, to which each of 40 runs added five records."""
    log, path = tmp_path / "log", tmp_path / "archive"
    for run in range(FILES):
        grow(log, 5 * run, 5)
        archive(SourceOptions(path=str(log)), str(path))
    assert len(parquet(path)) >= FILES
    return log, path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that were opened."""
    seen: list[str] = []

    def counting(path: str, *access: int) -> Any:
        seen.append(path)
        return open_manifest(path, *access)

    monkeypatch.setattr(manifest, "open_manifest", counting)
    return seen


def options(**given: Any) -> SourceOptions:
    return SourceOptions.parse({name: str(value) for name, value in given.items()}, streaming=False)


def planned(reader: LogReader) -> list[InputPartition]:
    """The partitions as the tasks get them."""
    parts = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert all(isinstance(part.value, LogPartition) for part in parts)
    return list(parts)


def read(reader: LogReader | LogStreamReader, parts: Any) -> Iterator[tuple[int, int]]:
    for part in parts:
        for batch in reader.read(part):
            yield from zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True)


def expected(log: Path) -> list[tuple[int, int]]:
    return [(row["index"], row["segment"]) for row in expected_rows(log)]


def test_small_files_of_one_segment_are_one_partition_and_show_what_the_log_shows(small: tuple[Path, Path]) -> None:
    log, path = small
    reader = LogReader(options(path=path), SCHEMA)
    parts = planned(reader)

    assert [part.value.stretch.segment for part in parts] == sorted({segment for _, segment in expected(log)})
    assert list(read(reader, parts)) == expected(log)
    assert rows_of(ArchiveLog(str(path))) == expected_rows(log)


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_partition_holds_no_more_of_the_log_than_its_limit_unless_a_file_does(
    small: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fewer: int
) -> None:
    log, path = small
    files = ArchiveLog(str(path))
    three = sum(held.log_bytes for held in files.manifest.files[:3])
    monkeypatch.setattr(archive_log, "STRETCH_BYTES", three - fewer)
    stretches = files.stretches(*files.bounds())

    assert stretches[0][:2] == (0, files.manifest.files[2 - fewer].to_index)
    monkeypatch.setattr(archive_log, "STRETCH_BYTES", 1)
    assert len(files.stretches(*files.bounds())) == len(files.manifest.files)
    assert rows_of(files, stretches) == expected_rows(log)


@pytest.mark.parametrize("least", [1, 70])
@pytest.mark.parametrize("start", [0, 3, 92])
def test_a_plan_reads_the_manifest_once_and_no_task_does(
    small: tuple[Path, Path], opened: list[str], least: int, start: int
) -> None:
    log, path = small
    grow(log, RECORDS, 50)
    for given in ({"path": path}, {"path": log, "archive": path}):
        reader = LogReader(options(**given, startingOffsets=start, minPartitions=least), SCHEMA)
        opened.clear()
        parts = planned(reader)
        assert opened == [str(path)]
        end = RECORDS + 50 * (given["path"] == log)

        assert list(read(reader, parts)) == expected(log)[start:end]
        assert opened == [str(path)]


def test_a_partition_carries_only_the_files_that_it_needs(small: tuple[Path, Path]) -> None:
    log, path = small
    grow(log, RECORDS, 200)
    whole = ArchiveLog(str(path)).manifest
    for part in planned(LogReader(options(path=log, archive=path, minPartitions=30), SCHEMA)):
        assert part.value.archived is not None
        held, (first, last, _) = part.value.archived.files, part.value.stretch
        assert held == [each for each in whole.files if each.from_index < last and each.to_index > first]
        assert held or part.value.archived.tail == whole.tail


def test_a_stream_s_tasks_read_no_manifest(small: tuple[Path, Path], opened: list[str]) -> None:
    log, path = small
    grow(log, RECORDS, 50)
    given = {"path": str(log), "archive": str(path), "startingOffsets": "earliest"}
    stream = LogStreamReader(SourceOptions.parse(given, streaming=True), SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts = pickle.loads(pickle.dumps(list(stream.partitions(start, end))))
    opened.clear()

    assert list(read(stream, parts)) == expected(log)
    assert opened == []


def test_a_task_reads_the_manifest_again_for_what_was_archived_and_expired_since_the_plan(
    small: tuple[Path, Path], opened: list[str]
) -> None:
    log, path = small
    grow(log, RECORDS, 300)
    reader = LogReader(options(path=log, archive=path), SCHEMA)
    parts, shown = planned(reader), expected(log)
    archive(SourceOptions(path=str(log)), str(path))
    lowest = expire(log, RECORDS + 250)
    assert lowest > RECORDS
    opened.clear()

    assert list(read(reader, parts)) == shown
    live = [part.value.stretch for part in parts if RECORDS <= part.value.stretch.from_index < lowest]
    assert opened == [str(path)] * len(live)
    assert live


def test_what_expired_since_the_plan_and_is_in_no_archive_is_lost(small: tuple[Path, Path]) -> None:
    log, path = small
    grow(log, RECORDS, 300)
    reader = LogReader(options(path=log, archive=path), SCHEMA)
    parts = planned(reader)
    lowest = expire(log, RECORDS + 250)

    with pytest.raises(RecordsLost) as lost:
        list(read(reader, parts))
    assert lost.value.from_index == RECORDS
    assert lost.value.to_index <= lowest


def test_a_task_still_checks_that_the_log_follows_the_archive(small: tuple[Path, Path], tmp_path: Path) -> None:
    _, path = small
    other = tmp_path / "other"
    with writing(other, LogOptions(segment_bytes=5000, index_bytes=1 << 20)) as writer:
        append_and_flush(writer, *[[-number] for number in range(RECORDS + 10)])
    reader = LogReader(options(path=other, archive=path, startingOffsets=RECORDS), SCHEMA)

    with pytest.raises(ArchiveDiverges):
        list(read(reader, planned(reader)))


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "other"])
def test_a_file_that_is_harmed_between_plan_and_read_is_damage(small: tuple[Path, Path], harm: str) -> None:
    _, path = small
    reader = LogReader(options(path=path), SCHEMA)
    parts = planned(reader)
    files = parquet(path)
    raw = bytearray(files[3].read_bytes())
    match harm:
        case "flipped":
            raw[len(raw) // 3] ^= 1
            files[3].write_bytes(raw)
        case "cut":
            files[3].write_bytes(raw[:-1])
        case "gone":
            files[3].unlink()
        case _:
            files[3].write_bytes(files[4].read_bytes())

    with pytest.raises(ArchiveDamaged, match=files[3].name):
        list(read(reader, parts))


def test_a_task_that_does_not_see_the_archive_says_so(small: tuple[Path, Path]) -> None:
    _, path = small
    reader = LogReader(options(path=path), SCHEMA)
    parts = planned(reader)
    path.rename(path.with_name("elsewhere"))

    with pytest.raises(NoLog, match=MANIFEST_FILE):
        list(read(reader, parts))


def test_a_scrub_of_small_files_reads_the_manifest_once(small: tuple[Path, Path], opened: list[str]) -> None:
    _, path = small

    assert scrub([str(path)]).is_whole
    assert opened == [str(path)]
