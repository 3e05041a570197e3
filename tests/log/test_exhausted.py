"""A process that can open no more files: what would change the log is refused before it begins, and works later."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.log import FileDirectory, Kind, Log, ResourcesExhausted, Tail
from quire.log.simulated import Disk
from tests.log.histories import all_frames, open_log
from tests.log.streamed import append_stream


def filled(disk: Disk) -> Log:
    """Return a log of several segments whose write segment is full."""
    log = open_log(disk)
    for k in range(40):
        log.append([str(k) * 60])
    log.append(["y" * 2100])
    log.flush()
    return log


CHANGES: dict[str, Callable[[Log], object]] = {
    "rotation": lambda log: log.append(["one more"]),
    "raw frames": lambda log: log.append_frames(raw_after(log)),
    "truncation over segments": lambda log: log.truncate(3),
    "reset": lambda log: log.reset(Tail(1000, 1, log.tail.timestamp, 7)),
    "streamed append": lambda log: append_stream(log, [b"x" * 600, b"y" * 600]),
}


def raw_after(log: Log) -> bytes:
    other = open_log(Disk())
    other.reset(log.tail)
    other.append_payload(b"\x91\x01", count=1, kind=Kind.RECORDS, epoch=0)
    return other.read_frames(log.tail.index, 1, unflushed=True)[0]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_can_open_no_file_is_refused_and_the_log_stays_usable(change: Callable[[Log], object]) -> None:
    disk = Disk()
    log = filled(disk)
    frames, names = all_frames(log), disk.names("log")
    disk.exhausted = True
    for _ in range(2):
        with pytest.raises(ResourcesExhausted):
            change(log)
    disk.exhausted = False
    assert log.failure is None
    assert (all_frames(log), set(disk.names("log")) <= set(names)) == (frames, True)
    change(log)
    log.flush()
    found = all_frames(log)
    log.close()
    assert all_frames(open_log(disk)) == found


def test_a_truncation_within_the_write_segment_needs_no_descriptor() -> None:
    disk = Disk()
    log = filled(disk)
    end = log.tail.index
    disk.exhausted = True

    log.truncate(end - 1)

    assert log.tail.index == end - 1
    disk.exhausted = False
    log.append(["again"])
    log.flush()
    assert log.durable_index == end


def test_raw_frames_that_find_no_descriptor_for_their_next_segment_are_in_the_log_not_at_all() -> None:
    other = open_log(Disk())
    for k in range(40):
        other.append([str(k) * 60])
    raw, index = b"", 0
    while index < 40:  # A read ends with its segment.
        frames, index = other.read_frames(index, 1 << 20, unflushed=True)
        raw += frames
    disk = Disk()
    log = open_log(disk)
    disk.exhausted = True

    with pytest.raises(ResourcesExhausted):
        log.append_frames(raw)

    assert (log.tail.index, log.failure) == (0, None)
    disk.exhausted = False
    assert log.append_frames(raw) == 40


def test_raw_frames_over_two_rotations_of_which_none_can_be_taken_back_are_in_the_log_as_far_as_is_told() -> None:
    other = open_log(Disk())
    for k in range(60):
        other.append([str(k) * 60])
    raw, index = b"", 0
    while index < 60:
        frames, index = other.read_frames(index, 1 << 20, unflushed=True)
        raw += frames
    disk = Disk()
    log = open_log(disk)
    made: list[str] = []

    def exhaust(operation: str, name: str) -> bool:
        if operation == "create" and name.endswith(".store.new"):
            made.append(name)
            disk.exhausted = len(made) == 2
        return False

    disk.failing = exhaust

    told = log.append_frames(raw)

    assert (told, log.failure) == (log.tail.index, None)
    assert 0 < told < 60
    disk.failing, disk.exhausted = None, False
    rest, _ = other.read_frames(told, 1 << 20, unflushed=True)
    assert log.append_frames(rest) > told
    log.flush()
    kept = log.durable_index
    assert [log.read(k).value for k in range(kept)] == [other.read(k).value for k in range(kept)]


def test_an_expiry_that_can_open_no_file_removes_nothing_and_does_it_later() -> None:
    disk = Disk()
    log = filled(disk)
    disk.exhausted = True
    assert log.expiry.remove(max_bytes=0) == 0
    assert (log.failure, log.bounds.lowest_index) == (None, 0)
    disk.exhausted = False
    assert log.expiry.remove(max_bytes=0) > 1
    assert log.bounds.lowest_index > 0


def test_a_flush_needs_no_descriptor() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    disk.exhausted = True
    log.flush()
    log.append(["b"])
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    log.end_flush(flush)
    assert log.durable_index == 2


@pytest.mark.parametrize("open_one", [FileDirectory.create, FileDirectory.open], ids=["create", "open"])
def test_a_file_system_s_refusal_for_want_of_a_descriptor_is_told_from_a_failed_device(
    tmp_path: Path, open_one: Callable[[FileDirectory, str], object]
) -> None:
    directory = FileDirectory(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(ResourcesExhausted):
            open_one(directory, "file")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert directory.list() == []
