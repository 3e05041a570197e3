"""Whatever somebody made of an archive's files, a job ends with an error of its own: no wait, bounded memory."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from quire.log import Kind, LogError, decode_system, encode_frame, walk_frames
from quire.log.packing import Skimmer
from quire.pipeline.archive.appender import open_archive
from quire.pipeline.archive.log import ArchiveLog
from quire.pipeline.archive.manifest import MANIFEST_FILE, ArchiveManifest, encode_line, footer_crc32c, whole_lines
from quire.pipeline.archive.pages import pages_of
from quire.pipeline.archive.writer import PARQUET
from quire.pipeline.errors import ArchiveDamaged, PipelineError
from quire.pipeline.jobs import archive, replay, scrub
from quire.pipeline.source.options import SourceOptions
from quire.sm import ArithmeticMachine, MachineError
from tests.cluster.malformed.changed import changes_of_map
from tests.hostile import CHANGES, Change, changed_json, in_time
from tests.packed import unpacked
from tests.pipeline.test_replay import run_cluster

FILES = (
    "_quire/manifest",
    "_quire/genesis",
    "_quire/snapshots/*/manifest",
    "_quire/snapshots/*/*.chunk",
    "*/*/*.parquet",
)
FOOTERS = 150
CHANGES_OF_A_SNAPSHOT = 200


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "log"
    run_cluster(path, ArithmeticMachine(42), records=300, snapshots=2)
    first = next(iter(walk_frames((path / "log" / f"{0:020d}.store").read_bytes()[64:])))
    (path / "genesis").write_bytes(_frame(first.header.timestamp, first.payload))
    return path


def _frame(timestamp: int, payload: bytes) -> bytes:
    return encode_frame(
        index=0, epoch=0, timestamp=timestamp, count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=payload
    )


@pytest.fixture(scope="module")
def made(log: Path) -> Path:
    archive(SourceOptions(path=str(log)), str(log.parent / "archive"))
    return log.parent / "archive"


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


def read(place: Path) -> int:
    """How many records the archive shows."""
    with closing(ArchiveLog(str(place))) as origin:
        return sum(len(rows) for each in origin.stretches(*origin.bounds()) for rows in origin.rows(each, Skimmer()))


def use(place: Path, log: Path, what: str) -> bool:
    """Let every job read the archive, and one append to it; whether all of its records could be read."""
    path, whole = str(place), False
    with in_time(what):
        with suppress(PipelineError, LogError):
            whole = read(place) == 300
        for job in (
            lambda: scrub([path]),
            lambda: replay(SourceOptions(path=path)),
            lambda: replay(SourceOptions(path=path), key_parts=2),
            lambda: archive(SourceOptions(path=str(log)), path),
        ):
            try:
                job()
            except (PipelineError, LogError, MachineError):
                continue
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
    return whole


def test_an_archive_that_nobody_changed_is_read(copy: Path, log: Path) -> None:
    assert use(copy, log, "nothing")
    assert all(list(copy.glob(pattern)) for pattern in FILES)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_a_file_that_somebody_changed_ends_every_job_with_its_own_error(
    made: Path, log: Path, tmp_path: Path, change: Change
) -> None:
    chance = random.Random(change.__name__)
    for number, path in enumerate(sorted(path for pattern in FILES for path in list(made.glob(pattern))[:2])):
        place = tmp_path / str(number)
        shutil.copytree(made, place)
        change(place / path.relative_to(made), chance)

        whole = use(place, log, f"{change.__name__} {path.relative_to(made)}")

        assert not (whole and path.suffix == ".parquet"), path
        shutil.rmtree(place)


def lines_of(place: Path) -> list[dict[str, Any]]:
    return list(whole_lines(str(place)))


def checked(text: bytes) -> bytes:
    return b"%b %08x\n" % (text, crc32c(text))


@pytest.mark.parametrize("number", [0, 1])
def test_a_manifest_with_any_field_of_a_line_changed_is_damaged_or_read(copy: Path, log: Path, number: int) -> None:
    lines = lines_of(copy)
    refused = 0
    for what, text in changed_json(lines[number], random.Random(60)):
        raw = [*map(encode_line, lines[:number]), checked(text), *map(encode_line, lines[number + 1 :])]
        (copy / MANIFEST_FILE).write_bytes(b"".join(raw))
        try:
            with in_time(what):
                ArchiveManifest.read(str(copy))
        except PipelineError:
            refused += 1
            continue
        use(copy, log, what)
        assert (copy / MANIFEST_FILE).read_bytes().startswith(b"".join(raw))

    assert refused > 100


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.parquet", "date=2023-11-14/segment=1/../../../x.parquet"])
def test_no_file_outside_is_named(copy: Path, name: str) -> None:
    lines = lines_of(copy)
    lines[1]["file"] = name
    (copy / MANIFEST_FILE).write_bytes(b"".join(map(encode_line, lines)))

    with pytest.raises(ArchiveDamaged, match="does not name the records"):
        ArchiveLog(str(copy))


def restate(place: Path, held: Path) -> None:
    """State a changed file in the manifest as it is now."""
    lines = lines_of(place)
    for line in lines[1:]:
        if line["file"] == str(held.relative_to(place)):
            line["file_bytes"] = held.stat().st_size
            line["footer_crc32c"] = footer_crc32c(str(held))
            line["sha256"] = sha256(held.read_bytes()).hexdigest()
    (place / MANIFEST_FILE).write_bytes(b"".join(map(encode_line, lines)))


def first_file(place: Path) -> Path:
    return place / str(lines_of(place)[1]["file"])


def other_types(table: pa.Table) -> pa.Table:
    return table.set_column(0, "index", table["index"].cast(pa.string()))


def doubled_leads(table: pa.Table) -> pa.Table:
    return table.set_column(table.num_columns - 1, "lead", pa.array([b"x" * 80] * len(table)))


SHAPES: list[Callable[[pa.Table], pa.Table]] = [
    lambda table: table.drop_columns(["lead"]),
    lambda table: table.drop_columns(["index"]),
    lambda table: table.drop_columns(["value"]),
    lambda table: table.slice(0, 0),
    lambda table: table.slice(1),
    lambda table: table.slice(0, len(table) - 1),
    lambda table: table.set_column(6, "value", pa.nulls(len(table), pa.binary())),
    lambda table: table.set_column(0, "index", pa.nulls(len(table), pa.int64())),
    other_types,
    doubled_leads,
]


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_file_of_another_shape_under_right_checksums_is_damaged(copy: Path, log: Path, shape: int) -> None:
    path = first_file(copy)
    pq.write_table(SHAPES[shape](pq.ParquetFile(path).read()), path, **PARQUET)
    restate(copy, path)

    assert not use(copy, log, f"shape {shape}")


def test_a_file_without_statistics_is_damaged(copy: Path, log: Path) -> None:
    path = first_file(copy)
    pq.write_table(pq.ParquetFile(path).read(), path, write_statistics=False)
    restate(copy, path)

    with pytest.raises(ArchiveDamaged, match="the indices of its row group 0 are unknown"):
        read(copy)


def test_a_row_group_that_would_fill_the_memory_is_not_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.pipeline.archive.log.MAX_GROUP_BYTES", 100)

    with pytest.raises(ArchiveDamaged, match=r"its row group 0 has [0-9,]+ bytes"):
        read(copy)


def test_a_footer_may_be_as_long_as_the_limit_and_no_longer(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    length = int.from_bytes(first_file(copy).read_bytes()[-8:-4], "little")
    monkeypatch.setattr("quire.pipeline.archive.manifest.MAX_FOOTER_BYTES", length)
    footer_crc32c(str(first_file(copy)))
    monkeypatch.setattr("quire.pipeline.archive.manifest.MAX_FOOTER_BYTES", length - 1)

    with pytest.raises(ArchiveDamaged, match=r"its footer has [0-9,]+ bytes"):
        read(copy)


def test_a_footer_with_any_byte_changed_under_right_checksums_is_damaged_or_read(copy: Path, log: Path) -> None:
    path, chance = first_file(copy), random.Random(60)
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little")
    for _ in range(FOOTERS):
        place = len(raw) - 8 - chance.randrange(footer)
        path.write_bytes(raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :])
        restate(copy, path)

        use(copy, log, f"byte {place}")


def test_a_genesis_with_any_field_changed_ends_a_replay_with_its_own_error(copy: Path, log: Path) -> None:
    path = copy / "_quire" / "genesis"
    [frame] = walk_frames(path.read_bytes())
    for change in changes_of_map(decode_system(frame.payload), random.Random(60)):
        path.write_bytes(_frame(frame.header.timestamp, change.data))

        with in_time(change.where), suppress(PipelineError, LogError, MachineError):
            replay(SourceOptions(path=str(copy)))


def test_a_snapshot_s_manifest_with_any_field_changed_ends_a_replay_with_its_own_error(copy: Path, log: Path) -> None:
    path = min((copy / "_quire" / "snapshots").glob("*/manifest"))
    body, chance = path.read_bytes()[4:], random.Random(60)
    for change in chance.sample(list(changes_of_map(unpacked(body), chance)), CHANGES_OF_A_SNAPSHOT):
        path.write_bytes(crc32c(change.data).to_bytes(4, "little") + change.data)

        with in_time(change.where), suppress(PipelineError, LogError, MachineError):
            replay(SourceOptions(path=str(copy)))


def test_a_line_of_any_length_is_not_read(copy: Path, log: Path) -> None:
    (copy / MANIFEST_FILE).write_bytes(encode_line(lines_of(copy)[0]) + b"x" * 5_000)

    with pytest.raises(ArchiveDamaged, match="line 2 is longer than 4096 bytes"):
        ArchiveLog(str(copy))
    with pytest.raises(ArchiveDamaged, match="line 2 is longer than 4096 bytes"):
        archive(SourceOptions(path=str(log)), str(copy))


# More than a file's bytes


def with_values(place: Path, table: Callable[[int], pa.Table], **options: Any) -> None:
    """Replace the first file by one with another table of as many rows."""
    path = first_file(place)
    rows = pq.ParquetFile(path).metadata.num_rows
    made = table(rows)
    with pq.ParquetWriter(path, made.schema, store_schema=False, **(PARQUET | options)) as writer:
        writer.write_table(made, row_group_size=rows)
    restate(place, path)


def repeated(rows: int) -> pa.Table:
    """A table of one value of 1 MiB in a dictionary, which each row refers to."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(1 << 20)], pa.binary()))
    leads = pa.array([b"h"] + [b""] * (rows - 1), pa.binary())
    return pa.table({"index": pa.array(range(rows), pa.int64()), "lead": leads, "value": values})


