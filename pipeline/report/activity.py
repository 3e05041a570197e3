"""When commands were written: the pauses of their writers, and the fullest second.

A log does not say who waited to write. A gap between two commands counts as a pause if it can be told from idle time:

- Writers were at work around it: it is at least `STALL_RATIO` times as long as each of the `NEIGHBOURS` gaps before it,
  and each of those after it. `FAILOVER_RATIO` suffices if a leadership began in the gap.
- Whoever waits writes as soon as a leader serves: the gap ended within `RESUME` of its last `epoch_start`, or of its
  beginning if it has none. A leader that cannot commit for so long loses its lead.

Everything else is idle time. Frames that the cluster writes for itself are no commands, and end no gap. Gaps within a
slot of 10 ms are not looked at, and a gap with fewer neighbours than that, near an end of the log, is not claimed.

Stretches are counted in parallel and added in any grouping, so each keeps the slots at its ends, whose neighbours are
in other stretches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SECOND = 1_000_000
SLOT = SECOND // 100
NEIGHBOURS = 16
STALL_RATIO = 4
FAILOVER_RATIO = 2
RESUME = 5 * SECOND
KEPT = max(SECOND // SLOT, 2 * NEIGHBOURS + 1)
"""Slots kept at an end: all of a second, and all that decide on a gap that has too few neighbours in its stretch."""


class Slot(NamedTuple):
    """The commands within 10 ms; times are microseconds since 1970."""

    number: int
    first: int
    last: int
    commands: int


class Pause(NamedTuple):
    """A gap in which writers waited."""

    begin: int
    end: int


@dataclass(slots=True)
class Activity:
    """The slots at the ends of a stretch with commands, in one run, or in two if the middle is left out."""

    runs: list[list[Slot]] = field(default_factory=lambda: [[]])
    fullest: int = 0
    """The most commands within a second, in steps of 10 ms."""

    def note(self, timestamp: int, commands: int) -> None:
        """Add a frame's commands; frames come in order."""
        run, number = self.runs[-1], timestamp // SLOT
        if run and run[-1].number == number:
            run[-1] = run[-1]._replace(last=timestamp, commands=run[-1].commands + commands)
        else:
            run.append(Slot(number, timestamp, timestamp, commands))

    def add(self, other: Activity, elections: Sequence[int]) -> list[Pause]:
        """Add the next stretch; return the pauses that are now known, some of which were known before.

        `elections` has the times at which the leaderships in both began, in ascending order.
        """
        joined = _joined(self.runs[-1], other.runs[0])
        runs = [*self.runs[:-1], joined, *other.runs[1:]]
        self.fullest = max(self.fullest, other.fullest, _fullest(joined))
        if len(runs) > 1 or len(joined) > 2 * KEPT:
            runs = [runs[0][:KEPT], runs[-1][-KEPT:]]
        self.runs = runs
        return _pauses(joined, elections)


def _joined(before: list[Slot], after: list[Slot]) -> list[Slot]:
    if not before or not after or before[-1].number != after[0].number:
        return before + after
    shared = Slot(before[-1].number, before[-1].first, after[0].last, before[-1].commands + after[0].commands)
    return [*before[:-1], shared, *after[1:]]


def _fullest(run: Sequence[Slot]) -> int:
    most = within = begin = 0
    for slot in run:
        within += slot.commands
        while slot.number - run[begin].number >= SECOND // SLOT:
            within -= run[begin].commands
            begin += 1
        most = max(most, within)
    return most


def _pauses(run: Sequence[Slot], elections: Sequence[int]) -> list[Pause]:
    gaps = [after.first - before.last for before, after in pairwise(run)]
    found: list[Pause] = []
    for place in range(NEIGHBOURS, len(gaps) - NEIGHBOURS):
        gap = gaps[place]
        if gap < FAILOVER_RATIO * max(gaps[place - 1], gaps[place + 1]):
            continue
        longest = max(*gaps[place - NEIGHBOURS : place], *gaps[place + 1 : place + 1 + NEIGHBOURS])
        pause = Pause(run[place].last, run[place + 1].first)
        during = elections[bisect_right(elections, pause.begin) : bisect_right(elections, pause.end)]
        ratio, since = (FAILOVER_RATIO, during[-1]) if during else (STALL_RATIO, pause.begin)
        if gap >= ratio * longest and pause.end - since <= RESUME:
            found.append(pause)
    return found
