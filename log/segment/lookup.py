"""Finding the frame that holds an index: segment, index entry, and a short walk over frame headers."""

from __future__ import annotations

import struct
from bisect import bisect_right

from ..errors import (
    FrameCorrupt,
    FrameInvalid,
    IndexExpired,
    IndexOutOfBounds,
    LogClosed,
    NotFrameBoundary,
)
from ..frames import HEADER_BYTES, Tail, decode_header
from ..options import STORE_HEADER_BYTES
from ..state import LogState
from ..storage import Storage
from .index import FrameIndex, rebuild_index
from .segments import Segment
from .store import decode_store_header, store_name
from .survey import Survey

_MAX_BOUNDARIES = 64
# A lookup reads the frames between two index entries, and most of the wanted frame, in one piece.
_LOOKUP_REST_BYTES = 512
_MAX_LOOKUP_BYTES = 1 << 16

# crc32c, length, index, count: all that the walk to an index needs. The frame found is then verified whole.
_GLANCE = struct.Struct("<IIQ16xI")

Found = tuple[Segment, Storage, int, int, int, bytes, int]
"""The frame that holds an index: segment, its store, position, first index, next index, and the bytes read during the
lookup with the position where they start. (A plain tuple: a NamedTuple would cost a random read 3 %.)"""