def absent(rows: int) -> pa.Table:
    nulls = pa.nulls(rows, pa.binary())
    return pa.table({"index": pa.array(range(rows), pa.int64()), "lead": nulls, "value": nulls})


def test_a_dictionary_of_long_values_is_damage_and_is_not_read(copy: Path) -> None:
    with_values(copy, repeated, use_dictionary=["value"], dictionary_pagesize_limit=64 << 20)
    assert first_file(copy).stat().st_size < 10_000

    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    with pytest.raises(ArchiveDamaged, match="encoded in another way than an archive's, in row group 0"):
        read(copy)
    assert pool.bytes_allocated() - before < 1 << 20


def test_rows_without_bytes_are_damage(copy: Path) -> None:
    with_values(copy, absent)

    with pytest.raises(ArchiveDamaged, match="a page has an impossible size"):
        read(copy)


def test_a_column_that_is_compressed_otherwise_is_damage(copy: Path) -> None:
    path = first_file(copy)
    options: dict[str, Any] = PARQUET | {"compression": "gzip"}
    pq.write_table(pq.ParquetFile(path).read(), path, **options)
    restate(copy, path)

    with pytest.raises(ArchiveDamaged, match="compressed or encoded in another way"):
        read(copy)


class Column(NamedTuple):
    """A column as a footer describes it."""

    data_page_offset: int
    total_compressed_size: int
    num_values: int
    compression: str = "ZSTD"
    has_dictionary_page: bool = False


