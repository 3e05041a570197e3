"""Reads: by index, as raw frames, as a stream of frames or of one value's bytes. Every byte is verified first.

The frame that holds an index is found by segment, index entry, and a short walk over frame headers.

A read changes only which files are open, which indexes are in memory, and where recent range reads ended: the next one
that begins there needs no lookup.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

from crc32c import crc32c

from ..errors import (
    ChainBroken,
    FrameCorrupt,
    FrameInvalid,
    IndexExpired,
    IndexOutOfBounds,
    LogClosed,
    NoRoom,
    NotFrameBoundary,
    NotYetFlushed,
    ResourcesExhausted,
    Unreadable,
)
from ..frames import HEADER_BYTES, Frame, FrameHeader, Kind, Tail, decode_header, walk_headers
from ..options import STORE_HEADER_BYTES
from ..state import LogState
from ..storage import Storage, read_ahead
from .index import FrameIndex, rebuild_index
from .segments import Segment
from .store import decode_store_header, store_name
from .survey import Survey
from .value_stream import BlobStream, ValueStream, record_stream

_STREAM_BYTES = 1 << 20
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
    """Finds frames, on the writer's thread. Its state: where recent range reads ended, and known rot."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._boundaries: dict[int, tuple[Segment, int]] = {}
        self._unindexable: dict[Segment, tuple[int, str]] = {}  # The position of the rot in it, and what it is.
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
            except (FileNotFoundError, Unreadable):
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
        try:
            raw = store.read_at(position, min(self._lookup_bytes, end - position)) if position < end else b""
        except Unreadable as error:
            raw = self._before(segment, position, error)
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
                try:
                    raw, offset = store.read_at(start, min(self._lookup_bytes, max(0, end - start))), 0
                except Unreadable as error:
                    raw, offset = self._before(segment, start, error), 0
                last = len(raw) - HEADER_BYTES
                if last < 0:
                    break
            crc, length, first, count = glance(raw, offset)
        raise self.corrupt(segment, start + offset, f"there is no frame with index {expected} here")

    def _before(self, segment: Segment, position: int, error: Unreadable) -> bytes:
        """Return what was read of the frames at `position` before what cannot be, if that is one header at least."""
        if len(error.before) < HEADER_BYTES:
            raise self.corrupt(segment, position, error.reason) from error
        return error.before

    def boundary_at_or_below(self, index: int) -> int:
        """Return the highest frame boundary at or below `index`.

        Raises:
            IndexOutOfBounds, IndexExpired: `index` is below the log.
        """
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

    def follows(self, origin: Tail) -> bool:
        """Return whether the log begins at `origin` or holds the frame that ends there, and so continues from it."""
        state, index = self._state, origin.index
        if not state.origin.index <= index <= state.tail.index:
            return False
        if index in (state.origin.index, state.tail.index):
            return origin in (state.origin, state.tail)
        try:
            return self.end_before(index)[0] == origin
        except NotFrameBoundary:
            return False

    def members_index_before(self, index: int) -> int | None:
        """Return the index of the last members record before the segment in which the frame before `index` ends.

        It is the log's `members_index` after a truncation to `index`, if that segment has no members record.

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
        """Return the frame bytes between two frame boundaries.

        Raises:
            NotFrameBoundary, IndexOutOfBounds, IndexExpired: an index is not a boundary in this log.
        """
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

    def boundary_within(self, from_index: int, to_index: int, max_bytes: int) -> tuple[int, int]:
        """Return the last boundary up to which the frames from a boundary on have at most `max_bytes`, and their bytes.

        There is one frame at least, and none from the boundary `to_index` on. No payload is read.

        Raises:
            NotFrameBoundary, IndexOutOfBounds, IndexExpired: an index is not a boundary in this log.
            FrameCorrupt: a header that must be read is corrupt.
        """
        size = self.bytes_between(from_index, to_index)
        if size <= max_bytes:
            return to_index, size
        segment, position = self._state.segments.ahead(*self.boundary(from_index), max_bytes)
        self.written_end(segment, to_index - 1)
        index = self._boundary_before(segment, position, to_index)
        if index <= from_index:
            index = self.find(from_index)[4]
        return index, self.bytes_between(from_index, index)

    def _boundary_before(self, segment: Segment, position: int, to_index: int) -> int:
        """Return the last boundary at or before a position among the frames of a segment, which is below `to_index`."""
        state, near = self._state, segment.base_index
        with suppress(FileNotFoundError, Unreadable):
            index = state.writer.index if segment is state.writer.segment else state.segments.index(segment)
            near += index.index_near(position)
        # An index file is only a hint: what it names is looked up, and so verified.
        if near >= to_index or state.segments.holding(near) is not segment:
            near = segment.base_index
        _, store, start, boundary, _, _, _ = self.find(near)
        if start > position:
            start, boundary = STORE_HEADER_BYTES, segment.base_index
        raw, at = b"", start
        try:
            while True:
                if start + HEADER_BYTES > at + len(raw):
                    raw, at = read_ahead(store, start, self._lookup_bytes, HEADER_BYTES), start
                header = decode_header(raw, start - at)
                if start + header.size > position:
                    return boundary
                start, boundary = start + header.size, header.next_index
        except FrameInvalid as error:
            raise self.corrupt(segment, start, error.reason) from error

    def remember(self, index: int, segment: Segment, position: int) -> None:
        """Remember where the frame at `index` begins, because a range read ended before it."""
        boundaries = self._boundaries
        boundaries.pop(index, None)
        boundaries[index] = (segment, position)
        if len(boundaries) > _MAX_BOUNDARIES:
            del boundaries[next(iter(boundaries))]

    def forget_boundaries(self) -> None:
        """Forget where range reads ended, and rot, because segments were removed or truncated."""
        self._boundaries.clear()
        self._unindexable.clear()

    def store(self, segment: Segment) -> Storage:
        """Return the open store of any segment."""
        writer = self._state.writer
        return writer.store if segment is writer.segment else self._state.segments.store(segment)

    def written_end(self, segment: Segment, index: int) -> int:
        """Return where the frames of a segment end in its file; write buffered ones out if `index` is among them.

        Raises:
            ResourcesExhausted: the disk has no room to write them.
        """
        writer = self._state.writer
        if segment is not writer.segment:
            return segment.end
        if writer.unwritten_index is not None and index >= writer.unwritten_index:
            self._state.refuse_if_unwritable()
            try:  # `suppress` would cost three calls a frame.
                if not writer.is_stuck:
                    with self._state.writing_out:
                        writer.write_out()
            except NoRoom:  # It is stuck.
                pass
            if writer.is_stuck:
                raise ResourcesExhausted(store_name(segment.base_index), "the disk has no room for its last frames")
        return writer.written

    def _rebuilt_index(self, segment: Segment) -> FrameIndex:
        """Make the index of a read segment from its frames, and write its file. Rot in them is found once."""
        if segment in self._unindexable:
            raise self.corrupt(segment, *self._unindexable[segment])
        file = store_name(segment.base_index)
        store = self.store(segment)
        try:
            header = decode_store_header(store.read_at(0, STORE_HEADER_BYTES), file)
            survey = Survey(header, self._state.options.index_interval_bytes, None)
            survey.glance(store, segment.end)
        except FrameInvalid as error:
            self._unindexable[segment] = (error.position, error.reason)
            raise self.corrupt(segment, error.position, error.reason) from error
        if self._state.failure is None:
            with self._state.failing("writing an index"):
                rebuild_index(self._state.files, survey.index)
        self._state.segments.replace_index(segment, survey.index)
        return survey.index

    def corrupt(self, segment: Segment, position: int, reason: str) -> FrameCorrupt:
        """Return the error for rotten bytes, and note that this log has rot."""
        return self._state.corrupt(store_name(segment.base_index), position, reason)


class Reader:
    """Reads the frames of a log, on the writer's thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.lookup = Lookup(state)

    @property
    def rot(self) -> str:
        """What and where the first rot is that a read found since the log was opened; empty if none did."""
        return self._state.rot

    def frame(self, index: int) -> Frame:
        """Return the readable frame that holds `index`, verified.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: as `Log.read`.
        """
        self._refuse_unreadable(index)
        segment, store, position, _, _, raw, start = self.lookup.find(index)
        offset = position - start
        try:
            header = decode_header(raw, offset)
            body = offset + HEADER_BYTES
            payload = raw[body : body + header[1]]
            if len(payload) < header[1]:
                payload = store.read_at(position + HEADER_BYTES, header[1])
            if len(payload) < header[1] or crc32c(payload) != header[10]:
                raise FrameInvalid("the payload's crc32c differs")
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position, error.reason) from error
        return Frame(header, payload)

    def value_stream(self, index: int) -> ValueStream:
        """Return a stream of the bytes of the blob, or of the bytes value, at `index`. Memory use is one chunk.

        A blob's payload is read later, by the stream. Close it. Any one thread may use it, even while the log expires
        its segment.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: as `Log.read`.
            PayloadInvalid: the record is not bytes.
        """
        segment, position, header = self._header(index)
        if header.kind != Kind.BLOB:
            return record_stream(self.frame(index), index)
        return BlobStream(self._state, segment, position, header)

    def header(self, index: int) -> FrameHeader:
        """Return the header of the readable frame that holds `index`. Raises as `frame`."""
        return self._header(index)[2]

    def _header(self, index: int) -> tuple[Segment, int, FrameHeader]:
        self._refuse_unreadable(index)
        segment, _, position, _, _, raw, start = self.lookup.find(index)
        try:
            return segment, position, decode_header(raw, position - start)
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position, error.reason) from error

    def frames(self, from_index: int, max_bytes: int, to_index: int | None, unflushed: bool) -> tuple[bytes, int]:
        """Return what `Log.read_frames` does."""
        state = self._state
        bound = state.tail.index if unflushed else state.readable_index
        if to_index is not None and to_index < bound:
            bound = to_index
        if from_index >= bound:
            if from_index != state.tail.index:
                self.lookup.refuse_outside(from_index)
            return b"", from_index
        if not state.closed:
            self.lookup.written_end(state.writer.segment, bound - 1)
            recent = state.writer.recent_frames(from_index, bound, state.tail.index)
            if recent and len(recent) <= max_bytes:
                return recent, bound
        segment, position = self.lookup.boundary(from_index)
        raw = self._span(segment, position, bound - 1, max_bytes)
        size, next_index = 0, from_index
        try:
            for offset, header in self._verified(raw, segment, position, from_index, None):
                if header.index + header.count > bound:
                    break
                size, next_index = offset + HEADER_BYTES + header.length, header.index + header.count
        except FrameCorrupt:
            if not size:
                raise
        self.lookup.remember(next_index, segment, position + size)
        return (raw if size == len(raw) else raw[:size]), next_index

    def stream(self, from_index: int, to_index: int) -> Iterator[Frame]:
        """Yield the readable frames that hold [from_index, to_index). There is one lookup, at the start.

        The log may change between two frames. The stream never yields a frame after its truncation, and never leaves a
        gap: it raises instead.

        Raises:
            IndexOutOfBounds, NotYetFlushed, FrameCorrupt: a frame of the range cannot be read.
            IndexExpired: the next frame expired before it was read.
            ChainBroken: the frame yielded last was truncated, and the next one does not follow it.
        """
        if from_index < to_index:
            self._refuse_unreadable(to_index - 1)
            yield from self._walk(from_index, to_index)

    def stream_unbounded(self, from_index: int | None = None) -> Iterator[Frame]:
        """Yield the readable frames from the one that holds `from_index`, or the lowest, to the end.

        Frames that become readable while it runs are yielded as well. Raises as `stream`.
        """
        if from_index is None:
            from_index = self._state.origin.index
        if from_index != self._state.readable_index:
            self._refuse_unreadable(from_index)
            yield from self._walk(from_index, None)

    def _walk(self, index: int, to_index: int | None) -> Iterator[Frame]:
        """Walk over frames and segments, with one lookup at the start."""
        state, lookup = self._state, self.lookup
        index = lookup.boundary_at_or_below(index)
        segment, position = lookup.boundary(index)
        crc: int | None = None
        generation = state.generation
        while index < (state.readable_index if to_index is None else to_index):
            # Since the last chunk the log may have been truncated, reset, expired in part, or closed.
            self._refuse_unreadable(index)
            if generation != state.generation:
                generation = state.generation
                segment, position = self._resume(index, crc)
            elif position == segment.end and segment is not state.writer.segment:
                segment, position = state.segments.holding(index), STORE_HEADER_BYTES
            bound = state.readable_index if to_index is None else min(to_index, state.readable_index)
            raw = self._span(segment, position, bound - 1, _STREAM_BYTES)
            read = 0
            for offset, header in self._verified(raw, segment, position, index, crc):
                body = offset + HEADER_BYTES
                read = body + header[1]
                index, crc = header[2] + header[5], header[0]
                yield Frame(header, raw[body:read])
                if index >= bound or generation != state.generation:
                    break
            position += read
        if to_index is None and generation != state.generation:
            # The frame yielded last may have been truncated since: the stream must not end without an error.
            if index > state.readable_index:
                self._refuse_unreadable(index)
            self._resume(index, crc)

    def _resume(self, index: int, crc: int | None) -> tuple[Segment, int]:
        """Return the location of the frame at `index`, after a truncation or reset since the previous frame was read.

        Raises:
            ChainBroken: the previous frame was replaced, or `index` is no longer a boundary.
        """
        try:
            tail, segment, position = self.lookup.end_before(index)
        except NotFrameBoundary as inside:
            raise ChainBroken(index, "index", index, inside.frame_index) from inside
        if crc is not None and tail.crc32c != crc:
            raise ChainBroken(index, "prev_crc32c", crc, tail.crc32c)
        return (segment, position) if index == self._state.tail.index else self.lookup.boundary(index)

    def _refuse_unreadable(self, index: int) -> None:
        """Raise the error if the record at `index` cannot be read."""
        state = self._state
        if not state.origin[0] <= index < state.readable_index or state.closed:
            self.lookup.refuse_outside(index)
            raise NotYetFlushed(index, state.readable_index)

    def _span(self, segment: Segment, position: int, last_index: int, max_bytes: int) -> bytes:
        """Return the bytes from a boundary to `last_index`'s frame: at most `max_bytes`, but one frame at least."""
        end = self.lookup.written_end(segment, last_index)
        store = self.lookup.store(segment)
        try:
            raw = read_ahead(store, position, min(max(max_bytes, HEADER_BYTES), end - position), HEADER_BYTES)
            size = decode_header(raw).size
            if size > len(raw):
                if position + size > end:
                    raise FrameInvalid("the payload is cut short")
                raw = store.read_at(position, size)
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position, error.reason) from error
        return raw

    def _verified(
        self, raw: bytes, segment: Segment, position: int, index: int, crc: int | None
    ) -> Iterator[tuple[int, FrameHeader]]:
        """Yield the whole frames in `raw` with their offsets, verified by checksum and chain."""
        try:
            for offset, header in walk_headers(raw, partial=True):
                if header[2] != index or (crc is not None and header[6] != crc):
                    raise FrameInvalid("it does not follow the previous frame", offset)
                index, crc = index + header[5], header[0]
                yield offset, header
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position + error.position, error.reason) from error
