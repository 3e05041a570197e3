"""The check of a closed log: what is wrong, where, and which records are lost."""

from __future__ import annotations

import pytest

from quire.log import (
    FrameCorrupt,
    MemoryDirectory,
    frames_of,
    list_segments,
    log_bytes,
    stored_cluster_id,
    stored_mark,
    verify,
)
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, all_frames, names, open_log, written


@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_log_has_no_faults_and_is_left_as_it_is(clean: bool) -> None:
    history = written(clean=clean)
    seen: list[int] = []
    before = {name: history.disk.content(name) for name in names(history)}

    verdict = verify(history.disk.directory(), seen.append)

    assert verdict.faults == []
    assert not verdict.is_rotten
    assert sum(segment.frames for segment in verdict.segments) >= 40
    assert verdict.segments[-1].tail.index >= history.frames[-4].header.next_index
    assert sum(seen) >= sum(frame.header.size for frame in history.frames[:40])
    assert {name: history.disk.content(name) for name in names(history)} == before


def test_a_log_that_does_not_exist_has_nothing_to_say() -> None:
    directory = MemoryDirectory()
    assert verify(directory).segments == []
    assert list_segments(directory) == []
    assert log_bytes(directory) == 0
    assert stored_cluster_id(directory) is None
    assert stored_mark(directory) is None


def test_segments_tell_bounds_sizes_and_whose_they_are() -> None:
    history = written(clean=False)
    directory = history.disk.directory()

    facts = list_segments(directory)

    assert [fact.base_index for fact in facts] == [int(name[4:24]) for name in names(history)]
    assert [fact.highest_index for fact in facts] == [fact.base_index for fact in facts[1:]] + [None]
    assert sum(fact.store_bytes for fact in facts) == log_bytes(directory)
    assert all(fact.index_bytes for fact in facts[:-1])
    assert {fact.cluster_id for fact in facts} == {CLUSTER_ID, stored_cluster_id(directory)}


@pytest.mark.parametrize("place", [0, 1, -2])
def test_rot_in_a_sealed_segment_is_named_with_file_position_and_records(place: int) -> None:
    history = written(clean=False)
    name = names(history)[place]
    base, following = int(name[4:24]), int(names(history)[place + 1][4:24])
    frames = [frame for frame in history.frames if base <= frame.header.index < following]
    position = 64 + frames[0].header.size
    history.disk.flip_bit(name, position + 70)

    verdict = verify(history.disk.directory())

    [fault] = [fault for fault in verdict.faults if fault.kind == "rot"]
    assert (fault.file, fault.position) == (name[4:], position)
    assert (fault.from_index, fault.to_index) == (frames[1].header.index, frames[2].header.index)
    assert len(verdict.segments) == len(names(history))


def test_every_byte_of_a_log_is_checked() -> None:
    history = written()
    for name in names(history)[:2]:
        for position in range(0, len(history.disk.content(name)), 37):
            history.disk.flip_bit(name, position)
            assert verify(history.disk.directory()).is_rotten, (name, position)
            history.disk.flip_bit(name, position)
    assert verify(history.disk.directory()).faults == []


def test_invalid_bytes_above_the_mark_are_torn_and_not_rotten() -> None:
    history = written(clean=False)
    name = names(history)[-1]
    mark = stored_mark(history.disk.directory())
    assert mark is not None
    history.disk.flip_bit(name, mark.position + 70)

    verdict = verify(history.disk.directory())

    assert [(fault.kind, fault.file, fault.position) for fault in verdict.faults] == [("torn", name[4:], mark.position)]
    history.check_reopened()
    history.close()
    assert verify(history.disk.directory()).faults == []


def test_bytes_above_the_mark_of_a_clean_stop_are_not_looked_at_as_at_an_open() -> None:
    history = written()
    disk, name = history.disk, names(history)[-1]
    mark = stored_mark(disk.directory())
    assert mark is not None
    assert mark.clean
    disk.replace(name, disk.content(name)[: mark.position] + b"\x01" * 100)

    assert verify(disk.directory()).faults == []

    log = open_log(disk)
    assert (log.torn, all_frames(log)) == (None, history.frames)


