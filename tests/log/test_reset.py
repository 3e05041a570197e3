"""Emptying a log to continue after a snapshot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.log import (
    DiskFull,
    IndexExpired,
    Kind,
    Log,
    LogOptions,
    Tail,
    encode_frame,
    encode_records,
    remove_log,
    verify,
)
from quire.log.change.rewrite import set_aside
from quire.log.simulated import Disk, Keep, PowerLoss
from tests.log.explorer import Steps, explore
from tests.log.histories import SMALL, History, all_frames, open_log

BEHIND = Tail(100, 7, 5_000_000, 0xABCDEF01)


def log_of(disk: Disk, frames: int = 40) -> Log:
    log = open_log(disk)
    for k in range(frames):
        log.append([str(k) * 60, "x"], epoch=k // 10)
    log.flush()
    return log


def test_a_log_without_the_snapshot_s_last_frame_restarts_after_it() -> None:
    disk = Disk()
    log = log_of(disk)
    assert log.reset(BEHIND, members_index=3)
    assert (log.bounds, log.size, list(log.epochs), log.members_index) == ((100, 100), 0, [], 3)
    assert (log.tail, log.origin, log.durable_tail) == (BEHIND, BEHIND, BEHIND)
    with pytest.raises(IndexExpired):
        log.read(99)
    payload = encode_records(["first"])
    raw = encode_frame(
        index=100, epoch=7, timestamp=5_000_001, count=1, prev_crc32c=BEHIND.crc32c, kind=Kind.RECORDS, payload=payload
    )
    assert log.append_frames(raw) == 101
    log.flush()
    disk.lose_power(Keep.NOTHING)
    log = open_log(disk)
    assert (log.bounds, log.origin, log.members_index) == ((100, 101), BEHIND, 3)
    assert log.read(100).value == "first"
    assert list(log.epochs) == [(7, 100)]


@pytest.mark.parametrize("place", [0, 1, 17, 39, 40])
def test_a_log_that_has_the_snapshot_s_last_frame_keeps_everything(place: int) -> None:
    disk = Disk()
    log = log_of(disk)
    frames = all_frames(log)
    last = frames[place - 1].header if place else None
    origin = Tail(last.next_index, last.epoch, last.timestamp, last.crc32c) if last else Tail(0, 0, 0, 0)
    before = len(disk.journal)
    assert not log.reset(origin)
    assert all_frames(log) == frames
    assert len(disk.journal) == before


def test_a_log_that_begins_after_the_snapshot_s_last_frame_keeps_everything() -> None:
    log = log_of(Disk())
    log.expiry.remove(max_bytes=0)
    frames = all_frames(log)
    assert not log.reset(log.origin)
    assert all_frames(log) == frames


@pytest.mark.parametrize(
    "origin",
    [
        Tail(40, 1, 5, 77),  # a frame boundary, another crc
        Tail(41, 1, 5, 77),  # inside a frame
        Tail(80, 1, 5, 77),  # the end
        Tail(81, 1, 5, 77),  # above
        Tail(0, 0, 0, 77),  # the beginning
    ],
)
def test_a_log_that_differs_from_the_snapshot_is_removed(origin: Tail) -> None:
    disk = Disk()
    log = log_of(disk)
    assert log.reset(origin)
    assert log.bounds == (origin.index, origin.index)
    assert disk.names("log") == [f"{origin.index:020d}.store"]
    assert open_log(disk).tail == origin


def test_a_reset_goes_back_below_what_has_expired() -> None:
    log = log_of(Disk())
    log.expiry.remove(max_bytes=0)
    assert log.reset(Tail(3, 1, 5, 77))
    assert log.append(["on"], epoch=1) == 3


def some_unflushed(history: History) -> None:
    history.append(25)
    history.flush()
    history.append(3)


def one_segment_after_an_expiry(history: History) -> None:
    history.append(40)
    history.flush()
    history.expire(0)


def reset_after_a_snapshot(history: History) -> None:
    history.reset(BEHIND)
    history.append(2)
    history.flush()


EXPLORATIONS = [(some_unflushed, reset_after_a_snapshot), (one_segment_after_an_expiry, reset_after_a_snapshot)]


@pytest.mark.parametrize(("prepare", "steps"), EXPLORATIONS, ids=lambda steps: steps.__name__)
def test_a_reset_that_is_stopped_at_any_operation_leaves_a_log_that_opens_and_can_be_reset_again(
    prepare: Steps, steps: Steps
) -> None:
    assert explore(prepare, steps, outcomes=64) > 30


def test_a_cluster_s_log_begins_where_a_reset_that_was_stopped_was_to_begin_it_or_is_as_it_was() -> None:
    seen = set()
    for keep in Keep:
        for step in range(1, 100):
            disk = Disk(seed=step)
            log = open_log(disk, standalone=False)
            for k in range(40):
                log.append([str(k) * 60])
            log.flush()
            disk.stop_before, disk.on_power_loss = disk.operations + step, keep
            try:
                log.reset(BEHIND)
            except PowerLoss:
                pass
            else:
                break
            disk.stop_before = None
            log = open_log(disk, standalone=False)
            seen.add((log.bounds, log.origin[1:] == BEHIND[1:]))
            if log.bounds != (0, 40):  # And so it does at the start after that.
                disk.lose_power(Keep.NOTHING)
                assert open_log(disk, standalone=False).bounds == (100, 100)
    assert seen == {((0, 40), False), ((100, 100), False), ((100, 100), True)}


@pytest.mark.parametrize("change", [lambda log: log.reset(BEHIND), Log.remove], ids=["reset", "remove"])
def test_an_open_after_a_reset_or_removal_that_was_stopped_neither_reads_nor_rewrites_the_old_log(
    change: Callable[[Log], object],
) -> None:
    options, record = LogOptions(segment_bytes=64 << 10), "x" * 20_000
    for step in range(1, 100):
        disk = Disk()
        log: Log | None = open_log(disk, options)
        assert log is not None
        for _ in range(60):
            log.append([record])
        log.flush()
        sync = log.mark_sync.begin()
        assert sync is not None
        sync.run()
        log.mark_sync.end(sync)
        size, before = log.size, disk.operations
        disk.stop_before, disk.on_power_loss = before + step, Keep.EVERYTHING
        try:
            change(log)
        except PowerLoss:
            log = None
        read, written = disk.bytes_read, disk.bytes_written
        disk.stop_before = None
        reopened = open_log(disk, options)
        # At most the ends of all segments, and the last segment twice.
        assert disk.bytes_read - read < size // 3
        assert disk.bytes_written - written < 1000
        assert reopened.bounds.highest_index in (0, 60, 100)
        if log is not None:
            return
    raise AssertionError("the change never ended")


def test_a_removed_log_leaves_no_frame_that_waits_to_be_put_into_the_next_one() -> None:
    disk = Disk()
    log = log_of(disk)
    first, _ = log.read_frames(0, 1)
    log.close()
    set_aside(disk.directory().child("log"), first, 0)  # A truncation inside a frame was stopped here.

    remove_log(disk.directory())

    assert open_log(disk).bounds == (0, 0)


def test_verify_takes_what_is_left_of_a_log_that_was_being_emptied_for_leftovers() -> None:
    disk = Disk()
    log = log_of(disk)
    disk.stop_before, disk.on_power_loss = disk.operations + 6, Keep.EVERYTHING
    with pytest.raises(PowerLoss):
        log.reset(BEHIND)
    verdict = verify(disk.directory())
    assert len(verdict.faults) > 2
    assert {fault.kind for fault in verdict.faults} == {"leftover"}
    assert open_log(disk).bounds == (0, 0)


def test_a_reset_settles_the_flush_that_is_on_its_way() -> None:
    log = log_of(Disk())
    log.append(["more"], epoch=9)
    flush = log.begin_flush()
    assert flush is not None
    log.reset(BEHIND)
    flush.run()
    log.end_flush(flush)
    assert (log.durable_index, log.durable_tail) == (100, BEHIND)


def test_without_room_for_the_new_segment_the_log_stays_as_it_is() -> None:
    disk = Disk()
    log = log_of(disk)
    held = log.bounds
    disk.full = True
    with pytest.raises(DiskFull):
        log.reset(BEHIND)
    assert log.bounds == held
    log.close()
    disk.full = False
    log = open_log(disk, SMALL)
    assert log.bounds == held
    assert log.reset(BEHIND)


def test_a_flush_that_a_reset_to_a_lower_index_settled_makes_nothing_durable_after_it() -> None:
    log = log_of(Disk())
    log.append(["more"], epoch=9)
    flush = log.begin_flush()
    assert flush is not None
    origin = Tail(3, 1, 5, 77)
    log.reset(origin)
    flush.run()
    log.end_flush(flush)
    assert (log.durable_index, log.durable_tail) == (3, origin)
