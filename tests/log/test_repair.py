"""Repair: rot is set aside, nothing is deleted, the rest opens, and the loss is reported."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from quire.log import (
    DiskFull,
    FileDirectory,
    FrameCorrupt,
    Log,
    LogRotten,
    NothingToKeep,
    Side,
    encode_frame,
    encode_records,
    plan_repair,
    repair,
    stored_mark,
    verify,
)
from quire.log.change.rewrite import set_aside
from quire.log.simulated import Disk, Keep, PowerLoss
from tests.log.histories import CLUSTER_ID, SMALL, Clock, History, all_frames, open_log


def rotten(place: int, frame: int = 1, seed: int = 0) -> History:
    """A log with rot in that frame of the segment at `place`."""
    history = History(Disk(seed=seed))
    history.open()
    history.append(40)
    history.flush()
    bases = list(history.log.segments.bases)
    history.log.close()
    inside = [found for found in history.frames if found.header.index >= bases[place]]
    position = 64 + sum(found.header.size for found in inside[:frame]) + 70
    history.disk.flip_bit(f"log/{bases[place]:020d}.store", position)
    return history


def contents(disk: Disk, folder: str) -> dict[str, bytes]:
    return {name: disk.content(f"{folder}/{name}") for name in disk.names(folder)}


def stands_somewhere(disk: Disk, name: str, content: bytes) -> bool:
    """Whether the bytes of a store are in the log, in quarantine, or partly in each."""
    folders = [f"quarantine/{number}" for number in disk.names("quarantine")]
    copies = {(folder, each): disk.content(f"{folder}/{each}") for folder in folders for each in disk.names(folder)}
    kept = disk.content(f"log/{name}").rstrip(b"\0") if name in disk.names("log") else b""
    tails = {each: copy for (_, each), copy in copies.items() if each.startswith(f"{name}.from-")}
    return (
        kept == content.rstrip(b"\0")
        or any(each == name and copy == content for (_, each), copy in copies.items())
        or any(kept[: int(each.rpartition("-")[2])] + tail == content for each, tail in tails.items())
    )


@pytest.mark.parametrize(("place", "frame"), [(0, 1), (0, 0), (1, 1), (-1, 0)])
def test_frames_before_the_rot_are_kept_and_the_rest_set_aside(place: int, frame: int) -> None:
    history = rotten(place, frame)
    disk = history.disk
    before = contents(disk, "log")
    with pytest.raises((LogRotten, FrameCorrupt)):
        all_frames(open_log(disk))
    directory = disk.directory()
    plan = plan_repair(verify(directory), "before")

    done = repair(directory, plan)

    log = open_log(disk)
    found = all_frames(log)
    assert found == history.frames[: len(found)]
    assert (plan.kept_from, plan.kept_to) == log.bounds
    assert plan.lost == (log.bounds.highest_index, history.frames[-1].header.next_index)
    aside = contents(disk, done.folder)
    assert sorted(aside) == sorted(done.files)
    for name, content in before.items():
        # Each byte of the old log is in the log or in quarantine.
        kept = disk.content(f"log/{name}") if name in disk.names("log") else b""
        if name in aside:
            assert aside[name] == content
        for cut, tail in aside.items():
            if cut.startswith(f"{name}.from-"):
                position = int(cut.rpartition("-")[2])
                assert kept[:position] + tail == content
    log.append(["on"], epoch=9)
    log.close()
    assert open_log(disk).bounds.highest_index == plan.kept_to + 1


@pytest.mark.parametrize("place", [0, 1, -2])
def test_segments_after_the_rot_are_kept_as_if_the_rest_had_expired(place: int) -> None:
    history = rotten(place)
    directory = history.disk.directory()
    plan = plan_repair(verify(directory), "after")

    done = repair(directory, plan)

    log = open_log(history.disk)
    assert log.bounds == (plan.kept_from, plan.kept_to)
    assert all_frames(log) == [frame for frame in history.frames if frame.header.index >= plan.kept_from]
    assert plan.lost == (0, plan.kept_from)
    assert len(done.files) > len(plan.segments)


def test_segments_after_the_rot_are_kept_though_the_one_that_the_mark_names_is_missing() -> None:
    history = rotten(0)
    disk = history.disk
    *_, missing = stores = [name for name in disk.names("log") if name.endswith(".store")]
    disk.delete(f"log/{missing}")

    directory = disk.directory()

    repair(directory, plan_repair(verify(directory), "after"))

    assert open_log(disk).bounds == (int(stores[1][:20]), int(missing[:20]))


def test_a_segment_after_the_rot_is_kept_though_the_mark_names_the_rotten_one() -> None:
    history = History(Disk())
    history.open()
    history.append(40)
    *_, marked, last = history.log.segments.bases
    assert history.log.begin_flush() is not None  # It writes the last frames out; the mark moves when it has ended.
    history.disk.lose_power(Keep.EVERYTHING)
    history.disk.flip_bit(f"log/{marked:020d}.store", 100)
    directory = history.disk.directory()
    mark = stored_mark(directory)
    assert mark is not None
    assert mark.segment_base == marked

    repair(directory, plan_repair(verify(directory), "after"))

    assert open_log(history.disk).bounds == (last, history.frames[-1].header.next_index)


def test_repair_with_nothing_on_the_kept_side_is_an_error_and_changes_nothing() -> None:
    history = rotten(-1, 0)
    with pytest.raises(NothingToKeep):
        plan_repair(verify(history.disk.directory()), "after")
    disk = history.disk
    first = next(name for name in disk.names("log") if name.endswith(".store"))
    disk.flip_bit(f"log/{first}", 20)
    with pytest.raises(NothingToKeep):
        plan_repair(verify(disk.directory()), "before")


def test_a_segment_whose_header_is_rotten_goes_whole() -> None:
    history = rotten(1, 0)
    disk = history.disk
    bases = [int(name[:20]) for name in disk.names("log") if name.endswith(".store")]
    disk.flip_bit(f"log/{bases[1]:020d}.store", 20)
    directory = disk.directory()
    plan = plan_repair(verify(directory), "before")
    assert (plan.truncated, plan.segments, plan.kept_to) == (None, tuple(bases[1:]), bases[1])
    repair(directory, plan)
    assert open_log(disk).bounds == (0, bases[1])


def test_a_missing_mark_is_written_again_and_everything_whole_is_kept() -> None:
    history = History(Disk())
    history.open()
    history.append(40)
    history.close()
    history.disk.replace("mark", bytes(8192))
    directory = history.disk.directory()
    plan = plan_repair(verify(directory), "before")
    repair(directory, plan)
    assert plan.lost[0] == plan.lost[1]
    assert all_frames(open_log(history.disk)) == history.frames


def test_a_mark_that_was_made_anew_survives_a_power_loss() -> None:
    history = History(Disk())
    history.open()
    history.append(40)
    history.close()
    history.disk.delete("mark")
    directory = history.disk.directory()

    repair(directory, plan_repair(verify(directory), "before"))

    history.disk.lose_power(Keep.NOTHING)
    assert all_frames(open_log(history.disk)) == history.frames


def test_a_second_repair_has_a_quarantine_of_its_own() -> None:
    history = rotten(1)
    directory = history.disk.directory()
    first = repair(directory, plan_repair(verify(directory), "before"))
    history.disk.flip_bit("log/00000000000000000000.store", 200)
    second = repair(directory, plan_repair(verify(directory), "before"))
    assert (first.folder, second.folder) == (f"quarantine/{1:020d}", f"quarantine/{2:020d}")


def test_without_room_for_the_quarantine_nothing_is_changed() -> None:
    history = rotten(0)
    directory = history.disk.directory()
    plan = plan_repair(verify(directory), "before")
    before = contents(history.disk, "log")
    history.disk.full = True
    with pytest.raises(DiskFull):
        repair(directory, plan)
    assert contents(history.disk, "log") == before


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("keep", list(Keep))
def test_a_repair_that_is_stopped_at_any_operation_can_be_run_again_and_loses_no_more(side: Side, keep: Keep) -> None:
    for seed in range(4 if keep is Keep.SOME else 1):
        for stop in count(1):
            history = rotten(1, seed=seed * 1000 + stop)
            disk = history.disk
            directory = disk.directory()
            plan = plan_repair(verify(directory), side)
            before = {name: content for name, content in contents(disk, "log").items() if name.endswith(".store")}
            disk.on_power_loss, disk.stop_before = keep, disk.operations + stop
            try:
                repair(directory, plan)
            except PowerLoss:
                directory = disk.directory()
                verdict = verify(directory)
                if verdict.is_rotten:
                    repair(directory, plan_repair(verdict, side))
                found = all_frames(open_log(disk))
                wanted = [frame for frame in history.frames if plan.kept_from <= frame.header.index < plan.kept_to]
                assert found == wanted
                for name, content in before.items():
                    assert stands_somewhere(disk, name, content), name
                continue
            assert stop > 15
            break


@pytest.mark.parametrize(("side", "index"), [("before", 10**6), ("after", 0)])
def test_a_frame_that_waits_to_replace_one_that_goes_is_set_aside_with_it(side: Side, index: int) -> None:
    history = rotten(1)
    directory = history.disk.directory()
    whole = history.frames[0].header
    waiting = encode_frame(
        index=index,
        epoch=whole.epoch,
        timestamp=whole.timestamp,
        count=1,
        prev_crc32c=0,
        kind=whole.kind,
        payload=encode_records(["x"]),
    )
    set_aside(directory.child("log"), waiting, index)
    plan = plan_repair(verify(directory), side)

    done = repair(directory, plan)

    assert open_log(history.disk).bounds == (plan.kept_from, plan.kept_to)
    assert contents(history.disk, done.folder)[f"{index:020d}.rewrite"] == waiting


def test_an_empty_file_is_set_aside_on_a_file_system(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    options = replace(SMALL, index_interval_bytes=0)
    log = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    for k in range(60):
        log.append([str(k) * 60])
    bases = list(log.segments.bases)
    log.close()
    (tmp_path / "log" / f"{bases[1]:020d}.store").write_bytes(b"")
    repaired = repair(directory, plan_repair(verify(directory), "before"))
    assert f"{bases[1]:020d}.store" in repaired.files
    log = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    assert log.bounds == (0, bases[1])
    log.close()
