"""Frames that were written just now are read from memory, and only whole and while they are in the log."""

import pytest

from quire.log import FrameCorrupt, LogReadOnly, encode_records, walk_frames
from quire.log.simulated import Disk
from tests.log.histories import open_log
from tests.log.test_log import STORE, memory_log


def test_frames_written_just_now_are_read_without_the_file_in_whole_pieces_only() -> None:
    disk = Disk()
    log = open_log(disk)
    ends = [0]
    for _ in range(6):
        log.append([str(k) for k in range(2)])
        log.append(["a"])
        log.flush()
        ends.append(log.tail.index)
    everything = log.read_frames(0, 1 << 20)[0]
    disk.flip_bit(STORE, 64)  # In the first frame, which is not among the last pieces.
    with pytest.raises(FrameCorrupt):
        log.read_frames(0, 1 << 20)
    for offset in range(64, 64 + len(everything)):
        disk.flip_bit(STORE, offset)
    for begin in ends[2:-1]:
        for end in ends[ends.index(begin) + 1 :]:
            raw, following = log.read_frames(begin, 1 << 20, to_index=end)
            frames = list(walk_frames(raw))
            assert (following, raw in everything) == (end, True)
            assert [frame.header.index for frame in frames] == [k for i in ends if begin <= i < end for k in (i, i + 2)]
    for begin, end, most in ((ends[2], ends[2] + 2, 1 << 20), (ends[3] + 2, ends[4], 1 << 20), (ends[2], ends[3], 10)):
        with pytest.raises(FrameCorrupt):
            log.read_frames(begin, most, to_index=end)


def test_of_what_was_written_just_now_nothing_is_read_after_its_truncation() -> None:
    log = memory_log()
    for value in ("a", "b", "c"):
        log.append([value])
        log.flush()
    log.truncate(1)
    assert log.read_frames(1, 1 << 20) == (b"", 1)
    log.append(["d"])
    log.flush()
    (frame,) = walk_frames(log.read_frames(1, 1 << 20)[0])
    assert frame.payload == encode_records(["d"])


def test_of_what_was_written_just_now_nothing_is_read_after_a_truncation_that_the_device_failed() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    log.flush()
    log.append(["b"])
    log.append(["c"])
    log.flush()  # Both in one piece.
    disk.failing = lambda operation, _: operation == "truncate"
    with pytest.raises(LogReadOnly):
        log.truncate(2)
    disk.failing = None
    assert log.read_frames(2, 1 << 20, to_index=3) == (b"", 2)
    raw, following = log.read_frames(1, 1 << 20)
    assert (len(list(walk_frames(raw))), following) == (log.tail.index - 1, log.tail.index)
