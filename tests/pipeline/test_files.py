"""The files of a log as the pipeline reads them, without Spark: every place, every harm, and a log that lives on."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from quire.log import (
    FileDirectory,
    FrameCorrupt,
    Kind,
    Log,
    LogOptions,
    PayloadInvalid,
    Record,
    Run,
    stored_mark,
    walk_frames,
)
from quire.log.frames import walk_headers
from quire.log.options import STORE_HEADER_BYTES
from quire.log.packing import Skimmer
from quire.log.payload import stored_records
from quire.pipeline.errors import NoLog, RecordsLost
from quire.pipeline.jobs import archive
from quire.pipeline.origin.columns import HEADER_COLUMNS, MAX_BATCH_ROWS, batches_of
from quire.pipeline.origin.data_dir import CHUNK_BYTES, DataDirLog
from quire.pipeline.origin.origin import Bounds, Stretch, split
from quire.pipeline.origin.rows import RowBuilder, Rows
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader
from quire.pipeline.source.source import full_schema
from tests.pipeline.logs import (
    CLUSTER,
    SECOND,
    SMALL,
    START,
    Clock,
    Frames,
    append_and_flush,
    every_kind,
    expected_rows,
    row_of,
    writing,
)

SCHEMA: Any = to_arrow_schema(full_schema(headers=True), timezone="UTC")


def shown(rows: Rows, segment: int | None) -> list[dict[str, Any]]:
    """Rows as Spark would show them."""
    table = pa.Table.from_batches(list(batches_of(rows, SCHEMA, segment)), schema=SCHEMA)
    found: list[dict[str, Any]] = table.to_pylist()
    for row in found:
        row["timestamp"] = row["timestamp"].replace(tzinfo=None)
        row["headers"] = None if row["headers"] is None else dict(row["headers"])
    return found


def read(files: DataDirLog, stretches: Iterable[Stretch]) -> list[dict[str, Any]]:
    return [
        row for stretch in stretches for rows in files.rows(stretch, Skimmer()) for row in shown(rows, stretch.segment)
    ]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history")
    with writing(path) as log:
        every_kind(log)
    return path


@pytest.mark.parametrize("least", [1, 2, 7, 1000])
def test_stretches_of_any_number_show_every_record_once_and_as_it_is(history: Path, least: int) -> None:
    files = DataDirLog(str(history))
    stretches = split(files.stretches(*files.bounds()), least)

    assert len(stretches) >= min(least, len(expected_rows(history)))
    assert read(files, stretches) == expected_rows(history)


def test_a_read_may_begin_and_end_at_any_index(history: Path) -> None:
    files, expected = DataDirLog(str(history)), expected_rows(history)
    low, high = files.bounds()

    for start in range(low, high + 1):
        for end in (start, start + 1, start + 3, high):
            if end <= high:
                assert read(files, files.stretches(start, end)) == expected[start:end], (start, end)


@pytest.mark.parametrize("harm", ["missing", "short", "foreign", "wrong"])
def test_an_index_file_is_not_believed(tmp_path: Path, harm: str) -> None:
    with writing(tmp_path) as log:
        every_kind(log)
        bases = list(log.segments.bases)
    name = tmp_path / "log" / f"{bases[1]:020d}.index"
    raw = bytearray(name.read_bytes())
    match harm:
        case "missing":
            name.unlink()
        case "short":
            name.write_bytes(raw[:9])
        case "foreign":
            name.write_bytes((tmp_path / "log" / f"{bases[0]:020d}.index").read_bytes())
        case _:
            for position in range(16, len(raw), 16):
                raw[position + 12] ^= 64
            name.write_bytes(raw)
    files, expected = DataDirLog(str(tmp_path)), expected_rows(tmp_path)

    for start in range(bases[1], bases[2]):
        assert read(files, files.stretches(start, start + 1)) == expected[start : start + 1]


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    log = Log.open(FileDirectory(tmp_path), SMALL, cluster_id=CLUSTER, clock=Clock(), standalone=False)
    for number in range(50):
        log.append([number])
    log.flush()
    log.mark.commit_index = 33
    mark = log.mark_sync.begin()
    assert mark is not None
    mark.run()
    log.mark_sync.end(mark)

    files = DataDirLog(str(tmp_path))

    assert files.bounds() == Bounds(0, 33)
    assert [row["index"] for row in read(files, files.stretches(0, 33))] == list(range(33))
    log.close()


def test_half_a_frame_above_the_commit_index_is_no_matter(tmp_path: Path) -> None:
    with writing(tmp_path) as log:
        append_and_flush(log, [1], [2], [3])
        end = 64 + log.size
    store = tmp_path / "log" / f"{0:020d}.store"
    store.write_bytes(store.read_bytes()[:end] + b"\x07" * 500)
    files = DataDirLog(str(tmp_path))

    assert [row["command"] for row in read(files, files.stretches(*files.bounds()))] == ["1", "2", "3"]
    assert files.index_at(START + SECOND, files.bounds()) == 3
    assert files.index_within_bytes(0, 3, 1 << 30) == 3


def test_a_log_that_grows_and_rotates_under_a_reader_is_read_on(tmp_path: Path) -> None:
    with writing(tmp_path) as log:
        append_and_flush(log, *[[number] for number in range(10)])
        files = DataDirLog(str(tmp_path))
        first = files.bounds()
        stretches = files.stretches(*first)
        append_and_flush(log, *[[number] for number in range(10, 200)])

        assert [row["index"] for row in read(files, stretches)] == list(range(10))
        second = files.bounds()
        assert second == Bounds(0, 200)
        assert [row["index"] for row in read(files, files.stretches(10, 200))] == list(range(10, 200))


def test_a_segment_that_expires_before_it_is_read_is_named_by_its_range(tmp_path: Path) -> None:
    clock = Clock()
    with writing(tmp_path, clock=clock) as log:
        append_and_flush(log, *[[number] for number in range(100)])
        files = DataDirLog(str(tmp_path))
        stretches = files.stretches(*files.bounds())
        reading = files.rows(stretches[0], Skimmer())
        begun = [next(reading)]
        assert log.expiry.remove(floor=stretches[1].to_index, max_bytes=1)

        begun += reading  # What was open before goes on.
        assert sum(map(len, begun)) == stretches[0].to_index
        with pytest.raises(RecordsLost) as lost:
            read(files, [stretches[1]])

    assert (lost.value.from_index, lost.value.to_index) == stretches[1][:2]


@pytest.mark.parametrize(
    ("timestamp", "index"),
    [
        (0, 0),
        (START, 0),
        (START + 1, 3),
        (START + SECOND, 3),
        (START + 50 * SECOND, 150),
        (START + 99 * SECOND + 1, 300),
    ],
)
def test_a_time_is_found_in_any_segment(tmp_path: Path, timestamp: int, index: int) -> None:
    clock = Clock()
    with writing(tmp_path, clock=clock) as log:
        for number in range(100):
            clock.now = START + number * SECOND
            log.append([number, b"", None])
    files = DataDirLog(str(tmp_path))

    assert files.index_at(timestamp, files.bounds()) == index


@pytest.mark.parametrize("by_time", [False, True])
def test_a_range_of_indices_or_of_time_reads_the_frames_of_no_segment_beside_it(tmp_path: Path, by_time: bool) -> None:
    clock = Clock()
    with writing(tmp_path, clock=clock) as log:
        for number in range(100):
            clock.now = START + number * SECOND
            log.append([number, b"", None])
    bases = [*sorted({row["segment"] for row in expected_rows(tmp_path)}), 300]
    expected = [row["index"] for row in expected_rows(tmp_path)]
    assert len(bases) > 4
    whole = {base: (tmp_path / "log" / f"{base:020d}.store").read_bytes() for base in bases[:-1]}
    for base, following in itertools.pairwise(bases):
        for other, raw in whole.items():  # Whoever reads any frame of these finds that it is none.
            kept = raw if other == base else raw[:STORE_HEADER_BYTES].ljust(len(raw), b"\xff")
            (tmp_path / "log" / f"{other:020d}.store").write_bytes(kept)
        start, end = base + 3, following - 3
        options = {"startingOffsets": str(start), "endingOffsets": str(end)}
        if by_time:
            first, last = (START // 1000 + index // 3 * 1000 for index in (start, end))
            options = {"startingTimestamp": str(first), "endingTimestamp": str(last)}
        given = SourceOptions.parse({"path": str(tmp_path), **options}, streaming=False)
        reader = LogReader(given, StructType().add("index", LongType()))
        parts = reader.partitions()

        assert [part.value.stretch for part in parts] == [Stretch(start, end, base)]
        read = [index for part in parts for batch in reader.read(part) for index in batch[0].to_pylist()]
        assert read == expected[start:end]


def reader_of(path: Path, names: Iterable[str] = SCHEMA.names, **options: str) -> LogReader:
    """The reader of a schema with these columns."""
    schema = StructType([full_schema(headers=True)[name] for name in names])
    return LogReader(SourceOptions.parse({"path": str(path), **options}, streaming=False), schema)


def table_of(reader: LogReader, parts: Iterable[InputPartition]) -> pa.Table:
    """What a reader returns of partitions."""
    return pa.Table.from_batches(batch for part in parts for batch in reader.read(part))


@pytest.mark.parametrize("archived", [False, True])
def test_any_columns_are_those_of_a_read_of_all_columns(tmp_path: Path, archived: bool) -> None:
    path = tmp_path / "log"
    with writing(path, LogOptions()) as log:
        every_kind(log)
    if archived:
        archive(SourceOptions(path=str(path)), str(tmp_path / "archive"))
        path = tmp_path / "archive"
    reader = reader_of(path)
    parts = reader.partitions()
    whole = table_of(reader, parts)

    for count in (1, 2, 3, 9, 10):  # Each column is made by itself, of payloads or without them.
        for names in itertools.combinations(SCHEMA.names, count):
            assert table_of(reader_of(path, names), parts).equals(whole.select(names)), names


def test_a_value_that_is_not_as_its_kind_says_matters_only_to_columns_made_of_payloads(tmp_path: Path) -> None:
    with writing(tmp_path) as log:
        frames = Frames(log)
        frames.add(Kind.RECORDS, b"\x92\x01", 2)
        frames.add(Kind.RUNS, b"\x01\x01", 2)
        log.flush()
    reader = reader_of(tmp_path, sorted(HEADER_COLUMNS))
    parts = reader.partitions()

    assert table_of(reader, parts).column("index").to_pylist() == [0, 1, 2, 3]
    for name in set(SCHEMA.names) - HEADER_COLUMNS:
        with pytest.raises(FrameCorrupt):
            table_of(reader_of(tmp_path, ["index", name]), parts)


def test_a_flipped_bit_of_a_value_is_found_though_no_column_needs_it(tmp_path: Path) -> None:
    with writing(tmp_path) as log:
        append_and_flush(log, ["a value"])
    store = tmp_path / "log" / f"{0:020d}.store"
    raw = bytearray(store.read_bytes())
    raw[raw.index(b"a value")] ^= 1
    store.write_bytes(raw)
    reader = reader_of(tmp_path, ["index"])

    with pytest.raises(FrameCorrupt, match="payload"):
        table_of(reader, reader.partitions())


@pytest.mark.parametrize("by_time", [False, True])
def test_a_range_of_a_segment_with_an_index_file_reads_little_but_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_time: bool
) -> None:
    clock, first, last = Clock(), 3000, 3002
    with writing(tmp_path, LogOptions(segment_bytes=8 << 20), clock) as log:
        for number in range(4096):
            clock.now = START + number * SECOND
            log.append([b"x" * 4096])
    place = {"startingOffsets": str(first), "endingOffsets": str(last)}
    if by_time:
        from_ms, to_ms = (START // 1000 + index * 1000 for index in (first, last))
        place = {"startingTimestamp": str(from_ms), "endingTimestamp": str(to_ms)}
    counted: list[int] = []
    pread = os.pread

    def counting(descriptor: int, length: int, position: int) -> bytes:
        data = pread(descriptor, length, position)
        counted.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    reader = reader_of(tmp_path, ["index"], **place)

    assert table_of(reader, reader.partitions()).column("index").to_pylist() == list(range(first, last))
    assert sum(counted) < CHUNK_BYTES + (1 << 19)  # Of 16 MiB: a piece, and what finds it by index files.


@pytest.mark.parametrize("options", [SMALL, LogOptions(segment_bytes=1 << 20, index_interval_bytes=512)])
def test_so_many_bytes_reach_to_the_last_frame_that_fits_and_past_one_at_least(
    tmp_path: Path, options: LogOptions
) -> None:
    with writing(tmp_path, options) as log:
        for number in range(60):
            log.append([number, b"x" * number])
        log.flush()
        index, sizes = 0, list[int]()
        while index < 120:
            raw, index = log.read_frames(index, 1 << 30)
            sizes += [header.size for _, header in walk_headers(raw)]
    ends = list(itertools.accumulate(sizes))
    files = DataDirLog(str(tmp_path))
    files.bounds()

    for first in (0, 7, 33):
        behind = ends[first - 1] if first else 0
        for frame in range(first, 60):
            size = ends[frame] - behind
            assert files.index_within_bytes(2 * first, 120, size) == 2 * (frame + 1)
            assert files.index_within_bytes(2 * first, 120, size - 1) == 2 * max(frame, first + 1)
    assert files.index_within_bytes(0, 11, 1 << 30) == 11


@pytest.mark.parametrize("where", ["payload", "header", "chain", "store header", "segment"])
def test_rot_is_told_with_file_and_position(tmp_path: Path, where: str) -> None:
    with writing(tmp_path) as log:
        append_and_flush(log, *[[number] for number in range(100)])
        bases = list(log.segments.bases)
    store = tmp_path / "log" / f"{bases[1]:020d}.store"
    raw, frame = bytearray(store.read_bytes()), 66
    position = 64 + 2 * frame
    match where:
        case "payload":
            raw[position + 65] ^= 1
        case "header":
            raw[position + 20] ^= 1
        case "chain":
            raw[position : position + frame] = raw[position + frame : position + 2 * frame]
        case "store header":
            raw[20], position = raw[20] ^ 1, 0
        case _:
            store = tmp_path / "log" / f"{bases[2]:020d}.store"
            position = 0
            raw = bytearray(_with_another_origin(store.read_bytes()))
    store.write_bytes(raw)
    files = DataDirLog(str(tmp_path))

    with pytest.raises(FrameCorrupt) as corrupt:
        read(files, files.stretches(bases[1], bases[2]))

    assert corrupt.value.file == str(store)
    assert corrupt.value.position == position


def _with_another_origin(raw: bytes) -> bytes:
    from quire.log.segment.store import decode_store_header, encode_store_header

    header = decode_store_header(raw, "")
    return encode_store_header(header._replace(crc32c=header.crc32c ^ 1)) + raw[64:]


def test_a_folder_without_segments_or_without_a_mark_is_no_log(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NoLog, match="holds no log"):
            DataDirLog(str(path)).bounds()
    (tmp_path / "log").mkdir()
    with pytest.raises(NoLog, match="no segment"):
        DataDirLog(str(tmp_path)).bounds()
    with writing(tmp_path / "other"):
        pass
    (tmp_path / "other" / "mark").unlink()
    with pytest.raises(NoLog, match="mark"):
        DataDirLog(str(tmp_path / "other")).bounds()


def test_reading_leaves_no_trace(history: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in history.rglob("*")}

    before = state()
    files = DataDirLog(str(history))
    read(files, files.stretches(*files.bounds()))

    assert state() == before
    assert stored_mark(FileDirectory(history)) is not None


def test_a_frame_larger_than_what_is_read_at_once_is_read_whole(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=64 << 20, max_frame_bytes=32 << 20)
    with writing(tmp_path, options) as log:
        append_and_flush(log, [b"small"], [b"x" * (CHUNK_BYTES + 1)], [b"y" * CHUNK_BYTES, b"z"])
    files = DataDirLog(str(tmp_path))

    assert read(files, files.stretches(*files.bounds())) == expected_rows(tmp_path)


@pytest.mark.parametrize("count", [MAX_BATCH_ROWS, MAX_BATCH_ROWS + 1])
def test_a_batch_has_no_more_rows_than_its_limit(tmp_path: Path, count: int) -> None:
    with writing(tmp_path, LogOptions()) as log:
        append_and_flush(log, [1] * count)
    files = DataDirLog(str(tmp_path))
    [stretch] = files.stretches(*files.bounds())
    batches = [batch for rows in files.rows(stretch, Skimmer()) for batch in batches_of(rows, SCHEMA, 0)]

    assert [batch.num_rows for batch in batches] == [MAX_BATCH_ROWS, 1][: count - MAX_BATCH_ROWS + 1]


def test_the_column_command_keeps_every_entry_of_a_map_and_tells_apart_what_json_cannot() -> None:
    frames = _Written()
    frames.records({1: "a", "1": "b"}, {"$bin": "AA=="}, [b"\0"], ["plain"])
    gathering = RowBuilder(memoryview(frames.raw), Skimmer())
    for offset, header in walk_headers(memoryview(frames.raw)):
        gathering.add(header, offset)

    assert [row["command"] for row in shown(gathering.rows(0, 1 << 60), None)] == [
        '{"$map":[[1,"a"],["1","b"]]}',
        '{"$map":[["$bin","AA=="]]}',
        '[{"$bin":"AA=="}]',
        '["plain"]',
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=2)
RECORDS = st.builds(Record, VALUES, HEADERS)


@given(st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=6), st.integers(0, 3)), min_size=1, max_size=5))
def test_rows_are_what_the_log_decodes_of_any_records(batches: list[tuple[list[Record], int]]) -> None:
    frames = _Written()
    for records, session in batches:
        if session == 3:
            runs = [Run(number % 2 * 5, 3 + number, 1) for number in range(len(records))]
            frames.runs(runs, *records)
        else:
            frames.records(*records, session=session, sequence=9 if session else 0)
    raw = memoryview(frames.raw)
    gathering = RowBuilder(raw, Skimmer())
    for offset, header in walk_headers(raw):
        gathering.add(header, offset)

    expected = [row_of(record, 4) for frame in walk_frames(raw) for record in stored_records(frame)]
    assert shown(gathering.rows(0, 1 << 60), 4) == expected


class _Written(Frames):
    """Frames in memory."""

    def __init__(self) -> None:
        from quire.log import Tail

        self.raw = b""
        self.tail = Tail(0, 0, 0, 0)
        self.epoch = 1
        self._log = self  # type: ignore[assignment]

    def append_frames(self, raw: bytes) -> None:
        from quire.log.frames import follow

        for _, header in walk_headers(raw):
            self.tail = follow(self.tail, header)
        self.raw += raw


@pytest.mark.parametrize(
    ("payload", "count"), [(b"\x92\x01", 2), (b"\x91\x01\x01", 1), (b"\x01", 1), (b"\x92\x01\x01", 1), (b"\xc1", 1)]
)
def test_a_payload_that_is_not_as_its_kind_says_is_refused(payload: bytes, count: int) -> None:
    frames = _Written()
    frames.add(0, payload, count)  # type: ignore[arg-type]
    raw = memoryview(frames.raw)
    [(offset, header)] = walk_headers(raw)

    with pytest.raises(PayloadInvalid):
        RowBuilder(raw, Skimmer()).add(header, offset)


MEASURED = """
import resource, sys
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from quire.log.packing import Skimmer
from quire.pipeline.origin.columns import batches_of
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.source.source import full_schema

files = DataDirLog(sys.argv[1])
schema = to_arrow_schema(full_schema(headers=False), timezone="UTC")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(
    batch.num_rows
    for stretch in files.stretches(*files.bounds())
    for rows in files.rows(stretch, Skimmer())
    for batch in batches_of(rows, schema, stretch.segment)
)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_task_holds_little_memory_though_its_commands_are_small_and_many(tmp_path: Path) -> None:
    with writing(tmp_path, LogOptions()) as log:
        for start in range(0, 200_000, 1000):
            log.append([["add", number] for number in range(start, start + 1000)])

    ran = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, check=True, text=True)
    count, kibibytes = map(int, ran.stdout.split())

    assert count == 200_000
    assert (
        kibibytes < 200 << 10
    )  # Some 60 MiB; it was half a gigabyte where the texts of a whole piece were kept apart.
