"""Every multi-step change, stopped at every storage operation; `log/DESIGN.md` lists what must be left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.log import Kind, encode_records
from quire.log.simulated import Disk, Keep, PowerLoss
from tests.log.explorer import Steps, explore
from tests.log.histories import History, open_log


def nothing(history: History) -> None:
    """An empty log."""


def two_segments_flushed(history: History) -> None:
    history.append(20)
    history.flush()


def some_unflushed(history: History) -> None:
    two_segments_flushed(history)
    history.append(4)


def stopped_cleanly(history: History) -> None:
    some_unflushed(history)
    history.close()


def append_and_flush(history: History) -> None:
    for _ in range(4):
        history.append(2)
        history.flush()


def append_without_flush(history: History) -> None:
    history.append(9)


def sync_the_mark_between_flushes(history: History) -> None:
    for _ in range(3):
        history.append(1)
        history.flush()
        history.sync_mark()
        history.append(1)
        history.flush()


def append_while_a_flush_runs(history: History) -> None:
    for _ in range(3):
        history.append(2)
        flush = history.log.begin_flush()
        assert flush is not None
        covered = history.log.bounds.highest_index
        history.append(2)
        history.log.read_frames(covered, 10_000, unflushed=True)
        flush.run()
        history.log.end_flush(flush)
        assert history.log.durable_index == covered
        history.note_durable()


def mark_moves_while_its_sync_runs(history: History) -> None:
    for _ in range(3):
        history.append(1)
        history.flush()
        sync = history.log.mark_sync.begin()
        assert sync is not None
        history.append(1)
        history.flush()
        sync.run()
        history.log.mark_sync.end(sync)
        history.append(1)
        history.flush()


def rotate(history: History) -> None:
    history.append(30)


def rotate_after_flush(history: History) -> None:
    for _ in range(6):
        history.append(5)
        history.flush()


def truncate_in_the_write_segment(history: History) -> None:
    history.truncate(len(history.frames) - 2)
    history.append(3)
    history.flush()


def truncate_over_segments(history: History) -> None:
    history.append(40)
    history.truncate(9)
    history.append(3)
    history.flush()


def truncate_to_a_segment_boundary(history: History) -> None:
    base = history.log.segments.bases[-1]
    history.truncate(next(k for k, frame in enumerate(history.frames) if frame.header.index == base))
    history.append(3)


def truncate_everything(history: History) -> None:
    history.append(20)
    history.truncate(0)
    history.append(2)
    history.flush()


def truncate_twice(history: History) -> None:
    history.truncate(15)
    history.append(10)
    history.flush()
    history.truncate(12)


def append_the_same_frames_after_a_truncation(history: History) -> None:
    # A retry sends the very bytes that were cut: the old tail after them must not come back.
    raw, _ = history.log.read_frames(history.frames[-6].header.index, 1 << 20, unflushed=True)
    again = history.frames[-6]
    history.truncate(len(history.frames) - 6)
    history.log.append_frames(raw[: again.header.size])
    history.frames.append(again)
    history.flush()


def truncate_inside_a_frame(history: History) -> None:
    place = next(k for k in range(len(history.frames) - 3, 0, -1) if history.frames[k].header.count == 3)
    history.truncate_inside(place, 2)
    history.append(3)
    history.flush()


def truncate_inside_frames_over_segments(history: History) -> None:
    history.append(30)
    place = next(k for k in range(3, len(history.frames)) if history.frames[k].header.count == 3)
    history.truncate_inside(place, 2)
    history.truncate_inside(place, 1)
    history.append(3)


def append_streams(history: History) -> None:
    history.append_stream(1000)
    history.append(1)
    history.append_stream(1500)
    history.flush()
    history.append_stream(700)


def expire_some(history: History) -> None:
    history.append(30)
    history.flush()
    assert history.expire(3000) > 5
    history.append(3)
    history.flush()


def expire_everything_and_append(history: History) -> None:
    history.append(40)
    assert history.expire(0) > 5
    history.append(5)
    history.flush()
    history.expire(0)
    history.sync_mark()


def expire_before_a_flush(history: History) -> None:
    history.append(30)
    history.expire(0)
    history.append(20)
    history.expire(0)


def stop_cleanly(history: History) -> None:
    history.append(2)
    history.close()


def stop_and_start(history: History) -> None:
    history.append(2)
    history.close()
    history.open()
    history.append(2)
    history.flush()


CHANGES = [
    (prepare, steps)
    for prepare in (nothing, two_segments_flushed, some_unflushed)
    for steps in (
        append_and_flush,
        append_without_flush,
        sync_the_mark_between_flushes,
        append_while_a_flush_runs,
        mark_moves_while_its_sync_runs,
        rotate,
        rotate_after_flush,
        truncate_over_segments,
        truncate_everything,
        append_streams,
        expire_some,
        expire_everything_and_append,
        expire_before_a_flush,
        stop_cleanly,
        stop_and_start,
    )
]
TRUNCATIONS = [
    (prepare, steps)
    for prepare in (two_segments_flushed, some_unflushed)
    for steps in (
        truncate_in_the_write_segment,
        truncate_to_a_segment_boundary,
        truncate_twice,
        append_the_same_frames_after_a_truncation,
        truncate_inside_a_frame,
        truncate_inside_frames_over_segments,
    )
]
EXPLORATIONS = CHANGES + TRUNCATIONS


def explorations(of: Sequence[tuple[Steps, Steps]], *, quick: Steps) -> pytest.MarkDecorator:
    """Parameters of a test: `make check` runs those prepared by `quick`, `make test` also a third of the others."""
    others = [pytest.mark.slow, pytest.mark.full, pytest.mark.full]
    return pytest.mark.parametrize(
        ("prepare", "steps"),
        [pytest.param(*each, marks=[] if each[0] is quick else [others[number % 3]]) for number, each in enumerate(of)],
        ids=lambda steps: steps.__name__,
    )


@explorations(CHANGES, quick=nothing)
def test_a_crash_at_any_operation_leaves_every_durable_frame_and_none_that_was_cut(
    prepare: Steps, steps: Steps
) -> None:
    assert explore(prepare, steps) >= 5


@explorations(TRUNCATIONS, quick=two_segments_flushed)
@pytest.mark.slow
def test_a_crash_at_any_operation_of_a_truncation_leaves_a_log_between_before_and_after(
    prepare: Steps, steps: Steps
) -> None:
    assert explore(prepare, steps) >= 5


def test_a_log_that_is_stopped_at_any_operation_of_its_creation_is_created_at_the_next_open() -> None:
    for keep in Keep:
        for seed in range(10):
            stop = 0
            while True:
                stop += 1
                disk = Disk(seed=seed * 1000 + stop)
                disk.on_power_loss = keep
                disk.stop_before = stop
                try:
                    open_log(disk, initial_index=7)
                except PowerLoss:
                    log = open_log(disk, initial_index=7)
                    assert log.bounds == (7, 7)
                    log.append(["first"])
                    log.close()
                    assert open_log(disk).read(7).value == "first"
                    continue
                break


def test_a_log_that_is_stopped_at_any_operation_of_its_removal_still_opens() -> None:
    for keep in Keep:
        for seed in range(5):
            stop = 0
            while True:
                stop += 1
                history = History(Disk(seed=seed * 1000 + stop))
                history.open()
                two_segments_flushed(history)
                history.disk.on_power_loss = keep
                history.disk.stop_before = history.disk.operations + stop
                try:
                    history.log.remove()
                except PowerLoss:
                    history.least = 0
                    history.check_reopened()
                    continue
                assert history.disk.names() == ["log"]
                assert history.disk.names("log") == []
                break


def test_a_truncation_lowers_the_mark_first_then_removes_from_the_end_then_syncs_the_folder_then_cuts() -> None:
    history = History(Disk())
    history.open()
    history.append(40)
    history.flush()
    before = len(history.disk.journal)
    first_base = history.log.segments.bases[1]
    history.truncate(5)
    steps = [step for step in history.disk.journal[before:] if step != ("write", "mark")]
    store = "00000000000000000000.store"
    removed = [name for operation, name in steps if operation == "remove"]
    assert steps[0] == ("sync", "mark")
    stores = [name for name in removed if name.endswith(".store")]
    assert stores == sorted(stores, reverse=True)
    assert int(stores[-1].removesuffix(".store")) == first_base
    assert steps[1 + len(removed) :] == [
        ("sync folder", "disk/log"),
        ("truncate", store),
        ("sync", store),
        ("allocate", store),
    ]


def test_a_rotation_seals_the_old_store_and_the_mark_before_the_new_one_has_its_name() -> None:
    history = History(Disk())
    history.open()
    before = 0
    while len(history.log.segments.bases) == 1:
        before = len(history.disk.journal)
        history.append(1)
    new = history.log.segments.bases[-1]
    unfinished = f"{new:020d}.store.new"
    old = "00000000000000000000.store"
    steps = [step for step in history.disk.journal[before:] if not step[1].endswith(".index")]
    steps = [step for step in steps if step != ("write", old)]
    assert steps == [
        ("create", unfinished),
        ("allocate", unfinished),
        ("write", unfinished),
        ("sync", unfinished),
        ("sync", old),
        ("write", "mark"),
        ("sync", "mark"),
        ("truncate", old),
        ("sync", old),
        ("rename", unfinished),
        ("sync folder", "disk/log"),
    ]


def test_after_a_failed_flush_and_a_restart_what_is_kept_is_written_again_and_survives_a_power_loss() -> None:
    for seed in range(20):
        history = History(Disk(seed=seed))
        history.open()
        history.append(3)
        history.flush()
        history.append(5)
        history.disk.failing = lambda operation, name: operation == "sync" and name.endswith(".store")
        flush = history.log.begin_flush()
        assert flush is not None
        with pytest.raises(OSError, match="injected"):
            flush.run()
        history.log.end_flush(flush, OSError("injected"))
        history.disk.failing = None
        # The page cache looks clean: a restart finds every frame, and must make them durable.
        history.check_reopened()
        assert len(history.frames) == 8
        history.disk.lose_power(Keep.NOTHING)
        history.check_reopened()
        assert len(history.frames) == 8


def test_a_kill_keeps_what_was_written_and_the_next_open_makes_it_durable() -> None:
    history = History(Disk())
    history.open()
    history.append(6)
    history.log.begin_flush()
    history.check_reopened()
    assert len(history.frames) == 6
    history.disk.lose_power(Keep.NOTHING)
    history.check_reopened()
    assert len(history.frames) == 6


def test_the_winning_mark_is_written_again_and_synced_before_anything_else_changes() -> None:
    history = History(Disk())
    history.open()
    history.append(6)
    history.flush()
    before = len(history.disk.journal)
    history.open()
    assert history.disk.journal[before : before + 2] == [("write", "mark"), ("sync", "mark")]


def test_clean_is_cleared_and_synced_at_open() -> None:
    history = History(Disk())
    history.open()
    history.append(6)
    history.close()
    history.open()
    history.disk.lose_power(Keep.NOTHING)
    before = len(history.disk.journal)
    history.check_reopened()
    store = "00000000000000000000.store"
    assert ("truncate", store) in history.disk.journal[before:], "the open after a power loss trusted `clean`"


def test_everything_from_the_first_invalid_frame_above_the_mark_is_cut_valid_or_not() -> None:
    disk = Disk()
    log = open_log(disk)
    headers = [log.append_payload(encode_records([str(k) * 50]), count=1, kind=Kind.RECORDS, epoch=0) for k in range(6)]
    log.begin_flush()
    position = 64 + sum(header.size for header in headers[:3])
    disk.flip_bit("log/00000000000000000000.store", position + 70)
    log = open_log(disk)
    assert log.bounds == (0, 3)
    log = open_log(disk)
    assert log.bounds == (0, 3)
