"""The list of segments, and the open files of those that are read.

A read segment costs about 300 bytes of memory; its files are open only while they are among the last that were
read, and its index is in memory only if the cache has it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

from ..errors import DiskFull
from ..frames import Tail
from ..options import LogOptions
from ..storage import Directory, Storage
from .caching import IndexCache
from .index import FrameIndex, SegmentIndex, StoredIndex
from .store import create_fresh, index_name, store_name


class Segment:
    """One store file: the chain's end before its first frame, and where its frames end."""

    __slots__ = ("base_index", "end", "origin")

    def __init__(self, origin: Tail, end: int) -> None:
        self.base_index = origin.index
        self.origin = origin
        self.end = end


class Segments:
    """All segments of a log, ascending; the last one is the write segment."""

    def __init__(self, files: Directory, options: LogOptions) -> None:
        self.files = files
        self.cache = IndexCache(options.cached_indexes, options.index_cache)
        self._open_limit = options.open_segments
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

    def remove_first(self) -> Segment:
        """Remove the oldest segment, its index before its store; not durable before the directory is synced."""
        segment = self._items[0]
        self.forget(segment)
        remove_segment(self.files, segment.base_index)
        del self._items[0], self._bases[0]
        return segment

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

    def index(self, segment: Segment) -> SegmentIndex:
        """Return the index of a read segment: from memory if it is there, else as a file that is looked into.

        Raises:
            FileNotFoundError: it is in neither.
        """
        return self.cache.peek(segment.base_index) or self._stored_index(segment)

    def warm_index(self, segment: Segment) -> None:
        """Have the index of a read segment in memory, as far as the cache's policy lets it stay.

        Raises:
            FileNotFoundError: there is no index file.
        """
        base = segment.base_index
        if self.cache.limit != 0 and self.cache.use(base) is None:
            self.cache.put(base, self._stored_index(segment).load())

    def _stored_index(self, segment: Segment) -> StoredIndex:
        base = segment.base_index
        index = self._indexes.get(base)
        if index is None:
            place = bisect_right(self._bases, base)
            records = self._bases[place] - base if place < len(self._bases) else 0
            index = self._indexes[base] = StoredIndex(self.files.open(index_name(base)), records)
            if len(self._indexes) > self._open_limit:
                self._indexes.popitem(last=False)[1].close()
        else:
            self._indexes.move_to_end(base)
        return index

    def forget(self, segment: Segment) -> None:
        """Close the files of a segment, if they are open, and forget its index."""
        store = self._stores.pop(segment.base_index, None)
        if store is not None:
            store.close()
        self.forget_index(segment)

    def forget_index(self, segment: Segment) -> None:
        """Close the index file of a segment, if it is open, and forget what it said."""
        self.cache.drop(segment.base_index)
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
    with suppress(FileNotFoundError):
        files.remove(index_name(base_index))
    files.remove(store_name(base_index))
