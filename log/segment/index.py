"""The index file: the position of a frame every `index_interval_bytes` of a store. It is rebuilt if it is wrong.

    marker   0 8 base_index | 8 4 "QIDX" | 12 4 version 1
    entry    0 4 crc32c (the frame's field) | 4 4 relative index | 8 4 length | 12 4 position of the frame header

The first frame of a segment always has an entry. A relative index counts from base_index.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from ..errors import NoRoom
from ..files import refusing_full
from ..options import INDEX_ENTRY_BYTES, INDEX_MARKER_BYTES
from ..storage import Directory, Storage
from .store import create_fresh, index_name

INDEX_VERSION = 1

_MARKER = struct.Struct("<Q4sI")
_MAGIC = b"QIDX"
_ENTRY = struct.Struct("<IIII")
# Entries that a search reads at once. A good first guess is off by less than this eighth of a page.
_BLOCK_ENTRIES = 32


class SegmentIndex(Protocol):
    """Finds the frames of one segment."""

    def entry_at(self, relative: int) -> tuple[int, int, int, int] | None:
        """Return the last entry at or below a relative index; None if there is none."""
        ...

    def index_near(self, position: int) -> int:
        """Return the relative index of the last entry at or before a position, 0 if there is none. It is a hint."""
        ...


class IndexEntry(NamedTuple):
    """The position of one frame."""

    crc32c: int
    relative: int
    length: int
    position: int


class FrameIndex:
    """The index of the write segment, in memory: it grows with each frame."""

    __slots__ = ("_entries", "_interval_bytes", "_relatives", "base_index", "next_position")

    def __init__(self, base_index: int, interval_bytes: int) -> None:
        self.base_index = base_index
        self._interval_bytes = interval_bytes
        self._relatives = array("I")
        self._entries = bytearray(_MARKER.pack(base_index, _MAGIC, INDEX_VERSION))
        self.next_position = 0
        """The next frame at or above this position gets an entry."""

    @property
    def size(self) -> int:
        """Size of its index file in bytes."""
        return len(self._entries)

    def add(self, crc32c: int, index: int, length: int, position: int) -> None:
        """Add the frame at `position`, after all earlier ones, unless it is too close to the last entry."""
        if position >= self.next_position:
            relative = index - self.base_index
            self._entries += _ENTRY.pack(crc32c, relative, length, position)
            self._relatives.append(relative)
            self.next_position = position + self._interval_bytes

    def truncate(self, relative: int) -> None:
        """Drop the entries of all frames from this relative index on."""
        kept = bisect_left(self._relatives, relative)
        del self._relatives[kept:], self._entries[INDEX_MARKER_BYTES + kept * INDEX_ENTRY_BYTES :]
        last = self.entry_at(relative)
        self.next_position = 0 if last is None else last.position + self._interval_bytes

    def entry_at(self, relative: int) -> IndexEntry | None:
        """Return the last entry at or below a relative index; None if there is none."""
        place = bisect_right(self._relatives, relative) - 1
        if place < 0:
            return None
        return IndexEntry._make(_ENTRY.unpack_from(self._entries, INDEX_MARKER_BYTES + place * INDEX_ENTRY_BYTES))

    def index_near(self, position: int) -> int:
        """Return the relative index of the last entry at or before a position, 0 if there is none."""
        return _index_near(_words(memoryview(self._entries)[INDEX_MARKER_BYTES:]), position)

    def encode(self) -> bytes:
        """Return the content of the index file."""
        return bytes(self._entries)


def save_index(files: Directory, index: FrameIndex) -> None:
    """Write a segment's index file. It is never synced, because it can be rebuilt.

    Raises:
        DiskFull: there is no room; nothing is left behind.
    """
    name = index_name(index.base_index)
    storage = create_fresh(files, name)
    try:
        storage.allocate(index.size)
        with refusing_full(name):
            storage.write_at(0, index.encode())
    except NoRoom:
        files.remove(name)
        raise
    finally:
        storage.close()


def rebuild_index(files: Directory, index: FrameIndex) -> None:
    """Write an index file again, if the disk has room. Without one, each open walks the segment."""
    with suppress(NoRoom):
        save_index(files, index)


class LoadedIndex:
    """The index of one read segment, loaded from its file."""

    __slots__ = ("_relatives", "_words")

    def __init__(self, entries: bytes) -> None:
        """`entries`: the content of the file after its marker."""
        self._words = _words(entries)
        self._relatives = self._words[1::4]

    def entry_at(self, relative: int) -> tuple[int, int, int, int] | None:
        """Return the last entry at or below a relative index; None if there is none: then the index is wrong."""
        place = bisect_right(self._relatives, relative)
        if place == 0:
            return None
        crc, relative, length, position = self._words[4 * place - 4 : 4 * place]
        return crc, relative, length, position

    def index_near(self, position: int) -> int:
        """Return the relative index of the last entry at or before a position, 0 if there is none. It is a hint."""
        return _index_near(self._words, position)


class StoredIndex:
    """The index of one read segment, as an open file: a search reads a few blocks of it."""

    __slots__ = ("_records", "_storage", "count")

    def __init__(self, storage: Storage, records: int = 0) -> None:
        """`records`: how many the segment holds, if known; this makes the first guess of a search a good one."""
        self._storage = storage
        self._records = records
        self.count = max(0, storage.size - INDEX_MARKER_BYTES) // INDEX_ENTRY_BYTES

    def version(self, base_index: int) -> int | None:
        """Return the format version in its marker; None if this is not the index of that segment.

        No checksum covers it. An index that is read regardless of its version must be compared with the frames.
        """
        raw = self._storage.read_at(0, INDEX_MARKER_BYTES)
        if len(raw) < INDEX_MARKER_BYTES:
            return None
        base, magic, version = _MARKER.unpack(raw)
        return int(version) if base == base_index and magic == _MAGIC else None

    def marker_fits(self, base_index: int) -> bool:
        """Return whether this is the index of the segment at `base_index`, in the version that this program knows."""
        return self.version(base_index) == INDEX_VERSION

    def entry(self, place: int) -> IndexEntry:
        """Return the entry with this number in [0, count)."""
        raw = self._storage.read_at(INDEX_MARKER_BYTES + place * INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
        return IndexEntry._make(_ENTRY.unpack(raw))

    def entry_at(self, relative: int) -> tuple[int, int, int, int] | None:
        """Return the last entry at or below a relative index; None if there is none: then the index is wrong."""
        low, high = 0, self.count
        if relative < self._records:
            # Entries of equal frames lie on a straight line. If the guess fails, it still bounds the binary search.
            low = max(0, min(relative * high // self._records - _BLOCK_ENTRIES // 2, high - _BLOCK_ENTRIES))
            relatives, words = self._block(low, min(low + _BLOCK_ENTRIES, high))
            place = bisect_right(relatives, relative)
            if 0 < place < len(relatives) or (place and low + place == high):
                return _entry_of(words, place - 1)
            low, high = (0, low) if place == 0 else (low, high)
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self.entry(middle).relative <= relative:
                low = middle
            else:
                high = middle
        relatives, words = self._block(low, high)
        place = bisect_right(relatives, relative)
        return None if place == 0 else _entry_of(words, place - 1)

    def index_near(self, position: int) -> int:
        """Return the relative index of the last entry at or before a position, 0 if there is none. It is a hint."""
        place = bisect_right(range(self.count), position, key=lambda place: self.entry(place).position)
        return 0 if place == 0 else self.entry(place - 1).relative

    def entries(self) -> Iterator[IndexEntry]:
        """Return all entries, in order, of the file as it is now."""
        raw = self._storage.read_at(INDEX_MARKER_BYTES, self.count * INDEX_ENTRY_BYTES)
        # A file that was cut gives less than was asked for: take whole entries only.
        whole = len(raw) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
        return map(IndexEntry._make, _ENTRY.iter_unpack(memoryview(raw)[:whole]))

    def load(self) -> LoadedIndex:
        """Return all entries in memory."""
        return LoadedIndex(self._storage.read_at(INDEX_MARKER_BYTES, self.count * INDEX_ENTRY_BYTES))

    def close(self) -> None:
        """Close the file."""
        self._storage.close()

    def _block(self, low: int, high: int) -> tuple[memoryview, memoryview]:
        raw = self._storage.read_at(INDEX_MARKER_BYTES + low * INDEX_ENTRY_BYTES, (high - low) * INDEX_ENTRY_BYTES)
        words = _words(raw)
        return words[1::4], words


def _words(raw: bytes | memoryview) -> memoryview:
    # A truncated file gives less than was asked for: take whole entries only.
    return memoryview(raw)[: len(raw) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES].cast("I")


def _index_near(words: memoryview, position: int) -> int:
    place = bisect_right(words[3::4], position)
    return 0 if place == 0 else int(words[4 * place - 3])


def _entry_of(words: memoryview, place: int) -> tuple[int, int, int, int]:
    crc, relative, length, position = words[4 * place : 4 * place + 4]
    return crc, relative, length, position
