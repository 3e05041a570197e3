"""The files of one segment, opened read-only, and how to find an index, a time or a byte in them.

The index file is only a hint, as it is to the log: an entry is used if the frame at its position has its crc32c and
index; otherwise the walk starts at the segment's first frame. The write segment has no index file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing, suppress

from quire.log import Directory, FrameCorrupt, FrameHeader, FrameInvalid, Storage, Tail, decode_header
from quire.log.frames import HEADER_BYTES
from quire.log.options import STORE_HEADER_BYTES
from quire.log.segment.index import StoredIndex
from quire.log.segment.store import StoreHeader, decode_store_header, index_name, store_name

_WALK_BYTES = 1 << 16


class SegmentFile:
    """An open store. Close it. Its frames below the commit_index never change."""

    def __init__(self, files: Directory, base: int) -> None:
        """Raises FileNotFoundError: the segment has expired."""
        self.base = base
        self.file = store_name(base)
        self._files = files
        self.store: Storage = files.open(self.file)
        self.end = self.store.size
        """The size of the file; in the write segment, preallocated space follows the frames."""
        self._listed: list[tuple[int, int, int]] | None = None

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def header(self) -> StoreHeader:
        """The store's header. Raises FrameCorrupt."""
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
        place = bisect_left(self._places(), index - self.base, key=lambda named: named[1])
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
            tail = Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)
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
        place = bisect_right(places, end - HEADER_BYTES, key=lambda named: named[2]) - 1
        if place >= 0 and self.base + places[place][1] <= from_index:
            place = bisect_right(places, from_index - self.base, key=lambda named: named[1]) - 1
        reached = from_index
        for start, header in self.headers(self._named(place) or STORE_HEADER_BYTES, to_index):
            reached = max(reached, min(header.index, to_index))
            is_first = header.index <= from_index < header.next_index
            if start + header.size > end and not (one_frame and is_first):
                break
            reached = max(reached, min(header.next_index, to_index))
        return reached

    def headers(self, position: int, to_index: int) -> Iterator[tuple[int, FrameHeader]]:
        """The positions and verified headers of the frames from a boundary on, up to the one that holds `to_index - 1`.

        The bytes after that may be half written. Raises FrameCorrupt.
        """
        raw, start = b"", position
        while position + HEADER_BYTES <= self.end:
            if position + HEADER_BYTES > start + len(raw):
                raw, start = self.store.read_at(position, _WALK_BYTES), position
            try:
                header = decode_header(raw, position - start)
            except FrameInvalid as error:
                raise self.corrupt(position, error.reason) from error
            yield position, header
            if header.next_index >= to_index:
                return
            position += header.size

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
        crc, relative, position = places[place]
        header = None
        if position >= STORE_HEADER_BYTES:
            with suppress(FrameInvalid):
                header = decode_header(self.store.read_at(position, HEADER_BYTES))
        if header is None or header.crc32c != crc or header.index != self.base + relative:
            self._listed = []  # The index file is wrong: ignore it and walk the store.
            return None
        return position

    def _places(self) -> list[tuple[int, int, int]]:
        """(crc32c, relative index, position) of each entry of the index file; empty if it is missing or wrong."""
        if self._listed is None:
            self._listed = self._read_places()
        return self._listed

    def _read_places(self) -> list[tuple[int, int, int]]:
        name = index_name(self.base)
        try:
            storage = self._files.open(name)
        except FileNotFoundError:
            return []
        with closing(StoredIndex(storage)) as stored:
            if not stored.marker_fits(self.base):
                return []
            return stored.load().places()

    def corrupt(self, position: int, reason: str) -> FrameCorrupt:
        """The error for corrupt bytes in this file."""
        return FrameCorrupt(f"{self._files.path}/{self.file}", position, reason)
