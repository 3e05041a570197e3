"""A histogram of durations, for metrics."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Durations:
    """A histogram of seconds, in plain numbers, so that it costs a flush or a frame almost nothing."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each upper bound, inclusive, with the count of durations up to it; the last bound is +Inf."""
        return zip([*map(str, BOUNDS_S), "+Inf"], accumulate(self._counts), strict=True)
