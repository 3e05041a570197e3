"""What a truncation costs, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.log import STORE_HEADER_BYTES, Directory, FrameCorrupt, Kind, Log, LogOptions, Tail, encode_system
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, Clock


def test_a_truncation_in_the_write_segment_reads_the_frame_that_is_last_then_and_no_other() -> None:
    disk = Disk()
    options = LogOptions(segment_bytes=1 << 20)
    log = Log.open(disk.directory(), options, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=False)
    for k in range(400):
        if k % 100 == 50:
            record = encode_system({"type": "members", "members": [k]})
            log.append_payload(record, count=1, kind=Kind.SYSTEM, epoch=k // 50)
        log.append([f"{k}".ljust(2_000)], epoch=k // 50)
    log.flush()
    for kept in (403, 260, 251, 250, 52, 50, 1, 0):
        before = disk.bytes_read
        log.truncate(kept)
        assert disk.bytes_read - before < 1 << 14
        again = Log.open(disk.fork().directory(), options, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=False)
        assert (again.tail, again.epochs, again.members_index) == (log.tail, log.epochs, log.members_index)
        assert [log.read(k).index for k in range(kept)] == list(range(kept))
    for k in range(100):
        log.append([f"again {k}".ljust(3_000)], epoch=9)
    log.flush()
    assert [log.read(k).value for k in range(100)] == [f"again {k}".ljust(3_000) for k in range(100)]
    assert list(log.epochs) == [(9, 0)]


def over_segments(folder: Directory) -> Log:
    """A log of several segments, durable, with an epoch for each eight frames."""
    options = LogOptions(segment_bytes=1 << 14, max_frame_bytes=1 << 12)
    log = Log.open(folder, options, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=False)
    for k in range(60):
        log.append([f"{k}".ljust(1_000)], epoch=k // 8)
    log.flush()
    assert len(log.segments.bases) > 3
    return log


def test_a_walk_in_any_thread_spares_a_truncation_the_read_of_the_segment_that_is_left() -> None:
    disk = Disk()
    log = over_segments(disk.directory())
    index = log.segments.bases[2] - 1
    plain = over_segments(Disk().directory())
    plain.truncate(index)
    walk = log.begin_truncation(index)
    assert walk is not None
    tail = log.tail
    walk.run()
    assert log.tail == tail
    before = disk.bytes_read
    log.truncate(index, walk)
    assert disk.bytes_read - before < 1 << 13
    assert (log.tail, log.epochs, log.segments.bases) == (plain.tail, plain.epochs, plain.segments.bases)
    assert log.begin_truncation(index) is None
    assert log.begin_truncation(index - 1) is None  # It is in the write segment.


def test_a_walk_before_another_change_of_the_log_is_not_used() -> None:
    log = over_segments(Disk().directory())
    index = log.segments.bases[1] - 1
    walk = log.begin_truncation(index)
    assert walk is not None
    walk.run()
    log.truncate(index - 2)
    for _ in range(60):
        log.append(["x" * 1_000], epoch=99)
    log.flush()
    log.truncate(index, walk)
    assert list(log.epochs)[-1] == (99, index - 2)
    assert log.read(index - 1).value == "x" * 1_000


def test_a_walk_that_finds_rot_leaves_every_segment_in_place() -> None:
    folder = Disk().directory()
    log = over_segments(folder)
    bases = list(log.segments.bases)
    walk = log.begin_truncation(bases[2] - 1)
    assert walk is not None
    store = folder.child("log").open(f"{bases[1]:020d}.store")
    raw = bytearray(store.read_at(STORE_HEADER_BYTES, 8))
    store.write_at(STORE_HEADER_BYTES, bytes(byte ^ 0xFF for byte in raw))
    store.close()
    walk.run()
    with pytest.raises(FrameCorrupt):
        log.truncate(bases[2] - 1, walk)
    assert log.failure is not None
    assert list(log.segments.bases) == bases
    assert folder.child("log").open(f"{bases[-1]:020d}.store").size > 0


@pytest.mark.parametrize("resets", [False, True], ids=["truncation", "reset"])
def test_with_segments_freed_elsewhere_a_removal_does_the_same_to_the_disk_in_the_same_order(resets: bool) -> None:
    done: list[list[tuple[str, str]]] = []
    for frees in (False, True):
        disk = Disk()
        log = over_segments(disk.directory())
        held: list[Callable[[], None]] = []
        if frees:
            log.segments.elsewhere = held.append
        before, removed = len(disk.journal), len(log.segments.bases) - (not resets)
        if resets:
            log.reset(Tail(1_000, 99, 1, 7))
        else:
            log.truncate(1)
        assert len(held) == removed * frees
        assert log.bounds.highest_index == (1_000 if resets else 1)
        for close in held:
            close()
        log.close()
        assert disk.open_files == 0
        done.append([entry for entry in disk.journal[before:] if entry[0] != "open"])
    assert done[0] == done[1]
