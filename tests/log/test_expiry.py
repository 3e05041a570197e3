"""What expires, what stays, and what a restart finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.log import (
    HEADER_BYTES,
    Expiry,
    IndexExpired,
    Kind,
    Log,
    LogReadOnly,
    ResourcesExhausted,
    Tail,
    encode_records,
    encode_system,
)
from quire.log.simulated import Disk, Keep
from tests.log.histories import CLUSTER_ID, SMALL, Clock, all_frames, open_log

SECOND = 1_000_000


def log_over_time(disk: Disk, frames: int = 60, *, flushed: bool = True) -> Log:
    """Return a log whose frame k has timestamp (k + 1) seconds, epoch k // 10."""
    clock = Clock(0)
    log = Log.open(disk.directory(), SMALL, cluster_id=CLUSTER_ID, clock=clock, standalone=True)
    for k in range(frames):
        clock.now = (k + 1) * SECOND - 1
        log.append([str(k) * 60], epoch=k // 10)
    if flushed:
        log.flush()
    return log


def test_nothing_expires_without_a_reason() -> None:
    disk = Disk()
    log = log_over_time(disk)
    before = len(disk.journal)
    assert log.expiry.remove() == 0
    assert log.expiry.remove(aged_to=log.segments.bases[1] - 1, max_bytes=log.size) == 0
    assert log.expiry.remove(aged_to=1 << 60, max_bytes=0, floor=0) == 0
    assert log.bounds.lowest_index == 0
    assert len(disk.journal) == before


def test_a_segment_goes_if_it_ends_at_or_below_where_records_are_too_old() -> None:
    log = log_over_time(Disk())
    bases = list(log.segments.bases)
    assert log.expiry.remove(aged_to=bases[2] - 1) == 1
    assert log.bounds.lowest_index == bases[1]
    assert log.expiry.remove(aged_to=bases[2]) == 1
    assert list(log.segments.bases) == bases[2:]


def test_the_oldest_segments_go_until_no_more_bytes_are_held_than_allowed() -> None:
    log = log_over_time(Disk())
    bases = list(log.segments.bases)
    left = log.lookup.bytes_between(bases[2], log.bounds.highest_index)
    assert log.expiry.remove(max_bytes=left) == 2
    assert (log.bounds.lowest_index, log.size) == (bases[2], left)
    assert log.expiry.remove(max_bytes=left) == 0
    assert log.expiry.remove(max_bytes=left - 1) == 1


def test_nothing_at_or_above_the_floor_expires() -> None:
    log = log_over_time(Disk())
    bases = list(log.segments.bases)
    assert log.expiry.remove(aged_to=1 << 60, max_bytes=0, floor=bases[2] - 1) == 1
    assert log.bounds.lowest_index == bases[1]
    assert log.expiry.remove(aged_to=1 << 60, max_bytes=0, floor=bases[2]) == 1
    assert log.bounds.lowest_index == bases[2]


def test_when_everything_is_expired_the_write_segment_stays_and_takes_appends() -> None:
    disk = Disk()
    log = log_over_time(disk)
    base = log.segments.bases[-1]
    kept = all_frames(log)[base:]
    log.expiry.remove(aged_to=1 << 60, max_bytes=0)
    assert (log.bounds.lowest_index, list(log.segments.bases)) == (base, [base])
    assert all_frames(log) == kept
    assert log.append(["on"], epoch=9) == 60
    log.flush()
    disk.lose_power(Keep.NOTHING)
    log = open_log(disk)
    assert log.bounds == (base, 61)
    assert log.read(60).value == "on"
    with pytest.raises(IndexExpired) as error:
        log.read(base - 1)
    assert (error.value.index, error.value.lowest) == (base - 1, base)
    assert [name for name in disk.names("log") if name.endswith(".index")] == []


def test_the_newest_read_segment_stays_until_a_frame_of_the_write_segment_is_durable() -> None:
    disk = Disk()
    log = log_over_time(disk)
    while len(log.segments.bases) < 8:
        log.append(["the first frame of a segment is lost".ljust(60)], epoch=5)
    bases = list(log.segments.bases)
    disk.lose_power(Keep.NOTHING)
    log = open_log(disk)
    assert (list(log.segments.bases), log.bounds.highest_index) == (bases, bases[-1])
    log.expiry.remove(aged_to=1 << 60, max_bytes=0)
    assert list(log.segments.bases) == bases[-2:]
    log.append(["not durable yet"], epoch=5)
    assert log.expiry.remove(aged_to=1 << 60, max_bytes=0) == 0
    disk.lose_power(Keep.NOTHING)
    log = open_log(disk)
    assert log.bounds == (bases[-2], bases[-1])
    log.append(["durable"], epoch=5)
    log.flush()
    assert log.expiry.remove(aged_to=1 << 60, max_bytes=0) == 1
    assert log.bounds == (bases[-1], bases[-1] + 1)


def test_the_chain_s_origin_and_the_epochs_are_as_after_a_restart() -> None:
    disk = Disk()
    log = log_over_time(disk)
    base = log.segments.bases[2]
    last = all_frames(log)[base - 1].header
    log.expiry.remove(max_bytes=log.lookup.bytes_between(base, 60))
    assert log.origin == Tail(base, last.epoch, last.timestamp, last.crc32c)
    epochs = list(log.epochs)
    assert epochs[0] == (base // 10, base)
    assert epochs[1:] == [(epoch, epoch * 10) for epoch in range(base // 10 + 1, 6)]
    assert [log.reader.header(index).epoch for index in range(base, 60)] == [index // 10 for index in range(base, 60)]
    log.close()
    log = open_log(disk)
    assert list(log.epochs) == epochs
    assert log.origin == Tail(base, last.epoch, last.timestamp, last.crc32c)


def test_members_are_known_when_their_record_has_expired() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append_payload(encode_system({"type": "members", "members": []}), count=1, kind=Kind.SYSTEM, epoch=0)
    for k in range(60):
        log.append([str(k) * 60])
    log.flush()
    log.expiry.remove(max_bytes=0)
    assert log.members_index == 0
    assert open_log(disk).members_index == 0


def test_an_expired_segment_goes_with_its_index_and_the_folder_is_synced_before_the_next_one() -> None:
    disk = Disk()
    log = log_over_time(disk)
    first, second = log.segments.bases[:2]
    before = len(disk.journal)
    log.expiry.remove(max_bytes=log.lookup.bytes_between(log.segments.bases[2], 60))
    assert disk.journal[before:] == [
        ("remove", f"{first:020d}.index"),
        ("remove", f"{first:020d}.store"),
        ("sync folder", "disk/log"),
        ("remove", f"{second:020d}.index"),
        ("remove", f"{second:020d}.store"),
        ("sync folder", "disk/log"),
    ]


def test_a_device_that_fails_while_expiring_turns_the_log_read_only() -> None:
    disk = Disk()
    log = log_over_time(disk)
    disk.failing = lambda operation, _name: operation == "remove"
    with pytest.raises(LogReadOnly):
        log.expiry.remove(max_bytes=0)
    assert log.read(59).value == "59" * 60
    disk.failing = None
    assert open_log(disk).bounds == (0, 60)


def test_a_full_disk_does_not_keep_the_log_from_expiring() -> None:
    disk = Disk()
    log = log_over_time(disk)
    disk.full = True
    assert log.expiry.remove(max_bytes=0) > 2


def test_leftovers_of_a_crash_in_an_expiry_are_swept_or_rebuilt() -> None:
    disk = Disk()
    log = log_over_time(disk)
    first = log.segments.bases[0]
    frame = HEADER_BYTES + len(encode_records(["0" * 60]))
    log.close()
    disk.delete(f"log/{first:020d}.index")
    log = open_log(disk)
    assert log.lookup.bytes_between(0, 1) == frame
    log.close()
    disk.delete(f"log/{first:020d}.store")
    log = open_log(disk)
    assert log.bounds.lowest_index == log.segments.bases[0] > 0
    assert f"{first:020d}.index" not in disk.names("log")


def expiring(log: Log) -> Expiry:
    """Begin to remove the oldest segment."""
    expiry = log.expiry.begin(max_bytes=0)
    assert expiry is not None
    return expiry


def test_a_segment_is_out_of_the_log_before_its_files_go_and_appends_go_on_meanwhile() -> None:
    disk = Disk()
    log = log_over_time(disk)
    first, second = log.segments.bases[:2]
    read = log.read(first)
    before = len(disk.journal)
    expiry = expiring(log)
    assert read.index == first
    assert (expiry.base_index, expiry.to_index, log.bounds.lowest_index) == (first, second, second)
    assert disk.journal[before:] == []
    with pytest.raises(IndexExpired):
        log.read(first)
    assert log.expiry.begin(max_bytes=0) is None  # One at a time.
    for _ in range(20):
        log.append(["on"], epoch=9)
    log.flush()
    expiry.run()
    log.expiry.end(expiry)
    assert f"{first:020d}.store" not in disk.names("log")
    assert f"{second:020d}.store" in disk.names("log")
    disk.lose_power(Keep.NOTHING)
    assert open_log(disk).bounds == (second, 80)


def test_an_expiry_syncs_a_mark_that_may_name_the_segment_before_its_files_go() -> None:
    disk = Disk()
    log = Log.open(disk.directory(), SMALL, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=True)
    while len(log.segments.bases) < 2:
        log.append(["a" * 60])
    log.append(["durable"])
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.end_flush(flush)
    expiry = expiring(log)
    assert log.mark_sync.begin() is None
    log.append(["b"])
    log.mark.commit_index = 3
    before = len(disk.journal)
    expiry.run()
    assert disk.journal[before:][0] == ("sync", "mark")
    log.expiry.end(expiry)
    disk.lose_power(Keep.NOTHING)
    assert open_log(disk).bounds.lowest_index == expiry.to_index


def test_no_segment_goes_while_a_sync_of_an_older_mark_is_in_progress() -> None:
    disk = Disk()
    log = Log.open(disk.directory(), SMALL, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=True)
    while len(log.segments.bases) < 2:
        log.append(["a" * 60])
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.end_flush(flush)
    sync = log.mark_sync.begin()
    assert sync is not None
    assert log.expiry.begin(max_bytes=0) is None
    sync.run()
    log.mark_sync.end(sync)
    assert expiring(log).mark_sync is None


def test_a_folder_that_cannot_be_opened_to_be_synced_is_synced_later() -> None:
    disk = Disk()
    log = log_over_time(disk)
    expiry = expiring(log)
    disk.exhausted = True
    with pytest.raises(ResourcesExhausted):
        expiry.run()
    disk.exhausted = False
    before = len(disk.journal)
    expiry.run()
    assert disk.journal[before:] == [("sync folder", "disk/log")]
    log.expiry.end(expiry)
    assert log.failure is None


def test_a_reset_and_a_truncation_wait_for_the_removal_in_progress() -> None:
    changes: list[Callable[[Log], object]] = [
        lambda log: log.reset(Tail(500, 7, 0, 1)),
        lambda log: log.truncate(log.bounds.highest_index - 1),
    ]
    for change in changes:
        disk = Disk()
        log = log_over_time(disk)
        expiry = expiring(log)
        change(log)
        assert f"{expiry.base_index:020d}.store" not in disk.names("log")
        expiry.run()
        log.expiry.end(expiry)


def test_what_is_due_is_found_without_a_look_at_every_segment() -> None:
    disk = Disk()
    log = log_over_time(disk)
    bases = list(log.segments.bases)
    sizes = [log.lookup.bytes_between(base, 60) for base in bases]
    for place, left in enumerate(sizes[:-1]):
        for less, due in ((0, place), (1, place + 1)):
            assert log.expiry.due(max_bytes=left - less) == (due, bases[due], sizes[0] - sizes[due])
        assert log.expiry.due(aged_to=bases[place]).segments == place
        assert log.expiry.due(max_bytes=0, floor=bases[place]).segments == place
