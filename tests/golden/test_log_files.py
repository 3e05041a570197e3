"""The log's files, byte for byte: what is on disk today must stay readable, and must be written in the same way."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from quire.log import (
    Kind,
    Log,
    MemoryDirectory,
    Record,
    Run,
    UnknownVersion,
    decode_runs,
    decode_system,
    frame_values,
    walk_frames,
)
from quire.log.segment.index import StoredIndex
from quire.log.segment.store import decode_store_header
from tests.golden.make import CLUSTER_ID, FOLDER, INDEX, MARK, OPTIONS, STORE, golden_files


def committed(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def directory_with(store: bytes, mark: bytes, index: bytes | None = None) -> MemoryDirectory:
    directory = MemoryDirectory()
    directory.create(MARK).write_at(0, mark)
    directory.child("log").create(STORE).write_at(0, store)
    if index is not None:
        directory.child("log").create(INDEX).write_at(0, index)
    return directory


def open_golden(directory: MemoryDirectory) -> Log:
    return Log.open(directory, OPTIONS, cluster_id=CLUSTER_ID, clock=lambda: 0, standalone=False)


@pytest.mark.parametrize("name", [STORE, INDEX, MARK])
def test_the_log_writes_the_golden_bytes(name: str) -> None:
    assert golden_files()[name] == committed(name)


def test_the_golden_log_opens_and_holds_frames_of_every_kind() -> None:
    log = open_golden(directory_with(committed(STORE), committed(MARK)))
    assert log.bounds == (0, 24)
    assert log.epochs == [(0, 0), (1, 1), (2, 14), (4, 18)]
    assert log.members_index == 0
    assert log.mark_commit_index == 9
    frames = list(log.reader.stream(0, 24))
    assert {frame.header.kind for frame in frames} == set(Kind)
    assert decode_system(frames[0].payload)["initial"] == 42
    assert frame_values(frames[2])[:2] == [["add", 3], ["div", "5.5"]]
    assert log.read(12)[4:6] == ({"trace": "a1"}, {"k": [1, {"deep": []}]})
    assert (log.read(3).session, log.read(3).sequence) == (7, 2)
    runs, values = decode_runs(frames[4].payload, 3)
    assert runs == [Run(7, 11, 2), Run(0, 0, 1)]
    assert values[:2] == [["mul", 2], ["sub", 1]]
    assert (log.read(15).session, log.read(15).sequence, log.read(16).session) == (7, 12, 0)
    value = log.read(17).value
    assert isinstance(value, bytes)
    assert len(value) == 300
    assert Record(log.read(17).value, log.read(17).headers).headers == {"name": "b"}


def test_the_store_header_has_its_fields_where_the_design_says() -> None:
    raw = committed(STORE)[:64]
    assert struct.unpack_from("<I", raw)[0] == crc32c(raw[4:])
    assert raw[4:8] == b"QSTO"
    assert struct.unpack_from("<QQQI", raw, 8) == (0, 0, 0, 0)
    assert raw[36:40] == b"\x01\0\0\0"
    assert raw[40:48] == b"\xff" * 8
    assert raw[48:] == CLUSTER_ID


def test_a_frame_header_has_its_fields_where_the_design_says() -> None:
    raw = committed(STORE)[64:]
    frames = list(walk_frames(raw))
    start = sum(frame.header.size for frame in frames[:2])
    head, payload = raw[start : start + 64], frames[2].payload
    assert struct.unpack_from("<I", head)[0] == crc32c(head[4:])
    assert struct.unpack_from("<IQQQI", head, 4) == (len(payload), 2, 1, 1_767_225_600_000_002, 10)
    assert struct.unpack_from("<I", head, 36)[0] == frames[1].header.crc32c
    assert struct.unpack_from("<QQ", head, 40) == (7, 1)
    assert head[56:60] == bytes([Kind.RECORDS, 1, 0, 0])
    assert struct.unpack_from("<I", head, 60)[0] == crc32c(payload)


def test_the_mark_has_its_fields_where_the_design_says() -> None:
    store, mark = committed(STORE), committed(MARK)
    slots = [mark[position : position + 64] for position in (0, 4096)]
    slot = max(slots, key=lambda raw: struct.unpack_from("<Q", raw, 8)[0])
    assert struct.unpack_from("<I", slot)[0] == crc32c(slot[4:])
    last = list(walk_frames(store[64:]))[-1].header
    assert struct.unpack_from("<IQQQQQQI", slot, 4) == (1, 2, 24, 0, len(store), 4, 9, last.crc32c)
    assert slot[60:] == b"\x01\0\0\0"


def test_the_index_names_crc_relative_index_length_and_position() -> None:
    index, store = committed(INDEX), committed(STORE)
    assert index[:16] == bytes(8) + b"QIDX\x01\0\0\0"
    for place in range(16, len(index), 16):
        crc, relative, length, position = struct.unpack_from("<IIII", index, place)
        assert struct.unpack_from("<IIQ", store, position) == (crc, length, relative)


def resealed(raw: bytes, start: int, version_at: int, version: bytes, length: int = 64) -> bytes:
    """Return `raw` with another version in the block at `start`, its crc right."""
    changed = bytearray(raw)
    changed[start + version_at : start + version_at + len(version)] = version
    changed[start : start + 4] = struct.pack("<I", crc32c(bytes(changed[start + 4 : start + length])))
    return bytes(changed)


def test_an_unknown_version_of_the_store_is_refused_by_name() -> None:
    store = resealed(committed(STORE), 0, 36, b"\x02")
    with pytest.raises(UnknownVersion) as refusal:
        open_golden(directory_with(store, committed(MARK)))
    assert (refusal.value.file, refusal.value.version) == (STORE, 2)
    with pytest.raises(UnknownVersion):
        decode_store_header(store, STORE)


def test_an_unknown_version_of_a_frame_is_refused_by_name_not_cut_off() -> None:
    directory = MemoryDirectory()
    log = open_golden(directory)
    log.append_frames(committed(STORE)[64:])
    log.begin_flush()
    directory.unlock()
    store = directory.child("log").open(STORE)
    store.write_at(64, resealed(committed(STORE)[64:], 0, 57, b"\x02"))
    with pytest.raises(UnknownVersion) as refusal:
        open_golden(directory)
    assert (refusal.value.file, refusal.value.version) == (f"a frame in {STORE}", 2)
    with pytest.raises(UnknownVersion):
        list(walk_frames(store.read_at(64, 1 << 20)))


@pytest.mark.parametrize("slot", [0, 4096])
def test_an_unknown_version_of_the_mark_is_refused_by_name(slot: int) -> None:
    mark = resealed(committed(MARK), slot, 4, struct.pack("<I", 2))
    with pytest.raises(UnknownVersion) as refusal:
        open_golden(directory_with(committed(STORE), mark))
    assert (refusal.value.file, refusal.value.version) == (MARK, 2)


def test_an_index_of_an_unknown_version_is_not_read_as_one_of_this_version() -> None:
    storage = MemoryDirectory().create(INDEX)
    storage.write_at(0, committed(INDEX)[:12] + b"\x02" + committed(INDEX)[13:])
    assert (StoredIndex(storage).version(0), StoredIndex(storage).marker_fits(0)) == (2, False)
