"""A file system that copies on write finds no room for an overwrite: nothing durable is lost, and the log goes on."""

from __future__ import annotations

import errno

import pytest

from quire.log import DiskFull, Log, LogReadOnly, ResourcesExhausted
from quire.log.simulated import Disk, Keep
from tests.log import test_crashes, test_reset
from tests.log.explorer import Steps
from tests.log.histories import SMALL, History, all_frames, open_log
from tests.log.test_device_errors import CHANGES

LARGE = "x" * SMALL.write_buffer_bytes
FULL_ERRORS = [errno.ENOSPC, errno.EDQUOT]
IN_THE_MIDDLE = {
    test_crashes.truncate_inside_a_frame,
    test_crashes.truncate_inside_frames_over_segments,
    test_reset.reset_after_a_snapshot,
}
"""The changes that may end the log: without the frame that replaces another, or the mark after which segments go, only
a restart can go on."""


def begun(*, standalone: bool = False) -> tuple[Disk, Log]:
    """A log with one durable record, whose disk is full from now on."""
    disk = Disk()
    disk.copies_on_write = True
    log = open_log(disk, standalone=standalone)
    log.append(["durable"])
    log.flush()
    disk.full = True
    return disk, log


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize("waiting", ["small", pytest.param(LARGE, id="large")])
def test_appends_are_refused_while_an_overwrite_finds_no_room_and_go_on_when_there_is(
    standalone: bool, waiting: str
) -> None:
    disk, log = begun(standalone=standalone)
    log.append([waiting])
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.flush()
        with pytest.raises(DiskFull):
            log.append(["refused"])
    assert (log.failure, log.durable_index, log.bounds.highest_index) == (None, 1, 2)
    assert log.room.left == 0
    assert not log.room.probe()
    assert log.read(0).value == "durable"
    disk.full = False
    assert log.room.probe()
    log.append(["again"])
    log.flush()
    disk.lose_power(Keep.NOTHING)
    assert len(all_frames(open_log(disk, standalone=standalone))) == 3


def test_frames_that_no_overwrite_has_room_for_cannot_be_read_now() -> None:
    disk, log = begun()
    log.append(["waits"])
    for _ in range(2):
        with pytest.raises(ResourcesExhausted):
            log.read_frames(1, 4096, unflushed=True)
    assert log.read_frames(0, 4096)[1] == 1
    disk.full = False
    assert log.room.probe()
    assert log.read_frames(1, 4096, unflushed=True)[1] == 2


def test_a_full_disk_that_may_have_lost_earlier_writes_ends_the_log() -> None:
    """NFS reports at a write what became of earlier ones, and does not report it again at the sync."""
    disk, log = begun()
    disk.full = False
    log.append([LARGE])
    flush = log.begin_flush()
    assert flush is not None
    disk.full = True
    with pytest.raises(LogReadOnly, match="injected"):
        log.append([LARGE])


def test_a_log_stops_on_a_disk_that_has_no_room_for_an_overwrite_and_loses_nothing_durable() -> None:
    disk, log = begun()
    log.append(["waits"])
    with pytest.raises(DiskFull):
        log.close()
    assert disk.open_files == 0
    disk.full = False
    assert [frame.header.index for frame in all_frames(open_log(disk, standalone=False))] == [0]


def test_a_mark_that_found_no_room_is_neither_synced_nor_taken_for_synced_until_it_is_written() -> None:
    disk, log = begun()
    disk.full = False
    log.append(["flushed"])
    disk.failing = lambda operation, name: errno.ENOSPC if (operation, name) == ("write", "mark") else 0
    log.flush()
    synced = log.mark.synced
    assert log.mark_sync.begin() is None
    assert log.mark.synced is synced
    disk.failing = None
    sync = log.mark_sync.begin()
    assert sync is not None
    sync.run()
    log.mark_sync.end(sync)
    assert log.mark.synced is not None
    assert log.mark.synced.durable_index == 2
    disk.lose_power(Keep.NOTHING)
    assert open_log(disk, standalone=False).bounds.highest_index == 2


@pytest.mark.parametrize("keep", Keep)
def test_a_reset_whose_mark_finds_no_room_ends_the_log_which_is_then_whole_or_begins_anew(keep: Keep) -> None:
    """A mark that empties the log must not be written at some later time."""
    disk, log = begun()
    disk.full = False
    disk.failing = lambda operation, name: errno.ENOSPC if (operation, name) == ("write", "mark") else 0
    with pytest.raises(LogReadOnly):
        log.reset(log.tail._replace(index=100, crc32c=7))
    with pytest.raises(LogReadOnly):
        log.append(["more"])
    disk.failing = None
    disk.lose_power(keep)
    assert open_log(disk, standalone=False).bounds in ((0, 1), (100, 100))


@pytest.mark.parametrize("error", FULL_ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_full_disk_at_any_write_loses_nothing_durable_and_ends_the_log_only_in_the_middle_of_a_change(
    change: Steps, error: int
) -> None:
    stop = 1
    while True:
        history = History(Disk(seed=stop))
        history.open()
        test_crashes.two_segments_flushed(history)
        done = 0

        def failing(operation: str, _name: str, stop: int = stop) -> int:
            nonlocal done
            done += operation == "write"
            return error if operation == "write" and done == stop else 0

        history.disk.failing = failing
        try:
            change(history)
        except DiskFull:
            pass
        except LogReadOnly:
            writer = history.log._state.writer  # pyright: ignore[reportPrivateUsage]
            assert change in IN_THE_MIDDLE or writer.proven < writer.written, history.disk.journal[-1]
        if done < stop:
            break
        stop += 1
        history.disk.failing = None
        for keep in Keep:
            crashed = history.fork()
            crashed.disk.lose_power(keep)
            crashed.check_reopened()
        is_closed = history.log._state.closed  # pyright: ignore[reportPrivateUsage]
        if history.log.failure is None and not is_closed:
            history.log.append(["more"], epoch=99)
            history.log.flush()
            history.disk.lose_power(Keep.NOTHING)
            all_frames(open_log(history.disk))
    assert stop > 1
