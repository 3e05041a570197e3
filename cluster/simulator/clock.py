"""Simulated time: the schedule of a history, and each node's clocks, which run at a rate of their own.

The schedule is one queue of calls, ordered by time and, at equal times, by order of insertion.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SECOND = 1_000_000
MILLISECOND = 1_000
START_CLOCK = 1_700_000_000_000_000
"""The time of the wall clocks at the start, in microseconds."""
MAX_CALLS = 500_000
"""No history takes a tenth of this: one that does is in an endless loop."""


class EndlessHistory(Exception):
    """A history made more than `MAX_CALLS` calls."""


class Schedule:
    """Calls every step of a history, in an order that depends on the seed alone. Times are in microseconds."""

    def __init__(self) -> None:
        self.now = 0
        self._order = 0
        self._calls = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []

    def at(self, time: int, call: Callable[..., None], *arguments: object) -> None:
        """Call at a time; at once if that has passed."""
        self._order += 1
        heapq.heappush(self._queue, (max(time, self.now), self._order, call, arguments))

    def later(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        """Call after a delay."""
        self.at(self.now + delay, call, *arguments)

    def run_next(self) -> bool:
        """Make the next call. Returns whether there was one.

        Raises:
            EndlessHistory: too many calls were made.
        """
        if not self._queue:
            return False
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise EndlessHistory(f"after {MAX_CALLS} calls it is {self.now} us")
        self.now, _, call, arguments = heapq.heappop(self._queue)
        call(*arguments)
        return True


@dataclass
class Clocks:
    """A node's clocks. `rate` is the speed of its monotonic clock; `ahead` is the error of its wall clock."""

    schedule: Schedule
    rate: float
    ahead: int
    offset: int = 0

    def now(self) -> int:
        """Monotonic microseconds."""
        return int(self.schedule.now * self.rate) + self.offset

    def run_at(self, rate: float) -> None:
        """Run at another rate from now on."""
        now, self.rate = self.now(), rate
        self.offset += now - self.now()

    def clock(self) -> int:
        """The wall clock, which may be stepped back."""
        return START_CLOCK + self.now() + self.ahead


class Reached:
    """How far the nodes' wall clocks have come so far: no timestamp may be later than a majority of them."""

    def __init__(self) -> None:
        self._clocks: dict[str, int] = {}
        self._time = START_CLOCK

    def note(self, node_id: str, clock: int) -> None:
        """A node's wall clock, as of a step of its core."""
        self._clocks[node_id] = max(clock, self._clocks.get(node_id, 0))

    def time(self, voters: Iterable[str]) -> int:
        """The latest time that a majority of these voters, or of those of an earlier call, has reached."""
        clocks = sorted(self._clocks.get(node_id, 0) for node_id in voters)
        self._time = max(self._time, clocks[(len(clocks) - 1) // 2])
        return self._time
