"""Which records of the log did not execute, as far as this process has applied the log.

A retry, a record of a session that is not open, and one after a gap are in the log like any other record; their
session answered them. Only applying shows this, and a snapshot does not contain it. So it is known only from
`known_from` on, the index at which applying began.
"""

from bisect import bisect_right
from collections.abc import Sequence

MAX_RANGES = 65_536
"""How many ranges of such records are remembered, in about 5 MiB. The oldest are forgotten first."""


class Unexecuted:
    """The ranges of records that their session answered, from an index on. One thread."""

    def __init__(self, known_from: int) -> None:
        """Nothing is known about the records below `known_from`."""
        self.known_from = known_from
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, index: int, positions: Sequence[int]) -> None:
        """Note the positions, ascending and at least one, that sessions answered in the applied frame at `index`."""
        starts, ends = self._starts, self._ends
        first, last = positions[0], positions[-1]
        stretches = (
            [range(first, last + 1)] if len(positions) == last + 1 - first else ([position] for position in positions)
        )
        for stretch in stretches:
            at, end = index + stretch[0], index + stretch[-1] + 1
            if ends and ends[-1] == at:
                ends[-1] = end
            else:
                starts.append(at)
                ends.append(end)
        if excess := max(0, len(starts) - MAX_RANGES):
            self.known_from = ends[excess - 1]
            del starts[:excess], ends[:excess]

    def executed(self, index: int) -> bool | None:
        """Whether a record that was applied, of any kind but system, executed; None: unknown, it is too old."""
        if index < self.known_from:
            return None
        at = bisect_right(self._starts, index) - 1
        return at < 0 or index >= self._ends[at]
