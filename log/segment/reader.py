"""Reads: by index, as raw frames, as a stream of frames or of one value's bytes. Every byte is verified first.

A read changes only which files are open, which indexes are in memory, and where recent range reads ended: the next one
that begins there needs no lookup.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from ..errors import ChainBroken, FrameInvalid, NotFrameBoundary, NotYetFlushed
from ..frames import HEADER_BYTES, Frame, FrameHeader, Kind, decode_header, walk_headers
from ..options import STORE_HEADER_BYTES
from ..state import LogState
from .lookup import Lookup
from .segments import Segment
from .value_stream import BlobStream, ValueStream, record_stream

_STREAM_BYTES = 1 << 20


class Reader:
    """Reads the frames of a log, on the writer's thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.lookup = Lookup(state)

    def frame(self, index: int) -> Frame:
        """Return the readable frame that holds `index`, verified."""
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
        """Return a stream of the bytes of the value at `index`. A blob's payload is read later, by the stream."""
        segment, position, header = self._header(index)
        if header.kind != Kind.BLOB:
            return record_stream(self.frame(index), index)
        return BlobStream(self._state, segment, position, header)

    def header(self, index: int) -> FrameHeader:
        """Return the header of the readable frame that holds `index`."""
        return self._header(index)[2]

    def _header(self, index: int) -> tuple[Segment, int, FrameHeader]:
        self._refuse_unreadable(index)
        segment, _, position, _, _, raw, start = self.lookup.find(index)
        try:
            return segment, position, decode_header(raw, position - start)
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position, error.reason) from error

    def frames(self, from_index: int, max_bytes: int, to_index: int | None, unflushed: bool) -> tuple[bytes, int]:
        """Return whole frames from a boundary on as raw bytes, and the index after them."""
        state = self._state
        bound = state.tail.index if unflushed else state.readable_index
        if to_index is not None and to_index < bound:
            bound = to_index
        if from_index >= bound:
            if from_index != state.tail.index:
                self.lookup.refuse_outside(from_index)
            return b"", from_index
        segment, position = self.lookup.boundary(from_index)
        raw = self._span(segment, position, bound - 1, max_bytes)
        size, next_index = 0, from_index
        for offset, header in self._verified(raw, segment, position, from_index, None):
            if header.index + header.count > bound:
                break
            size, next_index = offset + HEADER_BYTES + header.length, header.index + header.count
        self.lookup.remember(next_index, segment, position + size)
        return (raw if size == len(raw) else raw[:size]), next_index

    def stream(self, from_index: int, to_index: int) -> Iterator[Frame]:
        """Yield the readable frames that hold [from_index, to_index)."""
        if from_index < to_index:
            self._refuse_unreadable(to_index - 1)
            yield from self._walk(from_index, to_index)

    def stream_unbounded(self, from_index: int) -> Iterator[Frame]:
        """Yield the readable frames from the one that holds `from_index` on, and all that become readable."""
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
        raw = store.read_at(position, min(max(max_bytes, HEADER_BYTES), end - position))
        try:
            size = decode_header(raw).size
        except FrameInvalid as error:
            raise self.lookup.corrupt(segment, position, error.reason) from error
        if size > len(raw):
            if position + size > end:
                raise self.lookup.corrupt(segment, position, "the payload is cut short")
            raw = store.read_at(position, size)
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
