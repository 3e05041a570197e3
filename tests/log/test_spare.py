"""Where a file system has no call that reserves room, zeros are written: a whole segment of them in another thread."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.log import FLUSH_ALWAYS, FileDirectory, FileStorage, GroupFlusher, Log, LogOptions, files
from quire.log.change import spare
from quire.log.simulated import Disk, FaultyStorage, Keep
from tests.log.histories import CLUSTER_ID, Clock, all_frames, open_log

OPTIONS = LogOptions(segment_bytes=1 << 16, max_frame_bytes=1 << 14, flush_policy=FLUSH_ALWAYS)


def flush_beside(log: Log) -> None:
    """Flush as a thread does."""
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.end_flush(flush)


async def test_a_segment_of_zeros_is_written_in_the_thread_that_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[tuple[str, int]] = []
    allocate = FileStorage.allocate

    def noted(storage: FileStorage, length: int) -> None:
        allocated.append((threading.current_thread().name, length - storage.size))
        allocate(storage, length)

    monkeypatch.setattr(FileStorage, "allocate", noted)
    monkeypatch.setattr(files, "_has_allocation", lambda _: False)
    directory, options = FileDirectory(tmp_path), replace(OPTIONS, segment_bytes=4 << 20, max_frame_bytes=1 << 20)
    log = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    allocated.clear()
    flusher = GroupFlusher(log)
    while len(log.segments.bases) < 6:
        log.append(["x" * 300_000])
        await flusher.settled(log.bounds.highest_index)
    await flusher.close()
    log.close()

    ahead = [thread for thread, grown in allocated if grown == spare.PIECE_BYTES and thread != "MainThread"]
    assert set(ahead) == {"log-flush_0"}
    assert len(ahead) >= 3 * 4
    assert max(grown for _, grown in allocated) <= spare.PIECE_BYTES
    again = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    all_frames(again)
    assert {name.split(".", 1)[1] for name in directory.child("log").list()} == {"store", "index"}
    again.close()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_rotation_takes_what_was_allocated_for_it_or_allocates_the_least(prepared: bool) -> None:
    disk = Disk()
    disk.writes_zeros = True
    log = open_log(disk, OPTIONS)
    blocks: list[Callable[[], None]] = []
    log.segments.elsewhere = blocks.append
    while len(log.segments.bases) < 2:
        log.append(["x" * 2_000])
        flush_beside(log)
        if prepared:
            while blocks:
                blocks.pop()()
    assert (log.room.left > OPTIONS.segment_bytes // 2) == prepared
    disk.lose_power(Keep.NOTHING)
    all_frames(open_log(disk, OPTIONS))


def test_a_flush_waits_for_one_piece_of_the_zeros_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[int] = []
    allocate = FaultyStorage.allocate

    def noted(storage: FaultyStorage, length: int) -> None:
        grown.append(length - storage.size)
        allocate(storage, length)

    monkeypatch.setattr(FaultyStorage, "allocate", noted)
    monkeypatch.setattr(spare, "PIECE_BYTES", 1 << 12)
    disk, in_order = Disk(), deque[Callable[[], None]]()
    disk.writes_zeros = True
    log = open_log(disk, OPTIONS)
    log.segments.elsewhere = in_order.append
    while len(log.segments.bases) < 4:
        log.append(["x" * 1_000])
        flush = log.begin_flush()
        assert flush is not None
        in_order.append(flush.run)
        grown.clear()
        block: Callable[[], None] | None = None
        while block != flush.run:
            block = in_order.popleft()
            block()
        assert sum(grown) <= spare.PIECE_BYTES
        log.end_flush(flush)
    assert log.room.left > OPTIONS.segment_bytes // 2, "it was ready all the same"


def test_without_room_for_a_whole_segment_ahead_of_time_the_log_goes_on() -> None:
    disk = Disk()
    disk.writes_zeros = True
    log = open_log(disk, OPTIONS)
    log.segments.elsewhere = lambda block: block()
    disk.failing = lambda operation, name: errno.ENOSPC if operation == "allocate" and name.startswith("9999") else 0
    while len(log.segments.bases) < 4:
        log.append(["x" * 2_000])
        flush_beside(log)
    assert not [name for name in disk.names("log") if name.endswith(".new")]


def test_an_allocation_by_zeros_grows_the_file_and_gives_back_what_it_took_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_has_allocation", lambda _: False)
    file = FileDirectory(tmp_path).create("file")
    file.write_at(0, b"written")
    file.allocate(3_000_000)
    assert (file.size, file.wrote_zeros) == (3_000_000, True)
    assert file.read_at(0, 3_000_000) == b"written".ljust(3_000_000, b"\0")
    file.allocate(1_000)
    assert file.size == 3_000_000
    file.close()
