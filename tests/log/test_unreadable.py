"""A byte that the device does not give is rot as a wrong byte is: named, and no more is lost than its frame."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from quire.log import (
    FileDirectory,
    FrameCorrupt,
    Log,
    LogOptions,
    LogReadOnly,
    LogRotten,
    Side,
    Unreadable,
    frames_of,
    plan_repair,
    repair,
    stored_mark,
    verify,
    walk_frames,
)
from quire.log.segment.survey import Survey
from quire.log.simulated import Disk
from quire.log.storage import Storage
from tests.log.histories import CLUSTER_ID, Clock, History, all_frames, names, open_log, written
from tests.log.sectors import PAGE_BYTES, Sectors


def place(history: History, segment: int, frame: int) -> tuple[str, int, int]:
    """The store of a segment, the position of one of its frames, and that frame's place in the history."""
    name = names(history)[segment]
    base = int(name[4:24])
    first = next(k for k, found in enumerate(history.frames) if found.header.index >= base)
    position = 64 + sum(found.header.size for found in history.frames[first : first + frame])
    return name, position, first + frame


@pytest.mark.parametrize("inside", [0, 70])  # Of the header, and of the payload.
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_read_names_the_frame_and_all_others_are_read(segment: int, inside: int) -> None:
    history = written()
    name, position, spoiled = place(history, segment, 1)
    log = open_log(history.disk)
    history.disk.make_unreadable(name, position + inside, 8)

    for number, frame in enumerate(history.frames):
        if number != spoiled:
            assert log.reader.frame(frame.header.index) == frame
            assert log.read_frames(frame.header.index, 1)[1] == frame.header.next_index
            continue
        for read in (log.read, lambda index: log.read_frames(index, 1), log.reader.header, log.reader.value_stream):
            if inside and read == log.reader.header:
                continue  # It is whole.
            with pytest.raises(FrameCorrupt, match=f"{name[4:]} is corrupt at byte {position}: input.output error"):
                read(frame.header.index)

    assert log.reader.rot.startswith(f"{name[4:]} is corrupt at byte {position}")
    shipped, index = log.read_frames(0, 1 << 20)
    assert index > 0
    assert shipped


def test_a_log_that_found_unreadable_bytes_does_not_mark_a_clean_stop() -> None:
    history = written()
    name, position, spoiled = place(history, 0, 1)
    log = open_log(history.disk)
    history.disk.make_unreadable(name, position)
    with suppress(FrameCorrupt):
        log.read(history.frames[spoiled].header.index)

    log.close()

    mark = stored_mark(history.disk.directory())
    assert mark is not None
    assert not mark.clean


def test_a_blob_names_its_frame() -> None:
    history = History(Disk())
    history.open()
    history.append_stream(900)
    history.flush()
    history.disk.make_unreadable(names(history)[0], 500, 8)

    with pytest.raises(FrameCorrupt, match="is corrupt at byte 64: input/output error at byte 500"):
        history.log.reader.value_stream(0).verify()


@pytest.mark.parametrize("position", [0, 16, 40])
@pytest.mark.parametrize("reopens", [True, False])
def test_an_index_file_is_made_again(position: int, reopens: bool) -> None:
    history = written()
    log = open_log(history.disk)
    history.disk.make_unreadable(names(history, ".index")[0], position)
    if reopens:
        log.close()
        log = open_log(history.disk)

    assert [log.reader.frame(frame.header.index) for frame in history.frames] == history.frames
    log.close()
    assert verify(history.disk.directory()).faults == []


@pytest.mark.parametrize("clean", [True, False])
def test_below_the_mark_an_open_refuses_and_names_it(clean: bool) -> None:
    history = written(clean=clean)
    name, position, _ = place(history, -1, 0)
    history.disk.make_unreadable(name, position, 8)

    with pytest.raises(LogRotten, match=rf"{name[4:]} is rotten at byte {position}: .*error at byte {position}"):
        open_log(history.disk)


