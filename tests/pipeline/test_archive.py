"""Archives: a log's frames in Parquet files, to the byte, each once, whatever ends a run. Without Spark."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from quire.log import LogLocked, LogOptions
from quire.log.packing import Skimmer
from quire.pipeline.archive.appender import open_archive
from quire.pipeline.archive.log import ArchiveLog, JoinedLog
from quire.pipeline.archive.manifest import MANIFEST_FILE, ArchiveManifest, encode_line, look_up, staged, whole_lines
from quire.pipeline.errors import (
    ArchiveDamaged,
    ArchiveDiverges,
    ArchiveGap,
    ForeignLog,
    NoLog,
    OptionRefused,
    PipelineError,
    RecordsLost,
)
from quire.pipeline.jobs import archive
from quire.pipeline.origin.columns import batches_of
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.origin.origin import Bounds, Origin, Stretch, split
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogStreamReader
from quire.pipeline.source.source import full_schema
from tests.pipeline.logs import SECOND, START, Clock, append_and_flush, every_kind, expected_rows, writing

SCHEMA: Any = to_arrow_schema(full_schema(headers=True), timezone="UTC")
DAY = 86_400 * SECOND


def rows_of(origin: Origin, stretches: list[Stretch] | None = None) -> list[dict[str, Any]]:
    """What Spark would show of a log, all of it or these stretches."""
    found: list[dict[str, Any]] = []
    for stretch in origin.stretches(*origin.bounds()) if stretches is None else stretches:
        for rows in origin.rows(stretch, Skimmer()):
            table = pa.Table.from_batches(list(batches_of(rows, SCHEMA, stretch.segment)), schema=SCHEMA)
            found += table.to_pylist()
    for row in found:
        row["timestamp"] = row["timestamp"].replace(tzinfo=None)
        row["headers"] = None if row["headers"] is None else dict(row["headers"])
    return found


def archived(log: Path, path: Path) -> ArchiveLog:
    archive(SourceOptions(path=str(log)), str(path))
    return ArchiveLog(str(path))


def listed(folder: Path) -> list[int]:
    """The indices in all files below a folder, for whoever lists them and knows of no manifest."""
    files = folder.rglob("*.parquet")
    return sorted(index for file in files for index in pq.ParquetFile(file).read(["index"])["index"].to_pylist())


def seen(path: Path) -> list[int]:
    """The indices in an archive for a plain reader of Parquet, who leaves out names that begin with an underscore."""
    found = pads.dataset(path, format="parquet") if path.exists() else None
    if found is None or not found.files:
        return []
    return sorted(found.to_table(["index"])["index"].to_pylist())


def grow(path: Path, first: int, records: int, clock: Clock | None = None) -> None:
    """Append numbered records, one a frame."""
    with writing(path, LogOptions(segment_bytes=2048, index_bytes=1 << 20), clock) as log:
        append_and_flush(log, *[[number] for number in range(first, first + records)])


def expire(path: Path, to_index: int) -> int:
    """Remove the segments that end at or below an index; the lowest index that is left."""
    stores = sorted((path / "log").glob("*.store"))
    kept = [int(store.stem) for store in stores]
    gone = [base for base, following in itertools.pairwise(kept) if following <= to_index]
    for base in gone:
        for name in (path / "log").glob(f"{base:020d}.*"):
            name.unlink()
    return min(set(kept) - set(gone))


@pytest.fixture
def history(tmp_path: Path) -> Path:
    with writing(tmp_path / "log") as log:
        every_kind(log)
    return tmp_path / "log"


def test_an_archive_shows_what_the_log_shows_of_every_kind_of_record(history: Path, tmp_path: Path) -> None:
    files = archived(history, tmp_path / "archive")

    assert rows_of(files) == expected_rows(history)
    assert files.bounds() == DataDirLog(str(history)).bounds()
    assert files.cluster_id() == DataDirLog(str(history)).cluster_id()


def test_an_archive_is_read_from_any_index_to_any_other(history: Path, tmp_path: Path) -> None:
    files, expected = archived(history, tmp_path / "archive"), expected_rows(history)

    for start in range(0, len(expected) + 1, 3):
        for end in (start, start + 1, start + 7, len(expected)):
            if end <= len(expected):
                assert rows_of(files, files.stretches(start, end)) == expected[start:end], (start, end)
    assert rows_of(files, split(files.stretches(*files.bounds()), 20)) == expected


def test_the_files_of_an_archive_are_a_table_by_themselves(history: Path, tmp_path: Path) -> None:
    archived(history, tmp_path / "archive")

    table = pq.read_table(tmp_path / "archive", partitioning="hive").sort_by("index")

    expected = expected_rows(history)
    for column in ("index", "epoch", "kind", "session", "sequence", "value", "segment"):
        assert table.column(column).to_pylist() == [row[column] for row in expected]


def test_a_day_s_records_stand_in_a_day_s_files(tmp_path: Path) -> None:
    clock = Clock()
    with writing(tmp_path / "log", clock=clock) as log:
        for number in range(60):
            clock.now = START + number // 20 * DAY
            append_and_flush(log, [number])
    files = archived(tmp_path / "log", tmp_path / "archive")

    days = sorted(path.name for path in (tmp_path / "archive").glob("date=*"))
    assert days == ["date=2023-11-14", "date=2023-11-15", "date=2023-11-16"]
    for number, day in enumerate(days):
        assert listed(tmp_path / "archive" / day) == list(range(20 * number, 20 * number + 20))
    assert rows_of(files) == expected_rows(tmp_path / "log")


def test_a_run_goes_on_where_the_archive_ends(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 150)
    first = archive(SourceOptions(path=str(log)), str(path))
    nothing = archive(SourceOptions(path=str(log)), str(path))
    grow(log, 150, 150)
    second = archive(SourceOptions(path=str(log)), str(path))

    assert (first.from_index, first.to_index, first.records) == (0, 150, 150)
    assert (nothing.records, nothing.files) == (0, 0)
    assert (second.from_index, second.to_index) == (150, 300)
    assert rows_of(ArchiveLog(str(path))) == expected_rows(log)


class Killed(BaseException):
    """Where a process ends that is killed: nothing that it would have done after is done."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, run: Callable[[], object]) -> bool:
    """Run until the file system was asked for its `step`th change that counts; whether it came to that."""
    steps = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step:
                raise Killed
            return change(*arguments, **named)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "mkdir", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            run()
        except Killed:
            return True
    return False


