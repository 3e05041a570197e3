"""Bugs that are planted here one by one; the tests that look for them must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import quire.log.change.append
import quire.log.change.expiry
import quire.log.change.reset
import quire.log.change.rewrite
import quire.log.change.truncation
from quire.log import Expiry, Log, LogError, Tail
from quire.log.frames import FrameHeader
from quire.log.segment.index import FrameIndex
from quire.log.simulated.faulty import FaultyDirectory, FaultyStorage
from quire.log.state import LogState
from tests.log import test_crashes, test_expiry, test_log, test_open, test_reset
from tests.log.explorer import Steps, explore

Patch = pytest.MonkeyPatch


def index_off_by_one(patch: Patch) -> None:
    original = FrameIndex.add
    patch.setattr(FrameIndex, "add", lambda self, crc, index, *rest: original(self, crc, index + 1, *rest))


def chain_not_checked(patch: Patch) -> None:
    def unchecked(_tail: Tail, header: FrameHeader) -> Tail:
        return Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)

    patch.setattr(quire.log.change.append, "follow", unchecked)


def unsynced(patch: Patch, module: Any, name: str) -> None:
    """Make a function of a module run without its syncs of the folder."""
    original: Callable[..., Any] = getattr(module, name)

    def planted(*arguments: Any) -> Any:
        with Patch.context() as inside:
            inside.setattr(FaultyDirectory, "sync", lambda self: None)
            return original(*arguments)

    patch.setattr(module, name, planted)


def truncate_before_the_folder_is_synced(patch: Patch) -> None:
    unsynced(patch, quire.log.change.truncation, "_remove_segments_after")


def expiry_without_syncing_the_folder(patch: Patch) -> None:
    original = Expiry.run

    def planted(expiry: Expiry) -> None:
        with Patch.context() as inside:
            inside.setattr(FaultyDirectory, "sync", lambda self: None)
            original(expiry)

    patch.setattr(Expiry, "run", planted)


def expiry_without_moving_the_mark(patch: Patch) -> None:
    patch.setattr(quire.log.change.expiry, "_mark_is_behind", lambda _state: False)


def expiry_past_the_floor(patch: Patch) -> None:
    original = quire.log.change.expiry.count_due

    def planted(state: LogState, aged_to: int, max_bytes: int | None, floor: int | None) -> int:
        return original(state, aged_to, max_bytes, None if floor is None else floor + 1)

    patch.setattr(quire.log.change.expiry, "count_due", planted)


def visible_before_flushed(patch: Patch) -> None:
    patch.setattr(LogState, "readable_index", property(lambda self: self.tail.index))


def mark_before_flush(patch: Patch) -> None:
    original = Log.flush

    def planted(log: Log) -> None:
        state: LogState = vars(log)["_state"]
        state.mark.write(state.next_mark()._replace(durable_index=state.tail.index, position=state.writer.segment.end))
        original(log)

    patch.setattr(Log, "flush", planted)


def rewrite_without_setting_the_frame_aside(patch: Patch) -> None:
    unsynced(patch, quire.log.change.rewrite, "set_aside")


def reset_without_syncing_the_folder(patch: Patch) -> None:
    unsynced(patch, quire.log.change.reset, "reset_to")
    patch.setattr("quire.log.log.reset_to", quire.log.change.reset.reset_to)


def nothing_is_ever_synced(patch: Patch) -> None:
    patch.setattr(FaultyStorage, "sync", lambda self: None)


def clean_after_rot(patch: Patch) -> None:
    patch.setattr(LogState, "is_rotten", property(lambda self: False, lambda self, value: None), raising=False)


def run_histories(*steps: Steps) -> Callable[[], None]:
    def check() -> None:
        for step in steps:
            explore(test_crashes.two_segments_flushed, step, outcomes=64)

    return check


def frames_that_do_not_follow() -> None:
    test_log.test_raw_frames_that_do_not_follow_are_refused_whole({"prev_crc32c": 1}, "prev_crc32c")


def rot_then_a_stop() -> None:
    test_open.test_a_log_that_found_rot_does_not_mark_a_clean_stop("read")


PLANTED = [
    (index_off_by_one, test_log.test_append_returns_the_index_of_the_first_record_and_read_finds_each),
    (chain_not_checked, frames_that_do_not_follow),
    (truncate_before_the_folder_is_synced, run_histories(test_crashes.truncate_over_segments)),
    (expiry_without_syncing_the_folder, run_histories(test_crashes.expire_some)),
    (expiry_without_moving_the_mark, run_histories(test_crashes.expire_everything_and_append)),
    (expiry_past_the_floor, test_expiry.test_nothing_at_or_above_the_floor_expires),
    (visible_before_flushed, test_log.test_an_unflushed_record_is_not_readable_but_the_replication_stream_may_ship_it),
    (mark_before_flush, run_histories(test_crashes.append_and_flush)),
    (rewrite_without_setting_the_frame_aside, run_histories(test_crashes.truncate_inside_a_frame)),
    (reset_without_syncing_the_folder, run_histories(test_reset.reset_after_a_snapshot)),
    (nothing_is_ever_synced, run_histories(test_crashes.append_and_flush)),
    (clean_after_rot, rot_then_a_stop),
]


LONG = {truncate_before_the_folder_is_synced, expiry_without_moving_the_mark}
"""They are found after most of a step's histories, like expiry_without_syncing_the_folder."""


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        pytest.param(plant, check, id=plant.__name__, marks=pytest.mark.full if plant in LONG else pytest.mark.slow)
        for plant, check in PLANTED
    ],
)
def test_a_planted_bug_is_caught(plant: Callable[[Patch], None], check: Callable[[], None]) -> None:
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, LogError, pytest.fail.Exception)):
            check()


def test_what_looks_for_planted_bugs_passes_without_them() -> None:
    for _, check in PLANTED:
        if not check.__qualname__.startswith("run_histories"):
            check()