def column_of(path: Path, name: str) -> Any:
    file = pq.ParquetFile(path)
    return file.metadata.row_group(0).column(file.schema_arrow.get_field_index(name))


def test_a_footer_that_hides_a_dictionary_is_found_out_by_the_pages(copy: Path) -> None:
    with_values(copy, repeated, use_dictionary=["value"], dictionary_pagesize_limit=64 << 20)
    told = column_of(first_file(copy), "value")
    pages = told.data_page_offset - told.dictionary_page_offset
    for column in (
        Column(told.dictionary_page_offset, told.total_compressed_size, told.num_values),
        Column(told.data_page_offset, told.total_compressed_size - pages, told.num_values),
    ):
        with first_file(copy).open("rb") as file, pytest.raises(ValueError, match="another way than an archive's"):
            pages_of(file, column)


def test_the_pages_are_those_of_the_footer(copy: Path) -> None:
    told = column_of(first_file(copy), "value")
    place, size, count = told.data_page_offset, told.total_compressed_size, told.num_values
    with first_file(copy).open("rb") as file:
        assert pages_of(file, told).rows == count
        assert pages_of(file, told).size <= told.total_uncompressed_size
        for column in (
            Column(place, size, count - 1),
            Column(place, size - 1, count),
            Column(place, size + 1, count),
            Column(place + 1, size - 1, count),
            Column(place, 0, count),
            Column(1 << 40, size, count),
        ):
            with pytest.raises(ValueError, match=r"page|column"):
                pages_of(file, column)


