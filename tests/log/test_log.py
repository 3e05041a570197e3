"""Appending, reading, truncating, and their errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.log import (
    LARGEST_STORE_BYTES,
    ChainBroken,
    DiskFull,
    FileDirectory,
    FrameCorrupt,
    FrameInvalid,
    GroupFlusher,
    IndexOutOfBounds,
    Kind,
    Log,
    LogClosed,
    LogLocked,
    LogOptions,
    LogReadOnly,
    MemoryDirectory,
    NotFrameBoundary,
    NotYetFlushed,
    PayloadInvalid,
    Record,
    RecordTooLarge,
    UnexpectedIndex,
    encode_blob,
    encode_frame,
    encode_records,
    encode_system,
    overflow_of,
    walk_frames,
)
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, SMALL, Clock, all_frames, open_log

STORE = "log/00000000000000000000.store"


def memory_log(options: LogOptions = SMALL, *, initial_index: int = 0, clock: Clock | None = None) -> Log:
    return Log.open(
        MemoryDirectory(),
        options,
        cluster_id=CLUSTER_ID,
        initial_index=initial_index,
        clock=clock or Clock(),
        standalone=True,
    )


def payload_of(size: int) -> bytes:
    """Return a records payload with one value, of exactly `size` bytes (above 260)."""
    payload = encode_records([bytes(size - 4)])
    assert len(payload) == size
    return payload


def append_payload(log: Log, size: int) -> None:
    log.append_payload(payload_of(size), count=1, kind=Kind.RECORDS, epoch=0)


def test_append_returns_the_index_of_the_first_record_and_read_finds_each() -> None:
    log = memory_log()
    assert log.append(["a", "b", "c"]) == 0
    assert log.append([Record({"k": 1}, {"h": "x"})]) == 3
    log.flush()
    assert log.bounds == (0, 4)
    assert [log.read(index).value for index in range(4)] == ["a", "b", "c", {"k": 1}]
    assert [log.read(index).index for index in range(4)] == [0, 1, 2, 3]
    assert log.read(3).headers == {"h": "x"}
    assert log.read(0).headers is None


def test_initial_index_is_where_a_new_log_begins() -> None:
    log = memory_log(initial_index=100)
    assert log.append(["a"]) == 100
    log.flush()
    assert log.bounds == (100, 101)
    with pytest.raises(IndexOutOfBounds):
        log.read(99)


def test_an_unflushed_record_is_not_readable_but_the_replication_stream_may_ship_it() -> None:
    log = memory_log()
    log.append(["a"])
    log.flush()
    log.append(["b"])
    with pytest.raises(NotYetFlushed) as error:
        log.read(1)
    assert (error.value.index, error.value.durable) == (1, 1)
    with pytest.raises(IndexOutOfBounds) as outside:
        log.read(2)
    assert (outside.value.index, outside.value.lowest, outside.value.highest) == (2, 0, 2)
    with pytest.raises(NotYetFlushed):
        list(log.reader.stream(0, 2))
    assert log.read_frames(0, 1 << 20)[1] == 1
    raw, following = log.read_frames(0, 1 << 20, unflushed=True)
    assert following == 2
    assert len(list(walk_frames(raw))) == 2


def test_expected_index_refuses_another_place_and_appends_nothing() -> None:
    log = memory_log()
    assert log.append(["a"], expected_index=0) == 0
    with pytest.raises(UnexpectedIndex) as error:
        log.append(["b"], expected_index=0)
    assert (error.value.expected, error.value.highest) == (0, 1)
    assert log.bounds == (0, 1)


def test_timestamps_never_decrease_when_the_clock_does() -> None:
    clock = Clock(1000)
    log = memory_log(clock=clock)
    log.append(["a"])
    clock.now = 5
    log.append(["b"])
    assert log.tail.timestamp == 1001
    assert [frame.header.timestamp for frame in all_frames(log)] == [1001, 1001]


def test_a_frame_of_exactly_the_threshold_passes_and_one_byte_more_goes_to_a_fresh_segment() -> None:
    options = LogOptions(segment_bytes=4096, segment_overflow_bytes=1000)
    for extra, segments in ((0, 1), (1, 2)):
        log = memory_log(options)
        append_payload(log, 1000)
        threshold = options.segment_bytes + 1000 - (64 + 64 + 1000)
        append_payload(log, threshold - 64 + extra)
        assert len(log.segments.bases) == segments
        log.flush()
        value = log.read(1).value
        assert isinstance(value, bytes)
        assert len(value) == threshold - 64 + extra - 4


def test_a_segment_is_full_at_segment_bytes_and_the_next_append_rotates() -> None:
    log = memory_log(LogOptions(segment_bytes=4096))
    append_payload(log, 4096 - 64 - 64 - 1)
    append_payload(log, 300)
    assert len(log.segments.bases) == 1
    append_payload(log, 300)
    assert len(log.segments.bases) == 2


def test_a_segment_is_full_at_index_bytes() -> None:
    log = memory_log(LogOptions(index_bytes=16 + 3 * 16, index_interval_bytes=0))
    for _ in range(7):
        log.append(["a"])
    assert len(log.segments.bases) == 3


def test_a_frame_that_fits_in_no_segment_is_refused_whatever_the_fill() -> None:
    options = LogOptions(segment_bytes=4096, segment_overflow_bytes=1000)
    log = memory_log(options)
    for _ in range(2):
        with pytest.raises(RecordTooLarge) as error:
            append_payload(log, 4096 + 1000 - 64 - 64 + 1)
        assert (error.value.size, error.value.limit) == (5033, 5032)
        append_payload(log, 300)
    append_payload(log, 4096 + 1000 - 64 - 64)
    assert log.bounds == (0, 3)


def test_max_frame_bytes_is_the_limit_where_it_is_less() -> None:
    log = memory_log(LogOptions(max_frame_bytes=1064))
    append_payload(log, 1000)
    with pytest.raises(RecordTooLarge) as error:
        append_payload(log, 1001)
    assert (error.value.size, error.value.limit) == (1065, 1064)


@pytest.mark.parametrize("segment_bytes", [1 << 30, 3 << 30, LARGEST_STORE_BYTES - (8 << 20)])
def test_a_segment_of_gigabytes_is_not_full_before_segment_bytes(segment_bytes: int) -> None:
    options = LogOptions(segment_bytes=segment_bytes, segment_overflow_bytes=overflow_of(segment_bytes, 8 << 20))
    assert options.frame_limit == 8 << 20
    assert options.store_limit + options.reserve < 1 << 32
    # The most entries there can be.
    assert options.index_limit > (segment_bytes // options.index_interval_bytes) * 16
    assert LogOptions(segment_bytes=3 << 30).store_limit < 1 << 32
    assert LogOptions().index_limit == 1 << 20


def test_a_full_disk_at_rotation_appends_nothing_and_the_log_works_again_when_there_is_room() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["x" * 2100])
    disk.full = True
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.append(["y"])
        assert log.bounds == (0, 1)
    log.flush()
    assert log.read(0).value == "x" * 2100
    disk.full = False
    log.append(["y"])
    log.close()
    assert [record.index for record in map(open_log(disk).read, range(2))] == [0, 1]


def test_a_disk_that_fills_up_right_after_the_log_was_made_fails_no_flush() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    # From here on, no write gets room that was not allocated before.
    disk.failing = lambda operation, name: operation == "write" and name == "mark" and len(disk.content("mark")) < 4160
    log.flush()
    assert log.durable_index == 1
    sync = log.mark_sync.begin()
    assert sync is not None
    sync.run()
    log.mark_sync.end(sync)
    log.close()
    assert open_log(disk).bounds == (0, 1)


def test_a_full_disk_in_the_overflow_appends_nothing() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["x" * 1500])
    disk.full = True
    with pytest.raises(DiskFull):
        log.append(["y" * 900])
    log.append(["z"])
    log.flush()
    assert log.read(1).value == "z"


def test_a_full_disk_in_the_middle_of_raw_frames_appends_none_of_them() -> None:
    source = memory_log()
    for k in range(30):
        source.append([str(k) * 100])
    source.flush()
    index, raw = 0, b""
    first = len(source.read_frames(0, 1)[0])
    while index < 30:
        piece, index = source.read_frames(index, 1 << 20)
        raw += piece
    disk = Disk()
    log = open_log(disk)
    log.append_frames(raw[:first])
    disk.full = True
    with pytest.raises(DiskFull):
        log.append_frames(raw[first:])
    assert log.bounds == (0, 1)
    disk.full = False
    assert log.append_frames(raw[first:]) == 30
    assert all_frames(log) == all_frames(source)


def test_raw_frames_are_taken_as_they_are_over_segments() -> None:
    source, target = memory_log(), memory_log(LogOptions(segment_bytes=1000, index_interval_bytes=0))
    for k in range(50):
        source.append([str(k)] * (k % 5 + 1), epoch=k // 10)
    source.append_payload(encode_system({"type": "members", "members": []}), count=1, kind=Kind.SYSTEM, epoch=9)
    source.flush()
    index = 0
    while index < source.bounds.highest_index:
        raw, index = source.read_frames(index, 700)
        assert target.append_frames(raw) == index
    target.flush()
    assert all_frames(target) == all_frames(source)
    assert target.epochs == source.epochs
    assert target.members_index == source.members_index == index - 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"index": 2}, "index"),
        ({"prev_crc32c": 1}, "prev_crc32c"),
        ({"epoch": 2}, "epoch"),
        ({"timestamp": 1}, "timestamp"),
    ],
)
def test_raw_frames_that_do_not_follow_are_refused_whole(changes: dict[str, int], field: str) -> None:
    log = memory_log()
    log.append(["a"], epoch=3)
    tail = log.tail
    fields = {"index": 1, "epoch": 3, "timestamp": tail.timestamp, "prev_crc32c": tail.crc32c}
    good = encode_frame(**fields, count=1, kind=Kind.RECORDS, payload=encode_records(["b"]))
    crc = next(walk_frames(good)).header.crc32c
    fields |= {"index": 2, "prev_crc32c": crc}
    if "index" in changes:
        changes = {"index": 3}
    bad = encode_frame(**(fields | changes), count=1, kind=Kind.RECORDS, payload=encode_records(["c"]))
    with pytest.raises(ChainBroken) as error:
        log.append_frames(good + bad)
    assert error.value.field == field
    assert log.bounds == (0, 1)
    assert log.append_frames(good) == 2


def test_raw_bytes_that_are_not_frames_are_refused_whole() -> None:
    log = memory_log()
    good = encode_frame(
        index=0, epoch=0, timestamp=1, prev_crc32c=0, count=1, kind=Kind.RECORDS, payload=encode_records(["b" * 20])
    )
    for position in range(len(good)):
        spoiled = bytearray(good)
        spoiled[position] ^= 4
        with pytest.raises(FrameInvalid):
            log.append_frames(spoiled)
        with pytest.raises(FrameInvalid):
            log.append_frames(good[: position or 1])
    assert log.bounds == (0, 0)


def test_a_system_frame_without_a_system_record_is_refused() -> None:
    log = memory_log()
    with pytest.raises(PayloadInvalid):
        log.append_payload(b"\xc1", count=1, kind=Kind.SYSTEM, epoch=0)
    raw = encode_frame(index=0, epoch=0, timestamp=1, prev_crc32c=0, count=1, kind=Kind.SYSTEM, payload=b"\xc1")
    with pytest.raises(PayloadInvalid):
        log.append_frames(raw)
    assert log.bounds == (0, 0)


def test_range_reads_give_whole_frames_within_max_bytes_and_to_index_but_at_least_one() -> None:
    log = memory_log(LogOptions())
    sizes = [log.append_payload(encode_records([k] * 3), count=3, kind=Kind.RECORDS, epoch=0).size for k in range(5)]
    log.flush()
    raw, following = log.read_frames(0, 1)
    assert (len(raw), following) == (sizes[0], 3)
    raw, following = log.read_frames(3, sizes[1] + sizes[2] + 1)
    assert (len(raw), following) == (sizes[1] + sizes[2], 9)
    assert log.read_frames(0, 1 << 20, to_index=8) == (log.read_frames(0, sum(sizes[:2]))[0], 6)
    assert log.read_frames(15, 100) == (b"", 15)
    with pytest.raises(NotFrameBoundary) as error:
        log.read_frames(4, 100)
    assert (error.value.index, error.value.frame_index, error.value.next_index) == (4, 3, 6)
    with pytest.raises(IndexOutOfBounds):
        log.read_frames(16, 100)


def test_a_frame_larger_than_any_chunk_is_read_and_verified_whole() -> None:
    log = memory_log(LogOptions())
    value = bytes(3 << 20)
    log.append_payload(encode_blob(value), count=1, kind=Kind.BLOB, epoch=0)
    log.append(["after"])
    log.flush()
    assert log.read(0).value == value
    assert next(log.reader.stream(0, 2)).header.length == len(value) + 4
    raw, following = log.read_frames(0, 10)
    assert (len(raw), following) == (64 + 4 + len(value), 1)


def test_boundaries_and_bytes_between_them() -> None:
    log = memory_log()
    for k in range(40):
        log.append([str(k) * 20] * 3)
    log.flush()
    frames = all_frames(log)
    for frame in frames:
        for index in range(frame.header.index, frame.header.next_index):
            assert log.lookup.boundary_at_or_below(index) == frame.header.index
    assert log.lookup.boundary_at_or_below(1000) == 120
    sizes = [frame.header.size for frame in frames]
    for first in range(0, 41, 5):
        for last in range(first, 41, 7):
            assert log.lookup.bytes_between(first * 3, last * 3) == sum(sizes[first:last])
    assert log.lookup.bytes_between(0, 120) == log.size


def test_epoch_at_finds_the_epoch_of_every_index() -> None:
    disk = Disk()
    log = open_log(disk)
    for k in range(60):
        log.append([str(k) * 30], epoch=k // 7)
    log.close()
    for opened in (log, open_log(disk)):
        if opened is not log:
            assert [opened.reader.header(k).epoch for k in range(60)] == [k // 7 for k in range(60)]
            assert opened.epochs == [(epoch, epoch * 7) for epoch in range(9)]
    with pytest.raises(LogClosed):
        log.reader.header(0)


def test_truncate_at_every_boundary_then_append_reads_back() -> None:
    for kept in range(31):
        log = memory_log()
        for k in range(30):
            log.append([f"{k}:{place}" * 10 for place in range(2)], epoch=k // 4)
        if kept % 2:
            log.flush()
        before = all_frames(log)
        log.truncate(kept * 2)
        assert log.bounds == (0, kept * 2)
        assert log.durable_index == kept * 2 or kept == 30
        assert all_frames(log) == before[:kept]
        log.append(["new"], epoch=20)
        log.flush()
        assert log.read(kept * 2).value == "new"
        if kept:
            assert log.read(kept * 2 - 1).value == f"{kept - 1}:1" * 10


def test_truncate_beyond_the_end_and_below_the_log_are_refused_and_change_nothing() -> None:
    log = memory_log(initial_index=5)
    log.append(["a", "b", "c"])
    log.flush()
    with pytest.raises(IndexOutOfBounds):
        log.truncate(9)
    with pytest.raises(IndexOutOfBounds):
        log.truncate(4)
    log.truncate(8)
    assert log.read(7).value == "c"
    log.truncate(5)
    assert log.bounds == (5, 5)
    assert log.tail == log.origin


def test_truncation_undoes_members_and_epochs() -> None:
    log = memory_log()
    log.append_payload(encode_system({"type": "genesis"}), count=1, kind=Kind.SYSTEM, epoch=0)
    for k in range(40):
        log.append(["x" * 100], epoch=k // 10 + 1)
    log.append_payload(encode_system({"type": "members"}), count=1, kind=Kind.SYSTEM, epoch=5)
    log.append_payload(encode_system({"type": "cursor"}), count=1, kind=Kind.SYSTEM, epoch=5)
    assert log.members_index == 41
    log.truncate(42)
    assert log.members_index == 41
    log.truncate(35)
    assert log.members_index == 0
    assert log.epochs == [(0, 0), (1, 1), (2, 11), (3, 21), (4, 31)]
    log.truncate(11)
    assert log.epochs == [(0, 0), (1, 1)]
    log.truncate(0)
    assert [log.members_index, *log.epochs] == [None]


def test_a_flush_begun_before_a_truncation_proves_nothing_about_what_is_written_after_it() -> None:
    log = memory_log()
    log.append(["a"])
    log.append(["b"])
    flush = log.begin_flush()
    assert flush is not None
    log.truncate(1)
    log.append(["c"])
    flush.run()
    log.end_flush(flush)
    assert log.durable_index == 1
    log.flush()
    assert log.read(1).value == "c"


def test_a_flush_makes_durable_only_what_was_written_before_it_began() -> None:
    log = memory_log()
    log.append(["a"])
    flush = log.begin_flush()
    assert flush is not None
    log.append(["b"])
    assert log.begin_flush() is None
    flush.run()
    log.end_flush(flush)
    assert log.durable_index == 1
    log.flush()
    assert log.durable_index == 2
    assert log.begin_flush() is None


def test_a_failed_flush_is_final_and_durable_records_stay_readable() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    log.flush()
    log.append(["b"])
    disk.failing = lambda operation, _name: operation == "sync"
    with pytest.raises(LogReadOnly, match="injected"):
        log.flush()
    disk.failing = None
    for attempt in (lambda: log.append(["c"]), log.begin_flush, lambda: log.truncate(0), log.mark_sync.begin):
        with pytest.raises(LogReadOnly):
            attempt()
    assert log.durable_index == 1
    assert log.read(0).value == "a"
    with pytest.raises(NotYetFlushed):
        log.read(1)


@pytest.mark.parametrize("operation", ["write", "sync", "truncate", "rename", "sync folder", "create"])
def test_an_error_of_the_device_in_a_rotation_is_final(operation: str) -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["x" * 2100])
    disk.failing = lambda found, name: found == operation
    with pytest.raises(LogReadOnly):
        log.append(["y"])
    disk.failing = None
    with pytest.raises(LogReadOnly):
        log.append(["y"])
    log.close()
    assert open_log(disk).bounds.highest_index <= 1


def test_reads_of_rotten_bytes_name_file_and_position_and_never_return_them() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions(index_interval_bytes=0))
    sizes = [
        log.append_payload(encode_records([str(k) * 30]), count=1, kind=Kind.RECORDS, epoch=0).size for k in range(5)
    ]
    log.close()
    log = open_log(disk, LogOptions(index_interval_bytes=0))  # Nothing that was just written is in memory.
    position = 64 + sum(sizes[:2])
    for place in (position + 70, position + 9, position + 33, position + 5, position):
        disk.flip_bit(STORE, place)
        for attempt in (
            lambda: log.read(2),
            lambda: list(log.reader.stream(0, 5)),
            lambda: log.read_frames(2, 1 << 20),
        ):
            with pytest.raises(FrameCorrupt) as error:
                attempt()
            assert error.value.file == STORE.removeprefix("log/")
            assert error.value.position == position
        assert log.read_frames(0, 1 << 20)[1] == 2
        assert log.read(1).value == "1" * 30
        assert log.read(4).value == "4" * 30
        disk.flip_bit(STORE, place)
    assert log.read(2).value == "2" * 30


def test_a_closed_log_refuses_everything() -> None:
    log = memory_log()
    log.append(["a"])
    log.close()
    log.close()
    for attempt in (lambda: log.append(["b"]), lambda: log.read(0), log.begin_flush, lambda: log.truncate(0)):
        with pytest.raises(LogClosed):
            attempt()


def test_two_processes_cannot_open_one_directory(tmp_path: Path) -> None:
    def opened() -> Log:
        return Log.open(FileDirectory(tmp_path / "n1"), SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)

    log = opened()
    with pytest.raises(LogLocked) as error:
        opened()
    assert error.value.directory == str(tmp_path / "n1")
    log.close()
    opened().close()


def test_a_caller_that_holds_the_lock_keeps_it(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    assert directory.lock()
    Log.open(directory, SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True).close()
    with pytest.raises(LogLocked):
        FileDirectory(tmp_path).lock()
    directory.unlock()
    assert FileDirectory(tmp_path).lock()


def test_files_hold_a_log_over_restarts_and_remove_leaves_nothing(tmp_path: Path) -> None:
    def opened() -> Log:
        return Log.open(FileDirectory(tmp_path), SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)

    log = opened()
    for k in range(100):
        log.append([str(k) * 40])
    log.truncate(90)
    log.close()
    log = opened()
    assert [log.read(k).value for k in range(90)] == [str(k) * 40 for k in range(90)]
    assert sum(1 for _ in log.reader.stream(0, 90)) == 90
    log.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "log"]
    assert list((tmp_path / "log").iterdir()) == []


async def test_one_group_flush_answers_all_that_waited() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions())
    flusher = GroupFlusher(log)
    before = disk.operations
    waiters = [asyncio.create_task(flusher.flushed(log.append([k]) + 1)) for k in range(100)]
    await asyncio.gather(*waiters)
    assert log.durable_index == 100
    syncs = [step for step in disk.journal[before:] if step[0] == "sync"]
    assert 1 <= len(syncs) <= 3
    await flusher.sync_mark()
    assert disk.journal[-1] == ("sync", "mark")
    await flusher.close()


async def test_every_waiting_caller_gets_the_error_of_a_failed_group_flush() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions())
    flusher = GroupFlusher(log)
    disk.failing = lambda operation, _name: operation == "sync"
    results = await asyncio.gather(*(flusher.flushed(log.append([k]) + 1) for k in range(9)), return_exceptions=True)
    assert all(isinstance(result, LogReadOnly) for result in results)
    with pytest.raises(LogReadOnly):
        await flusher.flushed(1)
    await flusher.close()
