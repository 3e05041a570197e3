"""The files of one segment, opened read-only, while a log may write them: its frames, and where an index, a time or a
byte is among them.

The index file is only a hint, as it is to the log: an entry is used if the frame at its position has its crc32c and
index; otherwise the walk starts at the segment's first frame. The write segment has no index file.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing, suppress

from ..errors import FrameCorrupt, FrameInvalid, UnknownVersion, Unreadable
from ..frames import HEADER_BYTES, FrameHeader, Tail, decode_header
from ..options import STORE_HEADER_BYTES
from ..segment.index import IndexEntry, StoredIndex
from ..segment.store import StoreHeader, decode_store_header, index_name, store_name
from ..segment.survey import walk_store
from ..storage import Directory, read_ahead

_WALK_BYTES = 1 << 16


class IndexCheck:
    """Compares an index file with the frames of its store, in their order."""

    def __init__(self, base: int, entries: Iterator[IndexEntry] | None) -> None:
        """`entries`: of the segment at `base`; None: the file is not its index, or cannot be read."""
        self._base = base
        self._entries = entries or iter(())
        self._next = next(self._entries, None)
        self._fault: str | None = None
        if entries is None:
            self._fault = "it cannot be read, is not this segment's index, or is of another version"
        elif self._next is None or self._next.position != STORE_HEADER_BYTES:
            self._fault = "it does not begin with the first frame"

    def take(self, position: int, header: FrameHeader) -> None:
        """Compare the next frame, which begins at `position`."""
        entry = self._next
        if entry is not None and entry.position <= position:
            if entry != (header.crc32c, header.index - self._base, header.length, position):
                self._fault = self._fault or f"the entry for byte {entry.position} does not match the frame there"
            self._next = next(self._entries, None)

    def fault(self, to_index: int | None = None) -> str | None:
        """What is wrong with the index file, after the last frame; None if nothing is.

        `to_index`: the walk ended there, and entries of later records are not judged.
        """
        entry = self._next
        if self._fault is None and entry is not None and (to_index is None or self._base + entry.relative < to_index):
            return f"it has an entry for byte {entry.position}, where no frame begins"
        return self._fault


class SegmentFile:
    """An open store. Close it. Its frames below the commit_index never change."""

    def __init__(self, files: Directory, base: int) -> None:
        """Raises FileNotFoundError: the segment has expired."""
        self.base = base
        self.file, self.index_file = store_name(base), index_name(base)
        self._files = files
        self.store = files.open(self.file)
        self.end = self.store.size
        """The size of the file; in the write segment, preallocated space follows the frames."""
        self._listed: list[IndexEntry] | None = None

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def header(self) -> StoreHeader:
        """The store's header.

        Raises:
            FrameCorrupt: it is not the header of this segment.
            UnknownVersion: a later program wrote it.
        """
        try:
            header = decode_store_header(self.store.read_at(0, STORE_HEADER_BYTES), self.file)
        except FrameInvalid as error:
            raise self.corrupt(0, error.reason) from error
        if header.base_index != self.base:
            raise self.corrupt(8, f"its header names base index {header.base_index}")
        return header

    def start(self, index: int) -> tuple[Tail, int]:
        """The chain's end before the frame that holds `index`, and the position of that frame.

        Raises:
            FrameCorrupt: no frame holds it.
        """
        if index == self.base:
            return self.header().origin, STORE_HEADER_BYTES
        place = bisect_left(self._places(), index - self.base, key=lambda entry: entry.relative)
        # The last entry before the index may be of the very frame that holds it: then use the previous entry.
        for before in (place - 1, place - 2):
            if (position := self._named(before)) is not None:
                found = self._walk_to(index, position)
                if found is not None:
                    return found
        found = self._walk_to(index, STORE_HEADER_BYTES)
        if found is None:
            raise self.corrupt(self.end, f"index {index} is not in it")
        return found

    def _walk_to(self, index: int, position: int) -> tuple[Tail, int] | None:
        tail = self.header().origin if position == STORE_HEADER_BYTES else None
        for start, header in self.headers(position, index + 1):
            if header.next_index > index:
                return None if tail is None else (tail, start)
            tail = header.tail
        return None

    def index_at(self, timestamp: int, to_index: int) -> int:
        """The first index whose record is not older than the timestamp; `to_index` if there is none below that."""
        places = self._places()
        place = bisect_left(range(len(places)), timestamp, key=self._timestamp)
        for _, header in self.headers(self._named(place - 1) or STORE_HEADER_BYTES, to_index):
            if header.timestamp >= timestamp:
                return min(header.index, to_index)
        return to_index

    def _timestamp(self, place: int) -> int:
        position = self._named(place)
        return 0 if position is None else self._header_at(position).timestamp

    def index_within(self, from_index: int, to_index: int, end: int, *, one_frame: bool) -> int:
        """The index after the frames of [from_index, to_index) that end at or before position `end`; with `one_frame`,
        at least the index after the first of them.
        """
        places = self._places()
        place = bisect_right(places, end - HEADER_BYTES, key=lambda entry: entry.position) - 1
        if place >= 0 and self.base + places[place].relative <= from_index:
            place = bisect_right(places, from_index - self.base, key=lambda entry: entry.relative) - 1
        reached = from_index
        for start, header in self.headers(self._named(place) or STORE_HEADER_BYTES, to_index):
            reached = max(reached, min(header.index, to_index))
            is_first = header.index <= from_index < header.next_index
            if start + header.size > end and not (one_frame and is_first):
                break
            reached = max(reached, min(header.next_index, to_index))
        return reached

    def frames(self, position: int = STORE_HEADER_BYTES) -> Iterator[tuple[FrameHeader, memoryview | None]]:
        """Header and payload of the frames from a boundary to the end of the file, verified by checksum.

        The payload of a frame above 1 MiB is None.

        Raises:
            FrameCorrupt: what follows is not a frame; in the write segment, it may be preallocated space.
            UnknownVersion: a frame is valid, in a version that this program does not know.
        """
        try:
            yield from walk_store(self.store, position, self.end, self.file)
        except FrameInvalid as error:
            raise self.corrupt(error.position, error.reason) from error

    def headers(self, position: int, to_index: int) -> Iterator[tuple[int, FrameHeader]]:
        """The positions and verified headers of the frames from a boundary on, up to the one that holds `to_index - 1`.

        The bytes after that may be half written. Raises FrameCorrupt.
        """
        raw, start = b"", position
        while position + HEADER_BYTES <= self.end:
            try:
                if position + HEADER_BYTES > start + len(raw):
                    raw, start = read_ahead(self.store, position, _WALK_BYTES, HEADER_BYTES), position
                header = decode_header(raw, position - start)
            except FrameInvalid as error:
                raise self.corrupt(position, error.reason) from error
            yield position, header
            if header.next_index >= to_index:
                return
            position += header.size

    def end_index(self) -> int | None:
        """The index after the last frame; None if something else follows it, or the index file names a later frame:
        then the file is not as it was sealed.
        """
        index, position = self.base, STORE_HEADER_BYTES
        with suppress(FrameCorrupt, UnknownVersion):
            for start, header in self.headers(STORE_HEADER_BYTES, sys.maxsize):
                index, position = header.next_index, start + header.size
        places = self._places()
        is_cut = bool(places) and places[-1].position >= position
        return index if position == self.end and not is_cut else None

    def next_frame(self, position: int) -> tuple[int, FrameHeader] | None:
        """Position and header of the first frame after the one at `position` that can be found; None if none can.

        That one's length leads to it, or the index file, whatever of the frames before it is damaged.
        """
        with suppress(FrameInvalid, UnknownVersion):
            following = position + decode_header(self.store.read_at(position, HEADER_BYTES)).size
            return following, decode_header(self.store.read_at(following, HEADER_BYTES))
        places = self._places()
        for entry in places[bisect_right(places, position, key=lambda entry: entry.position) :]:
            with suppress(FrameInvalid, UnknownVersion):
                header = decode_header(self.store.read_at(entry.position, HEADER_BYTES))
                if header.crc32c == entry.crc32c:
                    return entry.position, header
        return None

    def _header_at(self, position: int) -> FrameHeader:
        try:
            return decode_header(self.store.read_at(position, HEADER_BYTES))
        except FrameInvalid as error:
            raise self.corrupt(position, error.reason) from error

    def _named(self, place: int) -> int | None:
        """The position in an entry of the index file, if the entry's frame is there."""
        places = self._places()
        if not 0 <= place < len(places):
            return None
        entry, header = places[place], None
        if entry.position >= STORE_HEADER_BYTES:
            with suppress(FrameInvalid):
                header = decode_header(self.store.read_at(entry.position, HEADER_BYTES))
        if header is None or header.crc32c != entry.crc32c or header.index != self.base + entry.relative:
            self._listed = []  # The index file is wrong: ignore it and walk the store.
            return None
        return entry.position

    def _places(self) -> list[IndexEntry]:
        """The entries of the index file; empty if it is missing or wrong."""
        if self._listed is None:
            self._listed = []
            with suppress(FileNotFoundError, Unreadable):
                self._listed.extend(self._entries() or ())
        return self._listed

    def index_check(self) -> IndexCheck | None:
        """A comparison of the index file with the frames; None if there is no such file."""
        try:
            return IndexCheck(self.base, self._entries())
        except FileNotFoundError:
            return None
        except Unreadable:
            return IndexCheck(self.base, None)

    def _entries(self) -> Iterator[IndexEntry] | None:
        """The entries of the index file; None if it is not this segment's. Raises FileNotFoundError."""
        with closing(StoredIndex(self._files.open(self.index_file))) as stored:
            return stored.entries() if stored.marker_fits(self.base) else None

    def corrupt(self, position: int, reason: str) -> FrameCorrupt:
        """The error for corrupt bytes in this file."""
        return FrameCorrupt(f"{self._files.path}/{self.file}", position, reason)