class Lookup:
    """Finds frames, on the writer's thread. Its only state is where recent range reads ended."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._boundaries: dict[int, tuple[Segment, int]] = {}
        interval = state.options.index_interval_bytes
        self._lookup_bytes = min(interval + _LOOKUP_REST_BYTES, _MAX_LOOKUP_BYTES)

    def refuse_outside(self, index: int) -> None:
        """Raise the error if the log does not hold `index`."""
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

    def find(self, index: int) -> Found:
        """Return the frame that holds `index`, which is in the log. Rebuilds a wrong index file."""
        state = self._state
        segments, writer = state.segments, state.writer
        segment = segments.at(bisect_right(segments.bases, index) - 1)
        relative = index - segment.base_index
        entry: tuple[int, int, int, int] | None
        if segment is writer.segment:
            self.written_end(segment, index)
            store, end = writer.store, writer.written
            entry = writer.index.entry_at(relative)
        else:
            store, end = segments.store(segment), segment.end
            try:
                entry = segments.index(segment).entry_at(relative)
            except FileNotFoundError:
                entry = None
        found = None if entry is None else self._walk(segment, store, end, entry, index)
        if found is None and segment is not writer.segment:
            # The index names another frame, or none. (The write segment's is in memory: there, the store is wrong.)
            entry = self._rebuilt_index(segment).entry_at(relative)
            found = None if entry is None else self._walk(segment, store, end, entry, index)
        if found is None:
            position = STORE_HEADER_BYTES if entry is None else entry[3]
            raise self.corrupt(segment, position, "the frame is not the one that the index names")
        return found

    def _walk(
        self, segment: Segment, store: Storage, end: int, entry: tuple[int, int, int, int], index: int
    ) -> Found | None:
        """Walk from an index entry to the frame that holds `index`; None if the entry does not fit the store."""
        entry_crc, relative, _, position = entry
        expected = segment.base_index + relative
        raw = store.read_at(position, min(self._lookup_bytes, end - position)) if position < end else b""
        if len(raw) < HEADER_BYTES:
            return None
        glance = _GLANCE.unpack_from
        crc, length, first, count = glance(raw)
        if crc != entry_crc or first != expected:
            return None
        start, offset = position, 0
        last = len(raw) - HEADER_BYTES
        while count and first == expected:
            expected = first + count
            if expected > index:
                return segment, store, start + offset, first, expected, raw, start
            offset += HEADER_BYTES + length
            if offset > last:
                start += offset
                raw, offset = store.read_at(start, min(self._lookup_bytes, max(0, end - start))), 0
                last = len(raw) - HEADER_BYTES
                if last < 0:
                    break
            crc, length, first, count = glance(raw, offset)
        raise self.corrupt(segment, start + offset, f"there is no frame with index {expected} here")

    def boundary_at_or_below(self, index: int) -> int:
        """Return the highest frame boundary at or below `index`."""
        if index >= self._state.tail.index:
            return self._state.tail.index
        self.refuse_outside(index)
        if index == self._state.segments.holding(index).base_index or index in self._boundaries:
            return index
        return self.find(index)[3]

    def boundary(self, index: int) -> tuple[Segment, int]:
        """Return segment and position of the frame that begins at `index`.

        Raises:
            NotFrameBoundary: `index` lies inside a frame.
        """
        self.refuse_outside(index)
        segment = self._state.segments.holding(index)
        if index == segment.base_index:
            return segment, STORE_HEADER_BYTES
        known = self._boundaries.get(index)
        if known is not None and known[0] is segment:
            return known
        _, _, position, first, following, _, _ = self.find(index)
        if first != index:
            raise NotFrameBoundary(index, first, following)
        return segment, position

    def end_before(self, index: int) -> tuple[Tail, Segment, int]:
        """Return the end of the chain before the boundary `index`, with the segment and position where that frame ends.

        Raises:
            NotFrameBoundary: `index` lies inside a frame.
        """
        state = self._state
        if index == state.origin.index:
            return state.origin, state.segments.first, STORE_HEADER_BYTES
        segment, _, position, first, following, raw, start = self.find(index - 1)
        if following != index:
            raise NotFrameBoundary(index, first, following)
        try:
            header = decode_header(raw, position - start)
        except FrameInvalid as error:
            raise self.corrupt(segment, position, error.reason) from error
        return Tail(index, header.epoch, header.timestamp, header.crc32c), segment, position + header.size

    def members_index_before(self, index: int) -> int | None:
        """Return the index of the last members record before the segment in which the frame before `index` ends.

        Raises:
            ResourcesExhausted: the segment's file cannot be opened.
        """
        state = self._state
        segment = state.segments.holding(max(index - 1, state.origin.index))
        if segment is state.writer.segment:
            return state.writer.header.members_index
        try:
            raw = self.store(segment).read_at(0, STORE_HEADER_BYTES)
            return decode_store_header(raw, store_name(segment.base_index)).members_index
        except FrameInvalid as error:
            raise self.corrupt(segment, error.position, error.reason) from error

    def bytes_between(self, from_index: int, to_index: int) -> int:
        """Return the frame bytes between two frame boundaries."""
        first, start = self._place(from_index)
        last, end = self._place(to_index)
        segments = self._state.segments
        places = segments.place_of(first.base_index), segments.place_of(last.base_index)
        return end - start + segments.bytes_between(*places)

    def _place(self, index: int) -> tuple[Segment, int]:
        writer = self._state.writer
        if index == self._state.tail.index and not self._state.closed:
            return writer.segment, writer.segment.end
        return self.boundary(index)

    def remember(self, index: int, segment: Segment, position: int) -> None:
        """Remember where the frame at `index` begins, because a range read ended before it."""
        boundaries = self._boundaries
        boundaries.pop(index, None)
        boundaries[index] = (segment, position)
        if len(boundaries) > _MAX_BOUNDARIES:
            del boundaries[next(iter(boundaries))]

    def forget_boundaries(self) -> None:
        """Forget where range reads ended, because segments were removed or truncated."""
        self._boundaries.clear()

    def store(self, segment: Segment) -> Storage:
        """Return the open store of any segment."""
        writer = self._state.writer
        return writer.store if segment is writer.segment else self._state.segments.store(segment)

    def written_end(self, segment: Segment, index: int) -> int:
        """Return where the frames of a segment end in its file; write buffered ones out if `index` is among them."""
        writer = self._state.writer
        if segment is not writer.segment:
            return segment.end
        if writer.unwritten_index is not None and index >= writer.unwritten_index:
            self._state.refuse_if_unwritable()
            with self._state.failing("writing out"):
                writer.write_out()
        return writer.written

    def _rebuilt_index(self, segment: Segment) -> FrameIndex:
        """Make the index of a read segment from its frames, and write its file."""
        file = store_name(segment.base_index)
        store = self.store(segment)
        try:
            header = decode_store_header(store.read_at(0, STORE_HEADER_BYTES), file)
            survey = Survey(header, self._state.options.index_interval_bytes, None)
            survey.glance(store, segment.end)
        except FrameInvalid as error:
            raise self.corrupt(segment, error.position, error.reason) from error
        if self._state.failure is None:
            with self._state.failing("writing an index"):
                rebuild_index(self._state.files, survey.index)
        self._state.segments.replace_index(segment, survey.index)
        return survey.index

    def corrupt(self, segment: Segment, position: int, reason: str) -> FrameCorrupt:
        """Return the error for rotten bytes, and note that this log has rot."""
        self._state.is_rotten = True
        return FrameCorrupt(store_name(segment.base_index), position, reason)