def check_committed(path: Path, expected: list[dict[str, Any]]) -> None:
    """What is committed is a beginning of what is expected, and plain readers see nothing else, and nothing twice."""
    is_begun = (path / MANIFEST_FILE).exists() and list(whole_lines(str(path)))
    committed = rows_of(ArchiveLog(str(path))) if is_begun else []
    assert committed == expected[: len(committed)]
    indices = seen(path)
    assert len(set(indices)) == len(indices)
    assert set(indices) <= {row["index"] for row in committed}


def test_an_archiver_killed_at_any_step_leaves_an_archive_that_goes_on_without_a_doubled_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    grow(log, 0, 40)
    options, expected = SourceOptions(path=str(log)), expected_rows(log)

    step = 1
    while True:
        path = tmp_path / f"archive{step}"
        if not killed_at(monkeypatch, step, partial(archive, options, str(path))):
            break
        check_committed(path, expected)
        again = 1
        while killed_at(monkeypatch, again, partial(archive, options, str(path))):
            check_committed(path, expected)
            again += 1
        # Whoever lists folders sees each record once, too.
        assert listed(path) == seen(path) == list(range(40)), step
        assert rows_of(ArchiveLog(str(path))) == expected, step
        step += 1
    assert step > 12


def test_a_file_of_somebody_s_own_in_an_archive_s_folders_survives_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 40)
    own = [folder / "own.parquet" for folder in (parquet(archived(log, path).name)[0].parent, path, path / "date=mine")]
    for file in own:
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"mine": [1]}), file)
    before = [file.read_bytes() for file in own]
    grow(log, 40, 40)

    killed_at(monkeypatch, 6, partial(archive, SourceOptions(path=str(log)), str(path)))
    archived(log, path)

    assert [file.read_bytes() for file in own] == before
    assert rows_of(ArchiveLog(str(path))) == expected_rows(log)