@pytest.mark.parametrize("inside", [0, 70])
def test_above_the_mark_nothing_is_cut_for_it(inside: int) -> None:
    history = written(clean=False)
    name, mark = names(history)[-1], stored_mark(history.disk.directory())
    assert mark is not None
    before = history.disk.content(name)
    history.disk.make_unreadable(name, mark.position + inside, 8)

    with pytest.raises(LogRotten, match=f"{name[4:]} is rotten at byte {mark.position}: .*input/output error at byte"):
        open_log(history.disk)

    assert history.disk.content(name) == before
    [fault] = verify(history.disk.directory()).faults
    assert (fault.kind, fault.file, fault.position) == ("rot", name[4:], mark.position)


@pytest.mark.parametrize("name", ["mark", "header"])
def test_an_open_names_the_mark_and_a_header(name: str) -> None:
    history = written()
    path = "mark" if name == "mark" else names(history)[0]
    history.disk.make_unreadable(path, 0, 8)

    with pytest.raises(LogRotten, match=f"{path.removeprefix('log/')} is rotten at byte 0: input.output error at"):
        open_log(history.disk)


@pytest.mark.parametrize("inside", [0, 70])
def test_verify_goes_on_with_the_next_frame(inside: int) -> None:
    history = written()
    name, position, spoiled = place(history, 0, 1)
    later, later_position, later_spoiled = place(history, 1, 2)
    history.disk.make_unreadable(name, position + inside, 8)
    history.disk.make_unreadable(later, later_position + 70, 8)

    verdict = verify(history.disk.directory())

    frames = history.frames
    expected = [(name, position, spoiled), (later, later_position, later_spoiled)]
    for fault, (file, at, number) in zip(verdict.faults, expected, strict=True):
        assert (fault.kind, fault.file, fault.position) == ("rot", file[4:], at)
        assert "input/output error at byte" in fault.reason
        assert fault.from_index == frames[number].header.index
        # Without the header, the index file leads to a later frame.
        assert fault.to_index is not None
        assert fault.to_index == frames[number + 1].header.index or (file == name and not inside)
    with pytest.raises(FrameCorrupt, match=rf"{name[4:]} is corrupt .* input/output error at byte {position + inside}"):
        list(frames_of(history.disk.directory(), 0))


def test_verify_names_each_rotten_frame_of_a_segment() -> None:
    history = written()
    name, first, spoiled = place(history, 0, 1)
    _, second, later = place(history, 0, 3)
    history.disk.make_unreadable(name, first + 70, 8)
    history.disk.flip_bit(name, second + 70)

    faults = verify(history.disk.directory()).faults

    assert [(fault.position, fault.from_index, fault.to_index) for fault in faults] == [
        (first, history.frames[spoiled].header.index, history.frames[spoiled + 1].header.index),
        (second, history.frames[later].header.index, history.frames[later + 1].header.index),
    ]


@pytest.mark.parametrize("side", ["before", "after"])
def test_repair_sets_it_aside_and_the_log_opens(side: Side) -> None:
    history = written()
    name, position, spoiled = place(history, 1, 1)
    content = history.disk.content(name)
    history.disk.make_unreadable(name, position + 70, 8)
    directory = history.disk.directory()
    plan = plan_repair(verify(directory), side)

    done = repair(directory, plan)

    found = all_frames(open_log(history.disk))
    kept = [frame for frame in history.frames if plan.kept_from <= frame.header.index < plan.kept_to]
    assert found == kept
    assert history.frames[spoiled] not in found
    start = position if side == "before" else 0
    [aside] = [file for file in done.files if file.startswith(name[4:])]
    copied = history.disk.content(f"{done.folder}/{aside}")
    unread = position + 70 - start
    assert copied[:unread] == content[start : position + 70]
    assert not copied[unread : unread + PAGE_BYTES].strip(b"\0"), "to the end of the page"


def test_a_mark_that_cannot_be_read_is_written_anew() -> None:
    history = written()
    history.disk.make_unreadable("mark", 0, 64)
    directory = history.disk.directory()
    verdict = verify(directory)
    assert [(fault.kind, fault.file) for fault in verdict.faults] == [("rot", "mark")]

    repair(directory, plan_repair(verdict, "before"))

    assert all_frames(open_log(history.disk)) == history.frames


