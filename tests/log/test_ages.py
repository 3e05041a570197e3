"""How old a log's records are by clocks of which none is trusted alone."""

from __future__ import annotations

import time

import pytest

from quire.log import FLUSH_NEVER, Ages, Log, LogOptions, time_since_boot
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, SMALL

SECOND = 1_000_000
HOUR = 3_600 * SECOND
TEN_YEARS = 10 * 365 * 24 * HOUR
START = 1_700_000_000 * SECOND


class Machine:
    """A machine's wall clock, which may be set, and its time since boot; and a log on its disk."""

    def __init__(self, disk: Disk | None = None, options: LogOptions = SMALL) -> None:
        self.disk = disk or Disk()
        self.clock = START
        self.booted = 5 * HOUR
        self.options = options
        self.open()

    def open(self) -> None:
        """Open the log as a new process does."""
        self.log = Log.open(
            self.disk.directory(), self.options, cluster_id=CLUSTER_ID, clock=lambda: self.clock, standalone=True
        )
        self.ages: Ages = self.log.expiry.ages(lambda: self.clock, lambda: self.booted)

    def restart(self) -> None:
        """End the process and begin another one."""
        self.log.close()
        self.open()

    def wait(self, duration: int) -> None:
        """Let time pass on both clocks."""
        self.clock += duration
        self.booted += duration

    def append(self, frames: int = 1, *, every: int = 0) -> None:
        """Append frames, flush each, and look."""
        for _ in range(frames):
            self.wait(every)
            self.log.append(["x" * 100])
            self.log.flush()
            self.look()

    def look(self, age: int = HOUR) -> int:
        """The index below which everything is older than `age`."""
        return self.ages.aged_to(age)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_segment_is_old_when_its_last_frame_is_older_than_the_age_and_not_at_it(restarted: bool) -> None:
    machine = Machine()
    machine.append(60, every=SECOND)
    if restarted:
        machine.restart()
    bases = list(machine.log.segments.bases)
    # Frame k is from second k + 1, and was seen then: the last frame of the second segment is from second bases[2].
    machine.wait(HOUR - (60 - bases[2]) * SECOND)

    assert machine.look(HOUR) == bases[1]
    machine.wait(2 * SECOND)
    assert machine.look(HOUR) >= bases[2]


def test_no_age_is_too_old_without_a_limit() -> None:
    machine = Machine()
    machine.append(60)
    machine.wait(TEN_YEARS)
    assert machine.ages.aged_to(None) == 0
    assert not machine.ages.rotate(None, None)