STRUCT_OF_ONE = b"\x15\x02\x00"
HEADS = {
    "a size": b"\x15\x00\x1c" + STRUCT_OF_ONE + b"\x15\x02\x2c\x15\x02\x15\x00\x00\x00",
    "the rows": b"\x15\x00\x15\x02\x15\x02\x2c\x1c" + STRUCT_OF_ONE + b"\x15\x00\x00\x00",
    "a compressed size": b"\x15\x00\x15\x02\x1c" + STRUCT_OF_ONE + b"\x2c\x15\x02\x15\x00\x00\x00",
    "what is of the data": b"\x15\x00\x15\x02\x15\x02\x25\x02\x00",
}
"""Headers of pages, each with a struct in place of a number, or a number in place of the struct."""


@pytest.mark.parametrize("what", HEADS)
def test_a_header_of_a_page_with_another_type_in_it_is_damage(what: str) -> None:
    with pytest.raises(ValueError, match="the header of a page cannot be read"):
        pages_of(BytesIO(HEADS[what] + bytes(100)), cast("Any", Column(0, 100, 1)))


def test_a_row_group_of_more_rows_than_its_file_has_records_is_damage(copy: Path) -> None:
    path = first_file(copy)
    table = pq.ParquetFile(path).read()
    pq.write_table(pa.concat_tables([table, table]), path, **PARQUET)
    restate(copy, path)

    with pytest.raises(ArchiveDamaged, match="its row group 0 has another number of rows"):
        read(copy)


def test_a_frame_of_more_values_than_a_node_writes_is_damage(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.log.payload.MAX_FRAME_VALUES", 10)

    with pytest.raises(ArchiveDamaged, match="holds more than 10 values"):
        read(copy)


# Links


def as_link(path: Path, outside: Path) -> None:
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize("text", ["keep\nhalf a line", "half a line", "", "{}", '{"version":1,"cluster_id":"x'])
def test_a_manifest_that_is_a_link_is_neither_read_nor_written(log: Path, tmp_path: Path, text: str) -> None:
    place, outside = tmp_path / "archive", tmp_path / "outside"
    (place / MANIFEST_FILE).parent.mkdir(parents=True)
    outside.write_text(text)
    (place / MANIFEST_FILE).symlink_to(outside)

    for job in (lambda: archive(SourceOptions(path=str(log)), str(place)), lambda: read(place)):
        with pytest.raises(ArchiveDamaged, match="it is not a regular file"):
            job()

    assert outside.read_text() == text


def test_a_line_is_not_appended_through_a_link(copy: Path, tmp_path: Path) -> None:
    with open_archive(str(copy)) as keeper:
        as_link(copy / MANIFEST_FILE, tmp_path / "outside")
        before = (tmp_path / "outside").read_bytes()
        with pytest.raises(OSError, match="symbolic links"):
            keeper._append(b"a line")  # pyright: ignore[reportPrivateUsage]

    assert (tmp_path / "outside").read_bytes() == before


@pytest.mark.parametrize("text", [b"keep\nhalf a line", b"half a line", b"{}", b'{"version":1}\nhalf'])
def test_what_is_no_manifest_is_not_cut(log: Path, tmp_path: Path, text: bytes) -> None:
    manifest = tmp_path / "archive" / MANIFEST_FILE
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(text)

    with pytest.raises(ArchiveDamaged):
        archive(SourceOptions(path=str(log)), str(tmp_path / "archive"))

    assert manifest.read_bytes() == text


@pytest.mark.parametrize("folder", ["_quire", "_quire/new", "_quire/lock", "_quire/snapshots", "_quire/snapshots/*"])
def test_no_link_leads_an_archiver_outside(copy: Path, log: Path, tmp_path: Path, folder: str) -> None:
    path = min(copy.glob(folder))
    as_link(path, tmp_path / "outside")

    with pytest.raises(ArchiveDamaged, match=r"it is a link, and an archive that is appended to has none"):
        archive(SourceOptions(path=str(log)), str(copy))


@pytest.mark.parametrize("depth", [0, 1])
def test_no_file_is_added_to_a_folder_that_is_a_link(made: Path, log: Path, tmp_path: Path, depth: int) -> None:
    place, outside = tmp_path / "archive", tmp_path / "outside"
    outside.mkdir()
    parents = Path(str(lines_of(made)[1]["file"])).parents
    folder = place / parents[1 - depth]
    folder.parent.mkdir(parents=True)
    (place / "_quire").mkdir()
    folder.symlink_to(outside)

    with pytest.raises(ArchiveDamaged, match="it is a link"):
        archive(SourceOptions(path=str(log)), str(place))

    assert not list(outside.iterdir())


def test_a_file_that_is_a_link_is_damage_and_the_archive_s_own_folder_may_be_one(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(copy)
    assert read(tmp_path / "link") == 300
    as_link(first_file(copy), tmp_path / "outside")
    with pytest.raises(ArchiveDamaged, match="it is not a regular file"):
        read(tmp_path / "link")
    assert not scrub([str(copy)]).is_whole
