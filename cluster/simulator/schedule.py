"""Simulated time: one queue of calls, ordered by time and then by when each was put there."""

import heapq
from collections.abc import Callable
from typing import Any

SECOND = 1_000_000
MILLISECOND = 1_000
MAX_CALLS = 500_000
"""No history takes a tenth of this: one that does goes round in circles."""


class EndlessHistory(Exception):
    """Things happen for ever."""


class Schedule:
    """All that happens in a history, in an order that depends on nothing but the seed."""

    def __init__(self) -> None:
        self.now = 0
        self._order = 0
        self._calls = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time: int, call: Callable[..., None], *arguments: Any) -> None:
        """Do something at a time, which is not before now."""
        self._order += 1
        heapq.heappush(self._queue, (max(time, self.now), self._order, call, arguments))

    def later(self, delay: int, call: Callable[..., None], *arguments: Any) -> None:
        """Do something after a delay."""
        self.at(self.now + delay, call, *arguments)

    def run_next(self) -> bool:
        """Do what comes next; False: nothing is left."""
        if not self._queue:
            return False
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise EndlessHistory(f"after {MAX_CALLS} calls it is {self.now} us")
        self.now, _, call, arguments = heapq.heappop(self._queue)
        call(*arguments)
        return True