def test_a_look_ten_years_ahead_finds_nothing_old_that_is_seconds_old() -> None:
    machine = Machine()
    machine.append(100, every=SECOND // 10)
    assert len(machine.log.segments.bases) > 3

    machine.clock += TEN_YEARS

    assert machine.look() == 0
    machine.restart()
    assert machine.look() == 0


def test_an_append_ten_years_ahead_makes_nothing_old_that_is_seconds_old() -> None:
    machine = Machine()
    machine.append(30)
    machine.restart()
    machine.append(30)

    machine.clock += TEN_YEARS
    machine.append(30)

    assert machine.look() == 0
    machine.clock -= TEN_YEARS
    machine.restart()
    assert machine.look() == 0


def test_no_timestamp_makes_old_what_was_there_before_this_process_and_is_seconds_old() -> None:
    machine = Machine()
    machine.append(60, every=SECOND)
    machine.restart()
    assert len(machine.log.segments.bases) > 3

    machine.clock += TEN_YEARS
    machine.append()

    assert machine.look() == 0
    assert not machine.ages.rotate(HOUR, None)


def test_old_records_that_came_while_this_process_ran_stay_for_the_age() -> None:
    machine = Machine()
    machine.append()
    machine.restart()
    machine.wait(HOUR - SECOND)
    machine.clock -= HOUR
    machine.append(60)  # As when a follower catches up: they were stamped an hour ago.
    machine.clock += HOUR
    base = machine.log.segments.bases[-1]

    machine.wait(2 * SECOND)
    assert machine.look() == 0

    machine.wait(HOUR)
    assert machine.look() == base


def test_an_append_ten_years_ahead_does_not_keep_records_for_ten_years() -> None:
    machine = Machine()
    machine.clock += TEN_YEARS
    machine.append(30)
    machine.clock -= TEN_YEARS
    machine.append(30)
    base = machine.log.segments.bases[-1]

    machine.wait(HOUR + 1)

    assert machine.look() == base


def test_frames_of_a_clock_that_was_ten_years_behind_are_not_old_once_it_is_set_right() -> None:
    machine = Machine()
    machine.append(10)
    machine.clock -= TEN_YEARS
    machine.restart()
    machine.wait(8 * HOUR)
    machine.append(60)
    young = machine.log.segments.bases[1]

    machine.clock += TEN_YEARS

    assert machine.look() <= young


def test_the_time_for_which_a_process_was_down_does_not_count() -> None:
    machine = Machine()
    machine.append(60)
    machine.wait(8 * HOUR)
    machine.restart()

    machine.append()

    assert machine.look() == 0
    machine.wait(HOUR + 1)
    assert machine.look() == machine.log.segments.bases[-1]


def test_after_a_truncation_what_is_written_in_place_of_old_frames_is_not_old() -> None:
    machine = Machine()
    machine.append(60)
    machine.wait(HOUR - SECOND)
    machine.look()

    machine.log.truncate(machine.log.segments.bases[1])
    for _ in range(60):
        machine.log.append(["y" * 100])
    machine.log.flush()
    machine.wait(2 * SECOND)

    assert machine.look() == 0


def test_after_a_truncation_old_stamps_make_nothing_old_that_came_in_place_of_what_was_there_at_the_start() -> None:
    machine = Machine()
    machine.append(60)
    machine.restart()
    cut = machine.log.segments.bases[1]
    machine.log.truncate(cut)
    machine.look()
    machine.wait(HOUR - SECOND)
    machine.clock -= HOUR - SECOND
    machine.append(60)  # As when a follower catches up: they were stamped an hour ago.
    machine.clock += HOUR - SECOND

    machine.wait(2 * SECOND)

    assert machine.look() <= cut
    machine.wait(HOUR)
    assert machine.look() == machine.log.segments.bases[-1]


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("options", [SMALL, LogOptions(flush_policy=FLUSH_NEVER)])
def test_a_quiet_write_segment_is_rotated_so_that_its_records_expire(restarted: bool, options: LogOptions) -> None:
    machine = Machine(options=options)
    machine.append(3)
    if restarted:
        machine.restart()
    machine.wait(HOUR)
    assert not machine.ages.rotate(HOUR, None)
    machine.wait(1)

    assert machine.ages.rotate(HOUR, None)

    assert list(machine.log.segments.bases) == [0, 3]
    machine.wait(2 * HOUR)
    assert not machine.ages.rotate(HOUR, None)  # It is empty.
    machine.append()
    assert machine.log.expiry.remove(aged_to=machine.look()) == 1
    assert machine.log.bounds == (3, 4)


def test_a_write_segment_whose_frames_came_in_place_of_others_is_rotated_when_it_was_held_for_the_age() -> None:
    machine = Machine()
    machine.append(60)
    machine.wait(2 * HOUR)
    machine.append()
    machine.restart()
    machine.wait(2 * HOUR)
    machine.look()
    cut = machine.log.segments.bases[-1]

    machine.log.truncate(cut)
    machine.clock -= 4 * HOUR
    machine.log.append(["y" * 100])
    machine.log.flush()
    machine.clock += 4 * HOUR

    assert not machine.ages.rotate(HOUR, None)
    machine.wait(HOUR)
    assert not machine.ages.rotate(HOUR, None)
    machine.wait(1)
    assert machine.ages.rotate(HOUR, None)


def test_a_write_segment_of_which_nothing_may_expire_is_not_rotated() -> None:
    machine = Machine()
    machine.append(60)
    base = machine.log.segments.bases[-1]
    machine.wait(2 * HOUR)

    assert not machine.ages.rotate(HOUR, base)
    assert machine.ages.rotate(HOUR, base + 1)


def test_a_write_segment_with_unflushed_frames_is_not_rotated() -> None:
    machine = Machine()
    machine.append(3)
    machine.wait(2 * HOUR)
    machine.log.append(["unflushed"])

    assert not machine.ages.rotate(HOUR, None)

    machine.log.flush()
    assert machine.ages.rotate(HOUR, None)


def test_a_full_disk_puts_the_rotation_off() -> None:
    machine = Machine()
    machine.append(3)
    machine.wait(2 * HOUR)
    machine.disk.full = True

    assert not machine.ages.rotate(HOUR, None)

    assert machine.log.failure is None
    machine.disk.full = False
    assert machine.ages.rotate(HOUR, None)


def test_time_since_boot_counts_what_a_machine_was_suspended_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_MONOTONIC: 7_000_000, time.CLOCK_BOOTTIME: 7_000_000}
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    before = time_since_boot()

    clocks[time.CLOCK_BOOTTIME] += HOUR * 1_000  # Suspended: CLOCK_MONOTONIC stands.

    assert time_since_boot() - before == HOUR


def test_what_one_clock_stamped_before_a_restart_is_rotated_by_its_stamps() -> None:
    machine = Machine()
    machine.append(2, every=HOUR * 2 // 3)
    machine.restart()
    assert not machine.ages.rotate(HOUR, None)
    machine.wait(HOUR // 2)  # The first frame is older than an hour. The log was opened half an hour ago.
    assert machine.ages.rotate(HOUR, None)