def test_a_truncation_changes_nothing_and_names_it() -> None:
    history = written()
    name, position, spoiled = place(history, 0, 1)
    log = open_log(history.disk)
    history.disk.make_unreadable(name, position, 8)

    with pytest.raises(FrameCorrupt, match=f"{name[4:]} is corrupt at byte {position}"):
        log.truncate(history.frames[spoiled + 1].header.index)


def test_a_spooled_value_that_cannot_be_read_ends_all_writing() -> None:
    history = History(Disk())
    history.open()
    history.disk.failing = lambda operation, name: operation == "read" and name.endswith(".spool")
    with pytest.raises(LogReadOnly, match="injected"):
        history.append_stream(2000)


def test_a_file_names_itself_and_the_first_byte_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = FileDirectory(tmp_path)
    file = directory.create("f")
    file.write_at(0, bytes(range(256)) * 64)
    monkeypatch.setattr(os, "pread", Sectors(tmp_path / "f", 8192).pread)

    assert file.read_at(100, 50) == bytes(range(100, 150))
    with pytest.raises(Unreadable) as failed:
        file.read_at(8000, 1000)

    assert str(failed.value) == f"{tmp_path}/f cannot be read: input/output error at byte 8192"
    assert (failed.value.position, len(failed.value.before)) == (8192, 192)
    assert failed.value.errno == errno.EIO
    file.close()


def test_files_of_a_real_folder_are_verified_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _opened(tmp_path)
    for number in range(12):
        log.append([f"{number}" * 1000])
    log.close()
    store = tmp_path / "log" / f"{0:020d}.store"
    monkeypatch.setattr(os, "pread", Sectors(store, PAGE_BYTES).pread)

    with pytest.raises(LogRotten, match=f"{store.name} is rotten at byte .*input/output error at byte"):
        _opened(tmp_path)
    directory = FileDirectory(tmp_path)
    verdict = verify(directory)
    assert "input/output error" in verdict.faults[0].reason
    repair(directory, plan_repair(verdict, "before"))

    log = _opened(tmp_path)
    assert log.bounds.highest_index == verdict.faults[0].from_index
    log.close()


def _opened(path: Path) -> Log:
    options = LogOptions(segment_bytes=1 << 16)
    return Log.open(FileDirectory(path), options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)


@pytest.mark.parametrize("how", [Disk.make_unreadable, Disk.flip_bit])
def test_a_read_returns_the_frames_before_the_rotten_one(how: Callable[[Disk, str, int], None]) -> None:
    history = written()
    name, position, spoiled = place(history, 1, 3)
    log = open_log(history.disk)
    how(history.disk, name, position + 70)

    begin = history.frames[spoiled - 2].header.index
    raw, reached = log.read_frames(begin, 1 << 20)

    assert (list(walk_frames(raw)), reached) == (
        history.frames[spoiled - 2 : spoiled],
        history.frames[spoiled].header.index,
    )
    with pytest.raises(FrameCorrupt):
        log.read_frames(reached, 1 << 20)
    assert log.reader.rot.startswith(f"{name[4:]} is corrupt at byte {position}")


def test_a_segment_whose_index_cannot_be_made_again_is_walked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    history, surveys = written(), list[int]()
    name, position, spoiled = place(history, 1, 0)
    log = open_log(history.disk)
    history.disk.flip_bit(name, position)  # Of the crc that the index names.
    glance = Survey.glance

    def counted(survey: Survey, store: Storage, end: int) -> None:
        surveys.append(end)
        glance(survey, store, end)

    monkeypatch.setattr(Survey, "glance", counted)
    index = history.frames[spoiled].header.index

    said = set()
    for _ in range(3):
        with pytest.raises(FrameCorrupt) as found:
            log.read(index)
        said.add(str(found.value))

    assert (len(surveys), len(said)) == (1, 1)
