"""The list of segments, and the open files of those that are read.

A read segment costs a few dozen bytes of memory; its files are open only while they are among the last that were
read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from .errors import DiskFull
from .index import FrameIndex, StoredIndex
from .storage import Directory, Storage
from .store import create_fresh, index_name, store_name


class Segment:
    """One store file: its first index and where its frames end."""

    __slots__ = ("base_index", "end")

    def __init__(self, base_index: int, end: int) -> None:
        self.base_index = base_index
        self.end = end


class Segments:
    """All segments of a log, ascending; the last one is the write segment."""

    def __init__(self, files: Directory, open_limit: int) -> None:
        self.files = files
        self._open_limit = open_limit
        self._items: list[Segment] = []
        self._bases: list[int] = []
        self._stores: OrderedDict[int, Storage] = OrderedDict()
        self._indexes: OrderedDict[int, StoredIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def bases(self) -> Sequence[int]:
        """First index of each segment, ascending."""
        return self._bases

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._items[0]

    @property
    def last(self) -> Segment:
        """The write segment."""
        return self._items[-1]

    def append(self, segment: Segment) -> None:
        """Add a segment behind all others."""
        self._items.append(segment)
        self._bases.append(segment.base_index)

    def place_of(self, index: int) -> int:
        """Return the place of the segment that holds `index`, which is not below the log."""
        return bisect_right(self._bases, index) - 1

    def holding(self, index: int) -> Segment:
        """Return the segment that holds `index`, which is not below the log."""
        return self._items[bisect_right(self._bases, index) - 1]

    def at(self, place: int) -> Segment:
        """Return the segment at a place in [0, len)."""
        return self._items[place]

    def next_base(self, segment: Segment) -> int | None:
        """Return the base index of the segment behind, None for the write segment."""
        place = bisect_right(self._bases, segment.base_index)
        return self._bases[place] if place < len(self._bases) else None

    def remove_last(self) -> Segment:
        """Remove the last segment, its index before its store; not durable before the directory is synced."""
        segment = self._items[-1]
        self.forget(segment)
        remove_segment(self.files, segment.base_index)
        self._items.pop()
        self._bases.pop()
        return segment

    def store(self, segment: Segment) -> Storage:
        """Return the store file of a read segment, open."""
        base = segment.base_index
        store = self._stores.get(base)
        if store is None:
            store = self._stores[base] = self.files.open(store_name(base))
            if len(self._stores) > self._open_limit:
                self._stores.popitem(last=False)[1].close()
        else:
            self._stores.move_to_end(base)
        return store

    def index(self, segment: Segment) -> StoredIndex:
        """Return the index file of a read segment, open."""
        base = segment.base_index
        index = self._indexes.get(base)
        if index is None:
            index = self._indexes[base] = StoredIndex(self.files.open(index_name(base)))
            if len(self._indexes) > self._open_limit:
                self._indexes.popitem(last=False)[1].close()
        else:
            self._indexes.move_to_end(base)
        return index

    def forget(self, segment: Segment) -> None:
        """Close the files of a segment, if they are open."""
        for opened in (self._stores.pop(segment.base_index, None), self._indexes.pop(segment.base_index, None)):
            if opened is not None:
                opened.close()

    def forget_index(self, segment: Segment) -> None:
        """Close the index file of a segment, if it is open."""
        index = self._indexes.pop(segment.base_index, None)
        if index is not None:
            index.close()

    def close(self) -> None:
        """Close all files."""
        for segment in self._items:
            self.forget(segment)


def save_index(files: Directory, index: FrameIndex) -> None:
    """Write a segment's whole index file; it is never synced, for it can be rebuilt.

    Raises:
        DiskFull: no room; nothing is left behind.
    """
    name = index_name(index.base_index)
    storage = create_fresh(files, name)
    try:
        storage.allocate(index.size)
        storage.write_at(0, index.encode())
    except DiskFull:
        files.remove(name)
        raise
    finally:
        storage.close()


def remove_segment(files: Directory, base_index: int) -> None:
    """Remove a segment's files, the index before the store, so that no index is ever left alone."""
    name = index_name(base_index)
    if name in files.list():
        files.remove(name)
    files.remove(store_name(base_index))
