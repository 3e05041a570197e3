"""Reads: by index, in raw whole frames, as a stream of frames; every byte that leaves was verified.

Plain reads change no state but the borders where recent range reads ended, so that the next one needs no lookup.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from .errors import (
    FrameCorrupt,
    FrameInvalid,
    IndexExpired,
    IndexOutOfBounds,
    LogClosed,
    NotFrameBorder,
    NotYetFlushed,
)
from .frames import HEADER_BYTES, Frame, FrameHeader, Tail, decode_header, walk_headers
from .index import FrameIndex, IndexEntry
from .options import STORE_HEADER_BYTES
from .sealed import rebuild_index
from .segments import Segment
from .state import LogState
from .storage import Storage
from .store import decode_store_header, store_name
from .survey import Survey

# Enough for the frames from one index entry to the next, and the one looked for.
_LOOKUP_BYTES = 8192
_STREAM_BYTES = 1 << 20
_MAX_BORDERS = 64

# crc32c, length, index, count: a walk to an index needs no more; the frame found is verified whole.
_GLANCE = struct.Struct("<IIQ16xI")


class Found(NamedTuple):
    """Where the frame that holds an index begins, and bytes from `start` on that were read on the way."""

    segment: Segment
    store: Storage
    position: int
    index: int  # type: ignore[assignment]
    next_index: int
    raw: bytes
    start: int


class Reader:
    """Reads the frames of a log, on the writer's thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._borders: dict[int, tuple[Segment, int]] = {}

    def forget_borders(self) -> None:
        """Forget where range reads ended: the log was truncated."""
        self._borders.clear()

    def refuse_outside(self, index: int) -> None:
        """Raise the error for an index that the log does not hold, if it does not."""
        state = self._state
        if state.closed:
            raise LogClosed
        lowest = state.origin.index
        if index >= state.tail.index:
            raise IndexOutOfBounds(index, lowest, state.tail.index)
        if index < lowest:
            if state.origin[1:] != (0, 0, 0):
                raise IndexExpired(index, lowest)
            raise IndexOutOfBounds(index, lowest, state.tail.index)

    def frame(self, index: int) -> Frame:
        """Return the durable frame that holds `index`, verified."""
        self.refuse_outside(index)
        durable_index = self._state.durable.index
        if index >= durable_index:
            raise NotYetFlushed(index, durable_index)
        found = self._find(index)
        offset = found.position - found.start
        try:
            header = decode_header(found.raw, offset)
            body = offset + HEADER_BYTES
            payload = found.raw[body : body + header.length]
            if len(payload) < header.length:
                payload = found.store.read_at(found.position + HEADER_BYTES, header.length)
            if len(payload) < header.length or crc32c(payload) != header.payload_crc32c:
                raise FrameInvalid("the payload's crc32c differs")
        except FrameInvalid as error:
            raise self._corrupt(found.segment, found.position, error.reason) from error
        return Frame(header, payload)

    def frames(self, from_index: int, max_bytes: int, to_index: int | None, unflushed: bool) -> tuple[bytes, int]:
        """Return raw whole frames from a border on, and the index behind them."""
        state = self._state
        bound = state.tail.index if unflushed else state.durable.index
        if to_index is not None and to_index < bound:
            bound = to_index
        if from_index >= bound:
            if from_index != state.tail.index:
                self.refuse_outside(from_index)
            return b"", from_index
        segment, position = self._border(from_index)
        raw = self._span(segment, position, bound - 1, max_bytes)
        size, next_index = 0, from_index
        for offset, header in self._verified(raw, segment, position, from_index):
            if header.index + header.count > bound:
                break
            size, next_index = offset + HEADER_BYTES + header.length, header.index + header.count
        self._remember(next_index, segment, position + size)
        return (raw if size == len(raw) else raw[:size]), next_index

    def stream(self, from_index: int, to_index: int) -> Iterator[Frame]:
        """Yield the durable frames that hold [from_index, to_index)."""
        if from_index >= to_index:
            return
        self.refuse_outside(to_index - 1)
        if to_index > self._state.durable.index:
            raise NotYetFlushed(to_index - 1, self._state.durable.index)
        index = self.border_at_or_below(from_index)
        while index < to_index:
            segment, position = self._border(index)
            raw = self._span(segment, position, to_index - 1, _STREAM_BYTES)
            position_behind = position
            for offset, header in self._verified(raw, segment, position, index):
                body = offset + HEADER_BYTES
                index = header.index + header.count
                position_behind = position + body + header.length
                yield Frame(header, raw[body : body + header.length])
                if index >= to_index:
                    return
            self._remember(index, segment, position_behind)

    def border_at_or_below(self, index: int) -> int:
        """Return the greatest frame border that is not above `index`."""
        if index >= self._state.tail.index:
            return self._state.tail.index
        self.refuse_outside(index)
        if index == self._state.segments.holding(index).base_index or index in self._borders:
            return index
        return self._find(index).index

    def place_behind(self, index: int) -> tuple[Tail, Segment, int]:
        """Return the chain's end before the border `index`, with the segment and position where that frame ends.

        Raises:
            NotFrameBorder: `index` lies inside a frame.
        """
        state = self._state
        if index == state.origin.index:
            return state.origin, state.segments.first, STORE_HEADER_BYTES
        found = self._find(index - 1)
        if found.next_index != index:
            raise NotFrameBorder(index, found.index, found.next_index)
        try:
            header = decode_header(found.raw, found.position - found.start)
        except FrameInvalid as error:
            raise self._corrupt(found.segment, found.position, error.reason) from error
        tail = Tail(index, header.epoch, header.timestamp, header.crc32c)
        return tail, found.segment, found.position + header.size

    def bytes_between(self, from_index: int, to_index: int) -> int:
        """Return the frame bytes between two frame borders."""
        first, start = self._place(from_index)
        last, end = self._place(to_index)
        segments = self._state.segments
        between = range(segments.place_of(first.base_index), segments.place_of(last.base_index))
        return end - start + sum(segments.at(place).end - STORE_HEADER_BYTES for place in between)

    def _place(self, index: int) -> tuple[Segment, int]:
        writer = self._state.writer
        if index == self._state.tail.index and not self._state.closed:
            return writer.segment, writer.segment.end
        return self._border(index)

    def _border(self, index: int) -> tuple[Segment, int]:
        self.refuse_outside(index)
        segment = self._state.segments.holding(index)
        if index == segment.base_index:
            return segment, STORE_HEADER_BYTES
        known = self._borders.get(index)
        if known is not None and known[0] is segment:
            return known
        found = self._find(index)
        if found.index != index:
            raise NotFrameBorder(index, found.index, found.next_index)
        return segment, found.position

    def _remember(self, index: int, segment: Segment, position: int) -> None:
        borders = self._borders
        borders.pop(index, None)
        borders[index] = (segment, position)
        if len(borders) > _MAX_BORDERS:
            del borders[next(iter(borders))]

    def _store(self, segment: Segment) -> Storage:
        writer = self._state.writer
        return writer.store if segment is writer.segment else self._state.segments.store(segment)

    def _written_end(self, segment: Segment, index: int) -> int:
        """Return where the frames of a segment end in its file, the one that holds `index` among them."""
        writer = self._state.writer
        if segment is not writer.segment:
            return segment.end
        if writer.unwritten_index is not None and index >= writer.unwritten_index:
            with self._state.failing("writing out"):
                writer.write_out()
        return writer.written

    def _span(self, segment: Segment, position: int, last_index: int, max_bytes: int) -> bytes:
        """Return the bytes from a border on: at most `max_bytes`, but at least one frame, up to `last_index`'s."""
        end = self._written_end(segment, last_index)
        store = self._store(segment)
        raw = store.read_at(position, min(max(max_bytes, HEADER_BYTES), end - position))
        try:
            size = decode_header(raw).size
        except FrameInvalid as error:
            raise self._corrupt(segment, position, error.reason) from error
        if size > len(raw):
            if position + size > end:
                raise self._corrupt(segment, position, "the payload is cut short")
            raw = store.read_at(position, size)
        return raw

    def _verified(self, raw: bytes, segment: Segment, position: int, index: int) -> Iterator[tuple[int, FrameHeader]]:
        """Yield the whole frames in `raw` with their offsets, having checked crcs and that each follows the last."""
        crc: int | None = None
        try:
            for offset, header in walk_headers(raw, partial=True):
                if header.index != index or (crc is not None and header.prev_crc32c != crc):
                    raise FrameInvalid("it does not follow the frame before", offset)
                index, crc = index + header.count, header.crc32c
                yield offset, header
        except FrameInvalid as error:
            raise self._corrupt(segment, position + error.position, error.reason) from error

    def _find(self, index: int) -> Found:
        """Find the frame that holds `index`, which is in the log; a wrong index file is rebuilt."""
        segment = self._state.segments.holding(index)
        entry = self._entry(segment, index)
        found = None if entry is None else self._walk(segment, entry, index)
        if found is not None:
            return found
        # The index names another frame, or none. That of the write segment is in memory: there it is the store.
        if segment is not self._state.writer.segment:
            entry = self._rebuilt_index(segment).entry_at(index - segment.base_index)
            found = None if entry is None else self._walk(segment, entry, index)
        if found is None:
            position = STORE_HEADER_BYTES if entry is None else entry.position
            raise self._corrupt(segment, position, "another frame stands where the index names one")
        return found

    def _entry(self, segment: Segment, index: int) -> IndexEntry | None:
        relative = index - segment.base_index
        writer = self._state.writer
        if segment is writer.segment:
            return writer.index.entry_at(relative)
        try:
            return self._state.segments.index(segment).entry_at(relative)
        except FileNotFoundError:
            return None

    def _walk(self, segment: Segment, entry: IndexEntry, index: int) -> Found | None:
        """Walk from an index entry to the frame that holds `index`; None if the entry does not fit the store."""
        end = self._written_end(segment, index)
        store = self._store(segment)
        position, expected = entry.position, segment.base_index + entry.relative
        raw, start = b"", position
        while True:
            offset = position - start
            if offset + HEADER_BYTES > len(raw):
                raw, start, offset = store.read_at(position, min(_LOOKUP_BYTES, max(0, end - position))), position, 0
            if len(raw) < HEADER_BYTES:
                crc, length, found, count = 0, 0, -1, 0
            else:
                crc, length, found, count = _GLANCE.unpack_from(raw, offset)
            if position == entry.position and (crc != entry.crc32c or found != expected):
                return None
            if found != expected or count == 0:
                raise self._corrupt(segment, position, f"no frame with index {expected} begins here")
            if found + count > index:
                return Found(segment, store, position, found, found + count, raw, start)
            expected += count
            position += HEADER_BYTES + length

    def _rebuilt_index(self, segment: Segment) -> FrameIndex:
        """Walk over a read segment and write its index file anew."""
        file = store_name(segment.base_index)
        store = self._store(segment)
        self._state.segments.forget_index(segment)
        try:
            header = decode_store_header(store.read_at(0, STORE_HEADER_BYTES), file)
            survey = Survey(header, self._state.options.index_interval_bytes, None)
            survey.glance(store, segment.end)
        except FrameInvalid as error:
            raise self._corrupt(segment, error.position, error.reason) from error
        rebuild_index(self._state.files, survey.index)
        return survey.index

    @staticmethod
    def _corrupt(segment: Segment, position: int, reason: str) -> FrameCorrupt:
        return FrameCorrupt(store_name(segment.base_index), position, reason)