def test_an_uncommitted_file_that_an_older_version_left_is_replaced_by_the_one_of_its_name(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 10)
    [whole] = parquet(archived(log, path).name)
    (path / MANIFEST_FILE).unlink()
    leftover = whole.with_name("00000000000000000000-00000000000000000007.parquet")
    leftover.write_bytes(b"of a shorter piece")
    whole.write_bytes(b"of the same piece")

    files = archived(log, path)

    assert rows_of(files) == expected_rows(log)
    assert leftover.read_bytes() == b"of a shorter piece"


@pytest.mark.parametrize("is_renamed_first", [True, False])
def test_a_reader_finds_a_file_that_is_renamed_into_its_folder_meanwhile(
    tmp_path: Path, is_renamed_first: bool
) -> None:
    grow(tmp_path / "log", 0, 10)
    files = archived(tmp_path / "log", tmp_path / "archive")
    [held] = files.manifest.files
    new, final = tmp_path / "archive" / staged(held), tmp_path / "archive" / held.file
    final.rename(new)
    looks = 0

    def look(place: str) -> bytes:
        nonlocal looks
        looks += 1
        try:
            if looks == 1 and is_renamed_first:
                new.rename(final)
            return Path(place).read_bytes()
        finally:
            if looks == 1 and not is_renamed_first:
                new.rename(final)

    assert len(look_up(files.name, held, look)) == held.file_bytes


@pytest.mark.parametrize("kept", [1, 40, 90])
def test_a_line_that_a_crash_cut_short_is_none(tmp_path: Path, kept: int) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 90)
    archived(log, path)
    manifest = path / MANIFEST_FILE
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])

    assert ArchiveManifest.read(str(path)).tail.index < 90
    assert rows_of(archived(log, path)) == expected_rows(log)


def test_one_archiver_at_a_time(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 10)
    with open_archive(str(tmp_path / "archive")), pytest.raises(LogLocked):
        archive(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "archive"))


def test_a_folder_with_something_else_is_no_place_for_an_archive(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 10)
    with pytest.raises(OptionRefused, match="holds something other"):
        archive(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "log"))


def test_an_archive_takes_no_part_of_a_log(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="covers the whole log"):
        archive(SourceOptions(path=str(tmp_path / "log"), endingOffsets=7), str(tmp_path / "archive"))


def test_another_cluster_s_log_is_refused_by_an_archive(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 10)
    with writing(tmp_path / "other", cluster_id=b"x" * 16) as log:
        append_and_flush(log, [1])
    archived(tmp_path / "log", tmp_path / "archive")

    with pytest.raises(ForeignLog):
        archive(SourceOptions(path=str(tmp_path / "other")), str(tmp_path / "archive"))


def test_another_history_of_the_same_cluster_is_not_appended(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 50)
    archived(tmp_path / "log", tmp_path / "archive")
    grow(tmp_path / "other", 1000, 90)

    with pytest.raises(ArchiveDiverges) as raised:
        archive(SourceOptions(path=str(tmp_path / "other")), str(tmp_path / "archive"))
    assert raised.value.index == 50


def test_what_expired_before_it_was_archived_is_a_gap_with_its_range(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 60)
    archived(log, path)
    grow(log, 60, 200)
    lowest = expire(log, 150)

    with pytest.raises(ArchiveGap) as raised:
        archive(SourceOptions(path=str(log)), str(path))
    assert (raised.value.from_index, raised.value.to_index) == (60, lowest)


# Archive and log as one history