@pytest.mark.parametrize("spoil", ["other", "zeros", "longer"])
def test_an_index_that_does_not_match_is_reported_and_does_no_harm(spoil: str) -> None:
    history = written()
    name, other = names(history, ".index")[:2]
    content = history.disk.content(name)
    longer = content + content[-16:-4] + b"\xff\xff\0\0"
    history.disk.replace(name, {"other": history.disk.content(other), "zeros": bytes(64), "longer": longer}[spoil])

    verdict = verify(history.disk.directory())

    assert [(fault.kind, fault.file) for fault in verdict.faults] == [("index", name[4:])]
    assert not verdict.is_rotten


def test_a_missing_mark_or_one_that_names_a_missing_segment_is_rot() -> None:
    history = written(clean=False)
    history.disk.replace("mark", bytes(8192))
    assert [fault.file for fault in verify(history.disk.directory()).faults if fault.kind == "rot"] == ["mark"]
    history = written()
    history.disk.delete(names(history)[-1])
    assert any(fault.file == "mark" for fault in verify(history.disk.directory()).faults)


def test_invalid_bytes_at_the_end_of_a_segment_before_that_of_the_mark_are_rot_though_it_is_the_last_one_left() -> None:
    history = written(clean=False)
    *_, name, marked = names(history)
    history.disk.delete(marked)
    content = history.disk.content(name)
    history.disk.replace(name, content + b"\x01" * 100)

    verdict = verify(history.disk.directory())

    found = [(fault.kind, fault.file, fault.position) for fault in verdict.faults if fault.file.endswith(".store")]
    assert found == [("rot", name[4:], len(content))]


def test_a_missing_and_a_foreign_segment_are_rot() -> None:
    history = written(clean=False)
    history.disk.delete(names(history)[1])
    third = names(history)[1][4:]
    [fault] = [fault for fault in verify(history.disk.directory()).faults if fault.kind == "rot"]
    assert fault.file == third
    history = written(clean=False)
    foreign = Disk()
    log = open_log(foreign)
    log.append(["x"])
    log.close()
    history.disk.replace(names(history)[1], foreign.content("log/00000000000000000000.store"))
    assert verify(history.disk.directory()).is_rotten


def test_leftovers_are_reported() -> None:
    history = written()
    for name in ("7.store.new", "3.spool", "5.rewrite", "99.index"):
        number, _, suffix = name.partition(".")
        history.disk.replace(f"log/{int(number):020d}.{suffix}", b"x")
    assert [fault.kind for fault in verify(history.disk.directory()).faults] == ["leftover"] * 4


def test_frames_of_a_segment_end_at_preallocated_space_and_raise_at_rot() -> None:
    history = written(clean=False)
    directory = history.disk.directory()
    bases = [int(name[4:24]) for name in names(history)]
    found = [header for base in bases for header, _ in frames_of(directory, base)]
    assert found == [frame.header for frame in history.frames[: len(found)]]
    assert len(found) >= 40
    history.disk.flip_bit(names(history)[0], 200)
    with pytest.raises(FrameCorrupt):
        list(frames_of(directory, 0))


def test_a_spoiled_store_header_is_at_the_beginning_of_its_file() -> None:
    history = written(clean=False)
    history.disk.flip_bit(names(history)[0], 20)
    with pytest.raises(FrameCorrupt) as caught:
        list(frames_of(history.disk.directory(), 0))
    assert caught.value.position == 0


def test_a_list_of_segments_names_the_file_whose_header_is_spoiled() -> None:
    history = written(clean=False)
    spoiled = names(history)[1]
    history.disk.flip_bit(spoiled, 20)
    with pytest.raises(FrameCorrupt, match=spoiled.removeprefix("log/")):
        list_segments(history.disk.directory())
