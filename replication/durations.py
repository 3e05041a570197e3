"""A histogram of durations, for metrics."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Durations:
    """A histogram of seconds, in plain numbers, so that it costs a flush or a frame almost nothing."""

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        """`bounds_s` are the upper bounds of its buckets, ascending."""
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """How many durations each bucket has; the last one is of those above all bounds."""
        self.sum_s = 0.0
        self._longest_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count so many of one duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += count * seconds
        if seconds > self._longest_s:
            self._longest_s = seconds

    def observe_all(self, durations_s: Sequence[float]) -> None:
        """Count each of many durations."""
        longest_s, counts, bounds_s = max(durations_s, default=0.0), self.counts, self.bounds_s
        if longest_s <= bounds_s[0]:
            counts[0] += len(durations_s)
        else:
            for seconds in durations_s:
                counts[bisect_left(bounds_s, seconds)] += 1
        self.sum_s += sum(durations_s)
        self._longest_s = max(self._longest_s, longest_s)

    def take_longest(self) -> float:
        """The longest duration since the last call; 0 if there was none."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each upper bound, inclusive, with the count of durations up to it; the last bound is +Inf."""
        return zip([*map(str, self.bounds_s), "+Inf"], accumulate(self.counts), strict=True)