def test_archive_and_log_are_one_history_after_expiry_twice(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    expected: list[dict[str, Any]] = []
    for turn in range(2):
        grow(log, 200 * turn, 200)
        expected += expected_rows(log)[-200:]
        archived(log, path)
        grow_more = 200 * turn + 200
        lowest = expire(log, grow_more - 20)
        joined = JoinedLog(ArchiveLog(str(path)), DataDirLog(str(log)))

        assert lowest > 0
        assert joined.bounds() == (0, 200 * turn + 200)
        found = rows_of(joined)
        assert [row["index"] for row in found] == list(range(200 * turn + 200))
        assert [row["value"] for row in found] == [row["value"] for row in expected]


def test_what_the_archive_lacks_is_read_from_the_log_behind_it(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 100)
    files = archived(log, path)
    grow(log, 100, 100)
    expected = expected_rows(log)
    expire(log, 90)
    joined = JoinedLog(files, DataDirLog(str(log)))

    assert rows_of(joined) == expected
    for start, end in ((0, 50), (50, 150), (99, 101), (100, 200), (150, 150)):
        assert rows_of(joined, joined.stretches(start, end)) == expected[start:end]


def test_a_log_that_begins_behind_the_archive_s_end_is_a_gap_with_its_range(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 40)
    files = archived(log, path)
    grow(log, 40, 200)
    lowest = expire(log, 150)

    with pytest.raises(ArchiveGap, match=r"--accept-gap.*failOnDataLoss=false") as raised:
        JoinedLog(files, DataDirLog(str(log))).bounds()
    assert (raised.value.from_index, raised.value.to_index) == (40, lowest)


def test_a_log_with_another_history_behind_the_archive_is_no_part_of_it(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 50)
    files = archived(tmp_path / "log", tmp_path / "archive")
    grow(tmp_path / "other", 1000, 90)

    with pytest.raises(ArchiveDiverges):
        rows_of(JoinedLog(files, DataDirLog(str(tmp_path / "other"))))


def test_a_time_is_found_in_archive_and_log(tmp_path: Path) -> None:
    clock = Clock()
    log, path = tmp_path / "log", tmp_path / "archive"
    for part in range(2):
        with writing(log, clock=clock) as writer:
            for number in range(50 * part, 50 * part + 50):
                clock.now = START + number * SECOND
                append_and_flush(writer, [number])
        if part == 0:
            archived(log, path)
    whole = DataDirLog(str(log))
    joined = JoinedLog(ArchiveLog(str(path)), DataDirLog(str(log)))

    for second in (0, 1, 30, 49, 50, 51, 99, 100, 200):
        moment = START + second * SECOND - 1
        assert joined.index_at(moment, joined.bounds()) == whole.index_at(moment, whole.bounds()), second


def streaming(**options: str) -> LogStreamReader:
    given = {"startingOffsets": "earliest", **options}
    return LogStreamReader(SourceOptions.parse(given, streaming=True), StructType().add("index", LongType()))


def next_batch(stream: LogStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The indices of a stream's next batch, and where it ends."""
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    return [index for batch in batches for index in batch[0].to_pylist()], end


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1000"}, {"maxBytesPerTrigger": "1000000"}])
def test_a_stream_over_an_archive_goes_on_as_it_grows(tmp_path: Path, limit: dict[str, str]) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 40)
    archived(log, path)
    stream = streaming(path=str(path), **limit)
    found, end = next_batch(stream, stream.initialOffset())
    assert found == list(range(40))
    assert next_batch(stream, end) == ([], end)

    grow(log, 40, 40)
    archived(log, path)
    assert next_batch(stream, end)[0] == list(range(40, 80))


@pytest.mark.parametrize("limit", [{}, {"maxBytesPerTrigger": "1000000"}])
def test_a_stream_over_archive_and_log_goes_on_though_the_log_expires_behind_a_later_archive(
    tmp_path: Path, limit: dict[str, str]
) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 100)
    archived(log, path)
    stream, found = streaming(path=str(log), archive=str(path), **limit), list[int]()
    end = stream.initialOffset()
    for first in range(100, 500, 100):
        grow(log, first, 100)
        while (batch := next_batch(stream, end))[0]:
            found += batch[0]
            end = batch[1]
        archived(log, path)
        assert expire(log, first + 80) > first

    assert found == list(range(500))


def test_what_is_archived_and_expires_between_plan_and_reading_is_read_from_the_archive(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 100)
    joined = JoinedLog(archived(log, path), DataDirLog(str(log)))
    grow(log, 100, 200)
    planned, expected = joined.stretches(*joined.bounds()), expected_rows(log)
    archived(log, path)
    assert expire(log, 280) > 200
    assert rows_of(joined, planned) == expected

    grow(log, 300, 200)
    planned = joined.stretches(*joined.bounds())
    lowest = expire(log, 480)
    with pytest.raises(RecordsLost) as lost:
        rows_of(joined, planned)
    assert 300 <= lost.value.from_index < lost.value.to_index <= lowest


