"""A full disk: what a cluster's log still takes, what it refuses, and that it opens."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.log import DiskFull, FrameHeader, Kind, Log, LogOptions, ResourcesExhausted, encode_system
from quire.log.change.truncation import room_of
from quire.log.simulated import Disk, Keep
from tests.log.histories import SMALL, all_frames, open_log

RESERVED = encode_system({"type": "epoch_start", "node_id": "n1"})
SIZE = 64 + len(RESERVED)
ROOMY = replace(SMALL, reserve_bytes=10 * SIZE)


def append_reserved(log: Log) -> FrameHeader:
    return log.append_payload(RESERVED, count=1, kind=Kind.SYSTEM, epoch=0, reserved=True)


def append_until_refused(append: Callable[[], object]) -> int:
    """Return how many succeeded."""
    for done in range(1000):
        try:
            append()
        except DiskFull:
            return done
    raise AssertionError("the disk never was full")


@pytest.mark.parametrize("length", [1, 100, 500, 1500])
def test_on_a_full_disk_the_reserve_is_left_for_reserved_frames_wherever_the_segment_ends(length: int) -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    disk.full = True
    append_until_refused(lambda: log.append(["x" * length]))
    assert log.room.left >= ROOMY.reserve
    assert append_until_refused(lambda: append_reserved(log)) >= 10
    end = log.bounds.highest_index
    log.close()
    log = open_log(disk, ROOMY, standalone=False)
    assert log.bounds == (0, end)
    all_frames(log)
    disk.full = False
    log.append(["again"])
    append_reserved(log)
    log.close()
    assert len(all_frames(open_log(disk, ROOMY, standalone=False))) == end + 2


def test_a_follower_s_copies_of_system_frames_take_the_reserve_and_of_others_do_not() -> None:
    source = open_log(Disk(), ROOMY, standalone=False)
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    disk.full = True

    def ship() -> None:
        log.append_frames(source.read_frames(log.tail.index, 1, unflushed=True)[0])

    def append_and_ship() -> None:
        source.append(["x" * 50])
        ship()

    append_until_refused(append_and_ship)
    assert log.room.left >= ROOMY.reserve
    source.truncate(log.tail.index)
    append_reserved(source)
    ship()
    assert log.tail == source.tail


def test_try_room_says_whether_an_append_would_be_taken_and_takes_the_reserve_from_nobody() -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    assert log.room.probe()
    disk.full = True
    append_until_refused(lambda: log.append(["x" * 20]))
    left = log.room.left
    assert not log.room.probe()
    assert log.room.left == left
    disk.full = False
    assert log.room.probe()
    disk.full = True
    log.append(["x" * 20])


def test_try_room_asks_for_room_for_the_largest_frame_that_was_refused_until_there_is_some() -> None:
    disk = Disk()
    options = LogOptions(segment_bytes=8 << 20, max_frame_bytes=4 << 20, reserve_bytes=1024)
    log = open_log(disk, options, standalone=False)
    log.append([bytes(3 << 20)])
    log.append([bytes(2 << 20)])
    disk.full = True
    for size in (4 << 20) - 128, 3 << 20:  # In the first segment there is room for 1 MiB, but not for these.
        with pytest.raises(DiskFull):
            log.append([bytes(size)])
    log.append([b"small"])
    assert not log.room.probe()
    disk.full = False
    assert log.room.probe()
    log.append([bytes(1 << 20)])
    disk.full = True
    assert log.room.probe()  # What was refused once counts no more.


def test_a_frame_for_which_there_was_no_descriptor_says_nothing_of_the_room() -> None:
    disk = Disk()
    options = LogOptions(
        segment_bytes=4 << 20, segment_overflow_bytes=0, max_frame_bytes=(4 << 20) - 64, reserve_bytes=1024
    )
    log = open_log(disk, options, standalone=False)
    log.append([bytes(2 << 20)])
    disk.exhausted = True
    with pytest.raises(ResourcesExhausted):
        log.append([bytes(3 << 20)])  # It needs another segment.
    disk.exhausted, disk.full = False, True
    assert log.room.probe()  # For a frame of 1 MiB.


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_whose_disk_is_full_opens_and_goes_on_when_there_is_room(clean: bool) -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    for k in range(80):
        log.append([str(k) * 30])
    log.flush()
    if clean:
        log.close()
    disk.full = True
    log = open_log(disk, ROOMY, standalone=False)
    assert log.bounds == (0, 80)
    # After an unclean stop the tail was cut, and its room with it: others may have taken it since.
    assert append_until_refused(lambda: append_reserved(log)) >= (10 if clean else 0)
    assert not log.room.probe()
    end = len(all_frames(log))
    disk.full = False
    assert log.room.probe()
    log.append(["again"])
    log.close()
    assert len(all_frames(open_log(disk, ROOMY, standalone=False))) == end + 1


def test_a_truncation_on_a_full_disk_keeps_the_reserve() -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    for k in range(10):
        log.append([str(k) * 30])
    disk.most_bytes = ROOMY.segment_bytes
    log.truncate(5)
    assert log.room.left >= ROOMY.reserve
    append_reserved(log)


def test_a_new_log_begins_on_a_disk_that_has_less_room_than_a_segment() -> None:
    disk = Disk()
    disk.most_bytes = 8192
    options = LogOptions(segment_bytes=64 << 20, reserve_bytes=1024)
    log = open_log(disk, options, standalone=False)
    assert log.room.left >= 1024
    append_reserved(log)
    log.close()


def test_a_reset_on_a_disk_that_has_less_room_than_a_segment_begins_the_log_anew() -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    log.append(["x"])
    disk.most_bytes = 1500
    origin = log.tail._replace(index=100, crc32c=7)
    assert log.reset(origin)
    assert log.room.left >= ROOMY.reserve
    assert append_reserved(log).index == 100


def test_a_rotation_on_a_nearly_full_disk_takes_what_the_next_frame_needs() -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    log.append(["x" * 2100])
    disk.most_bytes = 1500
    log.append(["y"])
    assert len(log.segments.bases) == 2
    assert log.room.left >= ROOMY.reserve


def test_a_standalone_log_keeps_no_reserve() -> None:
    disk = Disk()
    log = open_log(disk, replace(SMALL, segment_overflow_bytes=0))
    disk.full = True
    append_until_refused(lambda: log.append(["x" * 30]))
    assert log.room.left < SMALL.reserve


@pytest.mark.parametrize("reserve", [0, 1000, 64 << 10])
def test_a_write_segment_is_never_allocated_beyond_4_gib_whatever_of_the_reserve_is_taken(reserve: int) -> None:
    edge = (1 << 32) - 1
    options = LogOptions(segment_bytes=edge - reserve, segment_overflow_bytes=0, reserve_bytes=reserve)
    for end in (64, edge - 2 * reserve, edge - reserve, edge - reserve // 2, edge):
        needed, wished = room_of(end, options)
        assert end <= needed <= wished == edge
        assert needed == min(end + reserve, edge)
    small = LogOptions(segment_bytes=1 << 20, reserve_bytes=reserve)
    assert room_of(1 << 21, small) == ((1 << 21) + reserve, (1 << 21) + reserve)


def test_a_rotation_whose_mark_finds_no_room_keeps_the_reserve() -> None:
    disk = Disk()
    log = open_log(disk, ROOMY, standalone=False)
    disk.failing = lambda operation, name: errno.ENOSPC if (operation, name) == ("write", "mark") else 0

    def append_and_flush() -> None:
        log.append(["x" * 50])
        log.flush()

    append_until_refused(append_and_flush)
    assert len(log.segments.bases) == 1
    left = log.room.left
    assert left >= ROOMY.reserve
    disk.full = True
    assert append_until_refused(lambda: append_reserved(log)) == left // SIZE
    log.flush()
    disk.failing, disk.full = None, False
    disk.lose_power(Keep.NOTHING)
    assert len(all_frames(open_log(disk, ROOMY, standalone=False))) == log.bounds.highest_index
