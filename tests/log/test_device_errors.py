"""An error of the device at any operation: writing ends, durable records stay, and reads return them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from quire.log import (
    IndexExpired,
    IndexOutOfBounds,
    Log,
    LogClosed,
    LogReadOnly,
    LogRotten,
    NotYetFlushed,
    frame_values,
)
from quire.log.change.rewrite import cut_frame, set_aside
from quire.log.simulated import Disk, Keep
from quire.log.storage import Directory
from tests.log import test_crashes, test_reset
from tests.log.explorer import Steps
from tests.log.histories import CLUSTER_ID, SMALL, Clock, History

pytestmark = pytest.mark.slow

CHANGES = [
    test_crashes.append_and_flush,
    test_crashes.append_without_flush,
    test_crashes.rotate,
    test_crashes.rotate_after_flush,
    test_crashes.truncate_in_the_write_segment,
    test_crashes.truncate_over_segments,
    test_crashes.truncate_to_a_segment_boundary,
    test_crashes.truncate_everything,
    test_crashes.truncate_inside_a_frame,
    test_crashes.truncate_inside_frames_over_segments,
    test_crashes.append_streams,
    test_crashes.expire_some,
    test_crashes.expire_everything_and_append,
    test_crashes.stop_cleanly,
    test_reset.reset_after_a_snapshot,
]


def open_in(directory: Directory) -> Log:
    """Open the log in a directory that is held already."""
    return Log.open(directory, SMALL, cluster_id=CLUSTER_ID, initial_index=0, clock=Clock(), standalone=True)


def fail_at(stop: int, change: Steps) -> History | None:
    """Return a history whose device failed at the operation of that number, None if the change has fewer."""
    history = History(Disk(seed=stop))
    history.open()
    test_crashes.two_segments_flushed(history)
    done = 0

    def failing(operation: str, _name: str) -> bool:
        nonlocal done
        done += operation != "read"
        return operation != "read" and done == stop

    history.disk.failing = failing
    try:
        change(history)
    except LogReadOnly:
        history.disk.failing = None
        return history
    assert done < stop, "an error of the device was swallowed"
    return None


def read_everything(history: History) -> None:
    """Read each index, and the frames to ship: none is corrupt, and no durable one is missing."""
    log = history.log
    values = {
        frame.header.index + place: value for frame in history.frames for place, value in enumerate(frame_values(frame))
    }
    for index in range(log.bounds.highest_index + 1):
        try:
            assert log.read(index).value == values[index]
        except (IndexOutOfBounds, IndexExpired):
            assert not log.bounds.lowest_index <= index < log.bounds.highest_index
        except NotYetFlushed:
            assert index >= log.durable_index
        except LogClosed:
            return
    index = log.bounds.lowest_index
    while index < log.durable_index:
        _, index = log.read_frames(index, 4096)
    # The read does not write out what the failed device did not take.
    with suppress(LogReadOnly):
        log.read_frames(index, 4096, unflushed=True)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_error_of_the_device_at_any_operation_ends_all_writing_and_loses_nothing_durable(change: Steps) -> None:
    stop = 1
    while (history := fail_at(stop, change)) is not None:
        stop += 1
        log, disk = history.log, history.disk
        operations = disk.operations
        read_everything(history)
        with pytest.raises((LogReadOnly, LogClosed)):
            log.append(["more"], epoch=99)
        log.close()
        assert disk.operations == operations, f"{disk.journal[operations:]} after the device failed at step {stop}"
        for keep in Keep:
            crashed = history.fork()
            crashed.disk.lose_power(keep)
            crashed.check_reopened()
    assert stop > 3


def test_a_flush_that_failed_beside_the_writer_is_final_and_proves_nothing() -> None:
    history = History(Disk())
    history.open()
    log = history.log
    log.append(["a"])
    durable_index, flush = log.durable_index, log.begin_flush()
    assert flush is not None
    history.disk.failing = lambda operation, _name: operation == "sync"
    with pytest.raises(OSError, match="injected") as failed:
        flush.run()
    history.disk.failing = None

    log.end_flush(flush, failed.value)

    assert log.durable_index == durable_index
    for attempt in (lambda: log.append(["b"]), log.begin_flush, log.flush):
        with pytest.raises(LogReadOnly, match="injected"):
            attempt()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("cutting", [True, False])
def test_an_open_that_fails_at_any_operation_leaves_no_file_open(clean: bool, cutting: bool) -> None:
    stop = 0
    while True:
        stop += 1
        history = History(Disk(seed=stop))
        history.open()
        test_crashes.two_segments_flushed(history)
        if cutting:
            whole = history.frames[-1]
            index, count = whole.header.index, whole.header.count
            set_aside(history.disk.directory().child("log"), cut_frame(whole, count), index)
        elif clean:
            history.log.close()
        disk = history.disk
        directory = disk.directory()
        disk.open_files, done = 0, 0

        def failing(_operation: str, _name: str, stop: int = stop) -> bool:
            nonlocal done
            done += 1
            return done == stop

        disk.failing = failing
        try:
            log = open_in(directory)
        except (OSError, LogReadOnly, LogRotten):
            assert disk.open_files == 0, f"at operation {stop}"
            continue
        disk.failing = None
        if done >= stop:
            log.close()  # What failed was not needed.
            continue
        log.close()
        assert disk.open_files == 0
        assert stop > 5
        break
