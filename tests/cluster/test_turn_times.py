"""The turns of the loop: which ones count as long, and what is reported about them."""

import asyncio
import gc
import inspect
import signal
import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from quire.cluster.node import turn_times
from quire.cluster.node.turn_times import BLOCKED_S, LOG_INTERVAL_S, LONG_S, PERIOD_S, READ_S, TurnTimes, what_runs
from quire.replication import next_tick


class Clocks:
    """A clock, and the processor time of the loop's thread."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 5.0
        self.starved = 7.0

    def turns(self, *, ready: bool = True) -> TurnTimes:
        turns = TurnTimes(lambda: self.now, lambda: self.used, lambda: self.starved)
        turns.start(lambda: ready)
        self.passes(turns, PERIOD_S, 0.0)
        return turns

    def passes(self, turns: TurnTimes, wall_s: float, cpu_s: float) -> None:
        """So long until the next look."""
        self.now, self.used = self.now + wall_s, self.used + cpu_s
        turns.look()


def of_turns(entries: list[Any]) -> list[Any]:
    return [entry for entry in entries if entry["event"].startswith("long turn")]


@pytest.mark.asyncio
async def test_a_long_turn_is_told_by_its_processor_time_and_what_a_pause_took_is_none() -> None:
    clocks, entries = Clocks(), list[Any]()
    turns = clocks.turns()
    try:
        with capture_logs() as entries:
            clocks.passes(turns, 60.0, 0.001)  # Paused.
            clocks.passes(turns, 0.02, LONG_S)  # May have been several turns of less than a period.
            assert of_turns(entries) == []
            clocks.passes(turns, 3.0, 0.4)
        assert [(entry["cpu_ms"], entry["wall_ms"]) for entry in of_turns(entries)] == [(390, 3000)]
        assert turns.longest.cpu_s == pytest.approx(0.39)
    finally:
        turns.stop()


@pytest.mark.asyncio
async def test_of_many_long_turns_in_a_second_the_longest_is_told_at_its_end() -> None:
    clocks, entries = Clocks(), list[Any]()
    turns = clocks.turns()
    try:
        with capture_logs() as entries:
            for cpu_s in (0.11, 0.21, 0.41, 0.31):
                clocks.passes(turns, 0.1, cpu_s)
            clocks.passes(turns, LOG_INTERVAL_S, 0.0)
        assert [entry["cpu_ms"] for entry in of_turns(entries)] == [100, 400]
    finally:
        turns.stop()


@pytest.mark.asyncio
async def test_what_takes_long_before_the_node_is_ready_is_told_apart_and_does_not_count() -> None:
    clocks, entries = Clocks(), list[Any]()
    turns = clocks.turns(ready=False)
    try:
        with capture_logs() as entries:
            clocks.passes(turns, 1.0, 0.5)
        assert [entry["event"] for entry in of_turns(entries)] == ["long turn at the start"]
        assert turns.longest.cpu_s == 0
    finally:
        turns.stop()


@pytest.mark.asyncio
async def test_many_short_turns_that_no_signal_tells_of_are_no_long_one() -> None:
    clocks = Clocks()
    turns = clocks.turns()
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    try:
        for _ in range(20):
            clocks.used += 0.01
            await next_tick(READ_S)
        turns.look()
        assert turns.longest.cpu_s < LONG_S / 2
    finally:
        turns.stop()


@pytest.mark.asyncio
async def test_a_turn_that_waits_is_told_by_its_duration_unless_the_process_got_no_processor_or_was_stopped() -> None:
    clocks, entries = Clocks(), list[Any]()
    turns = clocks.turns()
    try:
        with capture_logs() as entries:
            turns.interrupted(signal.SIGALRM, inspect.currentframe())
            clocks.starved += 2.95
            clocks.passes(turns, 3.0, 0.0)
            turns.interrupted(signal.SIGALRM, inspect.currentframe())
            turns.interrupted(signal.SIGCONT, inspect.currentframe())
            clocks.passes(turns, 3.0, 0.0)
            turns.interrupted(signal.SIGALRM, None)  # Nothing runs: the loop waits, as it should.
            clocks.passes(turns, 3.0, 0.0)
            assert (of_turns(entries), turns.blocked.sum_s) == ([], 0.0)
            turns.interrupted(signal.SIGALRM, inspect.currentframe())
            clocks.passes(turns, 3.0, 0.001)
        [entry] = of_turns(entries)
        assert (entry["cpu_ms"], entry["wall_ms"]) == (0, 3000)
        assert "test_turn_times.test_a_turn_that_waits" in entry["what"]
        assert turns.blocked.sum_s == turns.longest.held_s == 3.0
        assert turns.durations.sum_s == 0.0
    finally:
        turns.stop()


def snooze() -> None:
    held = threading.Lock()
    for _ in range(2):
        held.acquire(timeout=2 * BLOCKED_S)


@pytest.mark.asyncio
async def test_what_a_turn_waited_in_is_found() -> None:
    turns = TurnTimes()
    turns.start(lambda: True)
    try:
        while not turns.blocked.sum_s:
            await asyncio.sleep(0)
            snooze()
            await next_tick(READ_S)
        assert "test_turn_times.snooze" in turns.longest.what
        assert turns.longest.cpu_s < turns.longest.held_s
    finally:
        turns.stop()


@pytest.mark.asyncio
async def test_a_loop_that_waits_for_its_callers_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_times, "READ_S", 60.0)  # Nothing wakes the loop but the alarm.
    turns = TurnTimes()
    turns.start(lambda: True)
    try:
        for _ in range(3):
            await next_tick(2 * BLOCKED_S)
            turns.look()
        assert turns.blocked.sum_s == 0.0
    finally:
        turns.stop()


def burn(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


@pytest.mark.asyncio
async def test_a_working_process_is_looked_at_and_a_long_turn_of_it_is_found_and_named() -> None:
    looks = list[int]()
    turns = TurnTimes()
    turns.start(lambda: True, lambda: looks.append(1))
    try:
        while len(looks) < 3:
            burn(PERIOD_S)
            await asyncio.sleep(0)
        while turns.longest.cpu_s < LONG_S:
            burn(2 * LONG_S)
            await asyncio.sleep(0)
        assert "test_turn_times.burn" in turns.longest.what
    finally:
        turns.stop()


def test_what_runs_is_named_from_both_ends() -> None:
    assert what_runs(None) == ""
    assert what_runs(inspect.currentframe()).startswith("test_turn_times.test_what_runs_is_named_from_both_ends:")


@pytest.mark.asyncio
async def test_nothing_is_left_behind_after_the_end() -> None:
    before = list(gc.callbacks)
    turns = TurnTimes()
    turns.start(lambda: True)
    await asyncio.sleep(0)
    turns.stop()
    assert gc.callbacks == before


@pytest.mark.asyncio
async def test_a_look_that_is_due_at_the_end_sets_no_timer_again() -> None:
    """Python ends with the signals' default handlers: a timer killed a node that took long to end."""
    turns = TurnTimes()
    turns.start(lambda: True)
    turns.interrupted(signal.SIGPROF, None)
    turns.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
