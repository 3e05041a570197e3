"""Indexes of read segments in memory: of all, of none, or of at most n, as a policy chooses.

The policy is a mapping that evicts, such as cachetools' LRUCache or LFUCache; asking it counts as a use. So plain reads
do not ask it: they look into a dict beside it, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from .index import SegmentIndex


class IndexCache:
    """Base index -> index of that read segment."""

    __slots__ = ("_chosen", "_held", "limit")

    def __init__(self, limit: int | None, policy: Callable[[int], MutableMapping[int, Any]]) -> None:
        """`limit`: how many, None for all; `policy` makes the mapping that chooses among them."""
        self.limit = limit
        self._held: dict[int, SegmentIndex] = {}
        self._chosen: MutableMapping[int, Any] | None = policy(limit) if limit else None

    @property
    def bases(self) -> list[int]:
        """Base indices of the segments whose index is here, ascending."""
        return sorted(self._held)

    def __contains__(self, base_index: int) -> bool:
        return base_index in self._held

    def peek(self, base_index: int) -> SegmentIndex | None:
        """Return a segment's index if it is here; this is no use of it."""
        return self._held.get(base_index)

    def use(self, base_index: int) -> SegmentIndex | None:
        """Return a segment's index if it is here, and have the policy count that."""
        if self._chosen is not None:
            self._chosen.get(base_index)
        return self._held.get(base_index)

    def put(self, base_index: int, index: SegmentIndex) -> None:
        """Keep an index, in place of those that the policy gives up for it."""
        if self.limit == 0:
            return
        self._held[base_index] = index
        if self._chosen is not None:
            self._chosen[base_index] = index
            for gone in self._held.keys() - self._chosen.keys():
                del self._held[gone]

    def drop(self, base_index: int) -> None:
        """Forget a segment's index, if it is here."""
        self._held.pop(base_index, None)
        if self._chosen is not None:
            self._chosen.pop(base_index, None)