def test_a_log_that_is_archived_and_expires_between_two_looks_is_no_gap(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    grow(log, 0, 100)
    files = archived(log, path)
    grow(log, 100, 100)

    class Expiring(DataDirLog):
        def bounds(self, *, quick: bool = False) -> Bounds:
            archived(log, path)
            expire(log, 180)
            return super().bounds(quick=quick)

    assert JoinedLog(files, Expiring(str(log))).bounds() == (0, 200)


@pytest.mark.parametrize("size", [1, 100, 3000, 1 << 30])
def test_so_many_bytes_reach_as_far_in_an_archive_as_in_the_log(history: Path, tmp_path: Path, size: int) -> None:
    files, log = archived(history, tmp_path / "archive"), DataDirLog(str(history))
    low, high = log.bounds()

    for start in range(low, high, 5):
        assert files.index_within_bytes(start, high, size) == log.index_within_bytes(start, high, size), start


# Harm


def parquet(path: Path | str) -> list[Path]:
    return sorted(Path(path).glob("date=*/segment=*/*.parquet"))


def test_a_file_that_is_missing_or_cut_short_is_told_before_anything_is_read(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 100)
    files = archived(tmp_path / "log", tmp_path / "archive")
    second = parquet(tmp_path / "archive")[1]
    whole = second.read_bytes()

    second.write_bytes(whole[:-7])
    with pytest.raises(ArchiveDamaged, match=f"it has {len(whole) - 7} bytes, not {len(whole)}") as cut:
        files.stretches(*files.bounds())
    second.unlink()
    with pytest.raises(ArchiveDamaged, match="it is missing") as missing:
        files.stretches(*files.bounds())
    held = files.manifest.files[1]
    for raised in (cut, missing):
        assert (raised.value.from_index, raised.value.to_index) == (held.from_index, held.to_index)


def test_a_flipped_bit_anywhere_in_a_file_never_shows_another_record(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 30)
    files = archived(tmp_path / "log", tmp_path / "archive")
    expected, first = rows_of(files), parquet(tmp_path / "archive")[0]
    whole = first.read_bytes()

    damaged = 0
    for position in range(0, len(whole), 11):
        harmed = bytearray(whole)
        harmed[position] ^= 1 << position % 8
        first.write_bytes(harmed)
        try:
            assert rows_of(files) == expected, position
        except ArchiveDamaged:
            damaged += 1
    assert damaged > len(whole) // 11 // 4


def test_a_gap_between_two_files_is_told_with_its_range(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 100)
    files = archived(tmp_path / "log", tmp_path / "archive")
    manifest = tmp_path / "archive" / MANIFEST_FILE
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:2] + lines[3:]))

    with pytest.raises(ArchiveGap) as raised:
        ArchiveLog(str(tmp_path / "archive"))
    held = files.manifest.files[1]
    assert (raised.value.from_index, raised.value.to_index) == (held.from_index, held.to_index)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda raw: raw.replace(b'"frames":', b'"frameS":', 1), "line 2 fails its crc32c"),
        (lambda raw: encode_line({"version": 2}) + raw, "it has version 2"),
        (lambda raw: encode_line({"version": 1}) + raw, "a line lacks a field"),
        (lambda raw: b"", "is still empty"),
    ],
)
def test_a_manifest_that_is_none_is_told(tmp_path: Path, harm: Callable[[bytes], bytes], says: str) -> None:
    grow(tmp_path / "log", 0, 10)
    archived(tmp_path / "log", tmp_path / "archive")
    manifest = tmp_path / "archive" / MANIFEST_FILE
    manifest.write_bytes(harm(manifest.read_bytes()))

    with pytest.raises(PipelineError, match=says):
        ArchiveLog(str(tmp_path / "archive"))


def test_a_folder_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoLog, match="is not an archive"):
        ArchiveLog(str(tmp_path))


def test_reading_an_archive_leaves_no_trace(history: Path, tmp_path: Path) -> None:
    files = archived(history, tmp_path / "archive")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "archive").rglob("*"))

    rows_of(files)

    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "archive").rglob("*")) == before
