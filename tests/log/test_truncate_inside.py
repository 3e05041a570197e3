"""Splitting a frame of a standalone log: the records below become a frame of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.log import (
    DiskFull,
    Kind,
    Log,
    LogReadOnly,
    NotFrameBoundary,
    Record,
    RecordTooLarge,
    Run,
    decode_runs,
    encode_records,
    encode_runs,
    frame_values,
)
from quire.log.change.rewrite import cut_frame
from quire.log.simulated import Disk, Keep, PowerLoss
from tests.log.histories import SMALL, all_frames, open_log

RECORDS = ["a", {"b": [1, 2.5, None, b"x"]}, Record("c", {"h": "v"}), -7, "e" * 50]


def values(log: Log) -> list[object]:
    return [value for frame in all_frames(log) for value in frame_values(frame)]


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("flushed", [True, False])
def test_the_records_below_become_one_frame_and_the_rest_is_gone(kept: int, flushed: bool) -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["before"], epoch=1)
    log.append(RECORDS, epoch=2)
    log.append(["after"], epoch=3)
    if flushed:
        log.flush()
    whole = all_frames(log)[1].header
    log.truncate(1 + kept)
    assert log.bounds == (0, 1 + kept)
    assert log.durable_index == 1 + kept
    frames = all_frames(log)
    assert [frame.header.count for frame in frames] == [1, kept]
    assert frames[1].header[2:5] == whole[2:5], "index, epoch and timestamp stay"
    assert values(log) == ["before", *[r.value if isinstance(r, Record) else r for r in RECORDS[:kept]]]
    if kept >= 3:
        assert log.read(3).headers == {"h": "v"}
    assert log.epochs == [(1, 0), (2, 1)]
    log.append(["on"], epoch=2)
    log.flush()
    disk.lose_power(Keep.NOTHING)
    reopened = open_log(disk)
    assert values(reopened)[-1] == "on"
    assert disk.names("log") == ["00000000000000000000.store"]


def test_the_first_frame_of_a_segment_and_of_the_log_can_be_cut() -> None:
    log = open_log(Disk(), initial_index=3)
    for k in range(20):
        log.append([f"{k}:{place}".ljust(60) for place in range(3)])
    base = log.segments.bases[2]
    log.truncate(base + 1)
    assert log.segments.bases[-1] == base
    assert log.bounds == (3, base + 1)
    log.truncate(4)
    assert (log.bounds, log.segments.bases) == ((3, 4), [3])
    assert log.read(3).value == "0:0".ljust(60)
    log.truncate(3)
    assert log.bounds == (3, 3)


def test_truncate_at_before_and_after_every_index_twice_then_append_reads_back() -> None:
    expected = [f"{k}:{place}".ljust(60) for k in range(12) for place in range(3)]
    for index in range(len(expected) + 1):
        disk = Disk()
        log = open_log(disk)
        for k in range(12):
            log.append(expected[3 * k : 3 * k + 3])
        if index % 2:
            log.flush()
        for _ in range(2):
            log.truncate(index)
            assert values(log) == expected[:index]
        log.append(["on"])
        log.flush()
        disk.lose_power(Keep.NOTHING)
        assert values(open_log(disk)) == [*expected[:index], "on"]


def test_a_frame_of_runs_keeps_the_runs_of_the_records_that_stay() -> None:
    log = open_log(Disk())
    runs = [Run(7, 1, 2), Run(0, 0, 1), Run(9, 5, 3)]
    log.append_payload(encode_runs(runs, list("abcdef")), count=6, kind=Kind.RUNS, epoch=0)
    log.truncate(4)
    frame = all_frames(log)[0]
    assert decode_runs(frame.payload, 4) == ([Run(7, 1, 2), Run(0, 0, 1), Run(9, 5, 1)], list("abcd"))
    log.truncate(2)
    assert decode_runs(all_frames(log)[0].payload, 2) == ([Run(7, 1, 2)], list("ab"))


def test_a_session_and_its_sequence_stay() -> None:
    log = open_log(Disk())
    log.append(["a", "b", "c"], session=5, sequence=11)
    log.truncate(2)
    header = all_frames(log)[0].header
    assert (header.session, header.sequence, header.count) == (5, 11, 2)


def test_a_cluster_s_log_is_only_cut_at_frame_boundaries() -> None:
    log = open_log(Disk(), standalone=False)
    log.append(["a", "b", "c"])
    with pytest.raises(NotFrameBoundary) as error:
        log.truncate(1)
    assert (error.value.index, error.value.frame_index, error.value.next_index) == (1, 0, 3)
    assert log.bounds == (0, 3)


def test_without_room_for_the_new_frame_only_what_follows_it_is_cut() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a", "b", "c"])
    log.append(["d"])
    disk.full = True
    with pytest.raises(DiskFull):
        log.truncate(1)
    assert values(log) == ["a", "b", "c"]
    disk.full = False
    log.append(["e"])
    log.flush()
    assert values(open_log(disk)) == ["a", "b", "c", "e"]


def test_without_room_after_the_old_frame_was_cut_the_log_is_read_only_until_a_restart_finishes_it() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a", "b", "c"])

    def filling(operation: str, _name: str) -> bool:
        # The first cut is after the frame, the second one before it.
        disk.full = disk.journal[before:].count(("truncate", "00000000000000000000.store")) == 2
        return False

    log.append(["d"])
    before = len(disk.journal)
    disk.failing = filling
    with pytest.raises(LogReadOnly):
        log.truncate(1)
    with pytest.raises(LogReadOnly):
        log.append(["e"])
    disk.failing, disk.full = None, False
    assert values(open_log(disk)) == ["a"]


def test_a_rewrite_that_a_restart_finds_in_the_page_cache_only_is_synced_before_it_is_done() -> None:
    stop = 0
    while True:
        stop += 1
        disk = Disk()
        log = open_log(disk)
        log.append(["a", "b", "c"])
        log.flush()
        # Killed after the new frame was written to its file, before the file was synced.
        disk.failing = lambda operation, name: operation == "sync" and name.endswith(".rewrite")
        with pytest.raises(LogReadOnly):
            log.truncate(2)
        disk.failing = None
        assert disk.names("log") == ["00000000000000000000.rewrite", "00000000000000000000.store"]
        disk.on_power_loss = Keep.NOTHING
        disk.stop_before = disk.operations + stop
        try:
            open_log(disk)
        except PowerLoss:
            assert values(open_log(disk)) in (["a", "b", "c"], ["a", "b"])
            continue
        break
    assert stop > 15


def test_a_torn_or_foreign_rewrite_file_is_removed_and_changes_nothing() -> None:
    disk = Disk()
    log = open_log(disk, SMALL)
    log.append_payload(encode_records(["a", "b"]), count=2, kind=Kind.RECORDS, epoch=0)
    log.flush()
    disk.replace("log/00000000000000000000.rewrite", bytes(100))
    disk.replace("log/00000000000000000001.rewrite", disk.content("log/00000000000000000000.store")[64:200])
    assert values(open_log(disk)) == ["a", "b"]
    assert disk.names("log") == ["00000000000000000000.store"]


def test_a_flush_that_is_on_its_way_does_not_keep_a_cut_inside_a_frame_from_being_finished() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a", "b", "c"])
    flush = log.begin_flush()
    assert flush is not None
    log.truncate(1)
    assert disk.names("log") == ["00000000000000000000.store"]
    flush.run()
    log.end_flush(flush)
    log.append(["acknowledged"])
    log.flush()
    disk.lose_power(Keep.EVERYTHING)
    assert values(open_log(disk)) == ["a", "acknowledged"]


def test_what_stays_of_a_frame_is_refused_above_a_lowered_limit_and_nothing_that_follows_is_lost() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a" * 100, "b" * 100, "c" * 100])
    log.close()
    size = len(cut_frame(all_frames(open_log(disk))[0], 2))
    log = open_log(disk, replace(SMALL, max_frame_bytes=size - 1))
    with pytest.raises(RecordTooLarge) as error:
        log.truncate(2)
    assert (error.value.size, error.value.limit) == (size, size - 1)
    assert values(log) == ["a" * 100, "b" * 100, "c" * 100]
    log.append(["acknowledged"])
    log.flush()
    disk.lose_power(Keep.EVERYTHING)
    log = open_log(disk, replace(SMALL, max_frame_bytes=size))
    assert values(log)[3:] == ["acknowledged"]
    log.truncate(2)
    assert values(log) == ["a" * 100, "b" * 100]


def test_after_any_refusal_after_the_first_cut_nothing_is_appended_before_a_restart_finishes_it() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["before"])
    log.append(["a", "b", "c"])
    log.flush()

    def rotting(operation: str, name: str) -> bool:
        # The previous frame rots between the two cuts, so that the second one cannot find its position.
        if (operation, name) == ("create", "00000000000000000001.rewrite"):
            disk.flip_bit("log/00000000000000000000.store", 64)
        return False

    disk.failing = rotting
    with pytest.raises(LogReadOnly):
        log.truncate(2)
    disk.failing = None
    disk.flip_bit("log/00000000000000000000.store", 64)
    with pytest.raises(LogReadOnly):
        log.append(["lost at the next open if it was taken"])
    assert values(open_log(disk)) == ["before", "a"]
