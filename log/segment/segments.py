"""The list of segments, with the open files and the cached indexes of the read segments.

A read segment takes about 300 bytes of memory. Its files are open only while they are among those read last, and its
index is in memory only if the cache keeps it (`IndexCachePolicy`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import closing, suppress

from cachetools import LFUCache, LRUCache

from ..errors import ResourcesExhausted, Unreadable
from ..frames import Tail
from ..options import STORE_HEADER_BYTES, IndexCachePolicy, LogOptions
from ..storage import Directory, Storage
from .index import SegmentIndex, StoredIndex
from .store import index_name, store_name


class Segment:
    """One store file: the end of the chain before its first frame, and the position where its frames end."""

    __slots__ = ("base_index", "end", "origin")

    def __init__(self, origin: Tail, end: int) -> None:
        self.base_index = origin.index
        self.origin = origin
        self.end = end


class Segments:
    """All segments of a log, ascending; the last one is the write segment."""

    def __init__(self, files: Directory, options: LogOptions) -> None:
        self.files = files
        self.elsewhere: Callable[[Callable[[], None]], object] | None = None
        """Runs what takes long in another thread, the one that flushes: to close the open file of a removed segment,
        which frees its room, and to allocate the next one where that writes zeros. None: there is none."""
        self._cache_limit = options.cached_indexes
        self._cached = _empty_cache(options)
        # Whether a read loads the index that it needs.
        self._loads = self._cache_limit is None or (
            self._cache_limit > 0 and options.index_cache_policy is not IndexCachePolicy.NEWEST
        )
        self._open_limit = options.open_segments
        self._items: list[Segment] = []
        self._bases: list[int] = []
        # Bytes of frames in all segments before each one; what has expired counts, so that a removal changes no other.
        self._sizes_before: list[int] = []
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
        """Add a segment after all others; the previous last one has its final size."""
        self._sizes_before.append(self._sizes_before[-1] + self.last.end - STORE_HEADER_BYTES if self._items else 0)
        self._items.append(segment)
        self._bases.append(segment.base_index)

    def place_of(self, index: int) -> int:
        """Return the number in [0, len) of the segment that holds `index`, which is not below the log."""
        return bisect_right(self._bases, index) - 1

    def holding(self, index: int) -> Segment:
        """Return the segment that holds `index`, which is not below the log."""
        return self._items[bisect_right(self._bases, index) - 1]

    def at(self, place: int) -> Segment:
        """Return the segment with this number in [0, len)."""
        return self._items[place]

    def bytes_between(self, place: int, to_place: int) -> int:
        """Return the frame bytes of the segments with numbers [place, to_place), none of them the write segment."""
        return self._sizes_before[to_place] - self._sizes_before[place]

    def ahead(self, segment: Segment, position: int, size: int) -> tuple[Segment, int]:
        """Return the segment and the position `size` bytes of frames after a position; the log reaches that far."""
        target = self._sizes_before[self.place_of(segment.base_index)] + position - STORE_HEADER_BYTES + size
        place = bisect_right(self._sizes_before, target) - 1
        return self._items[place], target - self._sizes_before[place] + STORE_HEADER_BYTES

    def count_over(self, size: int) -> int:
        """Return how many segments, from the first on, must be removed to remove `size` bytes of frames."""
        return bisect_left(self._sizes_before, self._sizes_before[0] + size)

    def take_first(self) -> Segment:
        """Take the oldest segment off the list and close its files, which stay in the folder."""
        segment = self._items[0]
        self.forget(segment)
        del self._items[0], self._bases[0], self._sizes_before[0]
        return segment

    def remove_last(self) -> Segment:
        """Remove the files of the last segment. Durable after a sync of the folder."""
        segment = self._items[-1]
        self.forget(segment)
        remove_segment(self.files, segment.base_index)
        self._items.pop()
        self._bases.pop()
        self._sizes_before.pop()
        return segment

    def store(self, segment: Segment) -> Storage:
        """Return the open store of a read segment."""
        base = segment.base_index
        store = self._stores.get(base)
        if store is None:
            store = self._stores[base] = self.opened(store_name(base))
            if len(self._stores) > self._open_limit:
                self._stores.popitem(last=False)[1].close()
        else:
            self._stores.move_to_end(base)
        return store

    def opened(self, name: str) -> Storage:
        """Return an open file; if the process can open no more, close files that are open for reads first.

        Raises:
            FileNotFoundError: it does not exist.
            ResourcesExhausted: there is still no descriptor.
        """
        try:
            return self.files.open(name)
        except ResourcesExhausted:
            # A caller may be about to read the last one of each.
            while len(self._stores) > 1:
                self._stores.popitem(last=False)[1].close()
            while len(self._indexes) > 1:
                self._indexes.popitem(last=False)[1].close()
            return self.files.open(name)

    def refuse_without_descriptor(self) -> None:
        """Before a change: raise `ResourcesExhausted` if no file can be opened, as it will be to sync the folder."""
        self.opened(store_name(self.last.base_index)).close()

    @property
    def cached_indexes(self) -> list[int]:
        """Base indices of the read segments whose index is in memory, ascending."""
        return sorted(self._cached)

    def index(self, segment: Segment) -> SegmentIndex:
        """Return the index of a read segment: from memory, or loaded if the policy says so, or else as an open file.

        Raises:
            FileNotFoundError: it is not in memory, and has no file.
        """
        base = segment.base_index
        cached = self._cached.get(base)
        if cached is not None:
            return cached
        if not self._loads:
            return self._stored_index(segment)
        with closing(StoredIndex(self.opened(index_name(base)))) as stored:
            loaded = stored.load()
        self.cache_index(base, loaded)
        return loaded

    def cache_index(self, base_index: int, index: SegmentIndex) -> None:
        """Keep the index of a read segment in memory; the policy may evict another for it."""
        if self._cache_limit == 0:
            return
        self._cached[base_index] = index
        # cachetools evicts by itself; from a plain dict goes the index of the segment that was sealed first.
        if self._cache_limit is not None and len(self._cached) > self._cache_limit:
            del self._cached[min(self._cached)]

    def load_all_indexes(self) -> None:
        """Load the index of every read segment, if the options ask for all of them. Blocks."""
        if self._cache_limit is None:
            for segment in self._items[:-1]:
                # If the disk had no room for an index file, or has lost it, the first read walks the segment.
                with suppress(FileNotFoundError, Unreadable):
                    self.index(segment)

    def replace_index(self, segment: Segment, index: SegmentIndex) -> None:
        """Use `index`, built from the segment's frames, instead of a wrong or missing one."""
        was_cached = segment.base_index in self._cached
        self.forget_index(segment)
        if was_cached or self._loads:
            self.cache_index(segment.base_index, index)

    def _stored_index(self, segment: Segment) -> StoredIndex:
        base = segment.base_index
        index = self._indexes.get(base)
        if index is None:
            place = bisect_right(self._bases, base)
            records = self._bases[place] - base if place < len(self._bases) else 0
            index = self._indexes[base] = StoredIndex(self.opened(index_name(base)), records)
            if len(self._indexes) > self._open_limit:
                self._indexes.popitem(last=False)[1].close()
        else:
            self._indexes.move_to_end(base)
        return index

    def forget(self, segment: Segment) -> None:
        """Close the open files of a segment and drop its index."""
        store = self._stores.pop(segment.base_index, None)
        if store is not None:
            store.close()
        self.forget_index(segment)

    def forget_index(self, segment: Segment) -> None:
        """Close the index file of a segment if it is open, and drop its index from memory."""
        self._cached.pop(segment.base_index, None)
        index = self._indexes.pop(segment.base_index, None)
        if index is not None:
            index.close()

    def close(self) -> None:
        """Close all files."""
        for segment in self._items:
            self.forget(segment)


def _empty_cache(options: LogOptions) -> MutableMapping[int, SegmentIndex]:
    if options.cached_indexes is not None:
        match options.index_cache_policy:
            case IndexCachePolicy.LRU:
                return LRUCache(options.cached_indexes)
            case IndexCachePolicy.LFU:
                return LFUCache(options.cached_indexes)
            case IndexCachePolicy.NEWEST:
                pass
    return {}


def remove_segment(files: Directory, base_index: int) -> None:
    """Remove a segment's files, the index first, so that a crash leaves no index without its store."""
    with suppress(FileNotFoundError):
        files.remove(index_name(base_index))
    files.remove(store_name(base_index))
