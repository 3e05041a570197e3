"""Keys in order, for scans: a list of short sorted lists, so that an insertion takes microseconds at any size.

A single sorted list of a million keys would move megabytes at each insertion; a tree of Python objects would take more
memory than the values. The order is not state: it follows from the set of keys alone.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

STRETCH_KEYS = 512  # A stretch of twice as many is split.


class KeyOrder:
    """A set of strings in code point order, which is also the order of their UTF-8 bytes."""

    __slots__ = ("_highest", "_stretches")

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        starts = range(0, len(ordered), STRETCH_KEYS)
        self._stretches: list[list[str]] = [ordered[start : start + STRETCH_KEYS] for start in starts]
        self._highest: list[str] = [stretch[-1] for stretch in self._stretches]

    def add(self, key: str) -> None:
        """Add a key that is not in the set."""
        stretches, highest = self._stretches, self._highest
        if not stretches:
            stretches.append([key])
            highest.append(key)
            return
        place = bisect_left(highest, key)
        if place == len(highest):
            place -= 1
            highest[place] = key
        stretch = stretches[place]
        insort(stretch, key)
        if len(stretch) >= 2 * STRETCH_KEYS:
            stretches.insert(place + 1, stretch[STRETCH_KEYS:])
            del stretch[STRETCH_KEYS:]
            highest.insert(place, stretch[-1])

    def remove(self, key: str) -> None:
        """Remove a key that is in the set."""
        place = bisect_left(self._highest, key)
        stretch = self._stretches[place]
        del stretch[bisect_left(stretch, key)]
        if stretch:
            self._highest[place] = stretch[-1]
        else:
            del self._stretches[place], self._highest[place]

    def beginning_with(self, prefix: str, after: str | None) -> Iterator[str]:
        """The keys that start with `prefix` and come after `after`, in order."""
        behind = after is not None and after >= prefix
        edge = after if after is not None and behind else prefix
        cut = bisect_right if behind else bisect_left
        first = cut(self._highest, edge)
        for place in range(first, len(self._stretches)):
            stretch = self._stretches[place]
            for at in range(cut(stretch, edge) if place == first else 0, len(stretch)):
                key = stretch[at]
                if not key.startswith(prefix):
                    return
                yield key
