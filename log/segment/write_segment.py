"""The write segment: the one store that grows, and a flush of it.

Appended frames are buffered and written in large pieces. The store is preallocated, so that a full disk is found before
anything is appended. After the room for other frames there is a reserve: when the disk is full, reserved frames use it.

A file system that copies on write may find no room for an overwrite either. The frames then wait in the buffer, and no
others are appended. What a torn write left in the file is above all that was written, and is written over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from crc32c import crc32c

from ..errors import FrameInvalid, NoRoom
from ..files import Sync, translated
from ..frames import HEADER_BYTES, FrameHeader, Tail
from ..options import STORE_HEADER_BYTES, LogOptions
from ..storage import Storage
from .index import FrameIndex
from .segments import Segment
from .store import StoreHeader, store_name

# Few frames, but large ones, reach beyond `segment_bytes`: the store grows for each of them, at least by this.
_GROWTH_BYTES = 1 << 20

RECENT_PIECES, RECENT_BYTES = 4, 1 << 18


class Flush(Sync):
    """A sync of the write segment, and what it covers: the frames that were in the file before it began."""

    def __init__(self, storage: Storage, tail: Tail, segment: Segment, position: int, generation: int) -> None:
        super().__init__(storage)
        self.tail = tail
        self.segment = segment
        self.position = position
        self.generation = generation


class WriteSegment:
    """The last segment, open for appends, with the frames that are not in its file yet."""

    __slots__ = (
        "_buffer",
        "_buffer_limit",
        "_index_bytes",
        "_reserve",
        "_segment_bytes",
        "_store_limit",
        "allocated",
        "free_end",
        "header",
        "index",
        "is_stuck",
        "proven",
        "recent",
        "segment",
        "store",
        "unwritten_index",
        "written",
    )

    def __init__(
        self,
        segment: Segment,
        header: StoreHeader,
        store: Storage,
        index: FrameIndex,
        options: LogOptions,
    ) -> None:
        self.segment = segment
        self.header = header
        self.store = store
        self.index = index
        self.written = segment.end
        """Position below which the frames are in the file."""
        self.proven = segment.end
        """Position below which they are durable."""
        self.is_stuck = False
        """Whether the disk had no room to write the buffer."""
        self.unwritten_index: int | None = None
        """Index of the first buffered frame; None if the buffer is empty."""
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT_PIECES)
        """What was written last, ascending: index of the first frame, and whole frames, verified or made here. They are
        shipped and applied within milliseconds, and for that need not be read from the file and verified again."""
        self.allocated = store.size
        self._buffer = bytearray()
        self._buffer_limit = options.write_buffer_bytes
        self._reserve = options.reserve
        self._segment_bytes = options.segment_bytes
        self._store_limit = options.store_limit
        self._index_bytes = options.index_limit
        self.free_end = 0
        """A frame that ends at or below this position needs neither the reserve, nor more room, nor a new segment."""
        self._update_free_end()

    def is_full(self, size: int) -> bool:
        """Return whether a frame of `size` bytes belongs in the next segment. An empty segment is never full."""
        end = self.segment.end
        if end == STORE_HEADER_BYTES:
            return False
        return end >= self._segment_bytes or end + size > self._store_limit or self.index.size >= self._index_bytes

    def takes_at(self, position: int, size: int) -> bool:
        """Return whether one more frame, at `position`, belongs in this segment and needs no more room."""
        return (
            position < self._segment_bytes
            and position + size <= self.allocated - self._reserve
            and position + size <= self._store_limit
            and self.index.size < self._index_bytes
        )

    @property
    def room(self) -> int:
        """Bytes on disk for further frames, the reserve included."""
        return 0 if self.is_stuck else max(0, self.allocated - self.segment.end)

    def reserve(self, size: int) -> None:
        """Ensure room on disk for `size` more bytes, with the reserve after them.

        Raises:
            DiskFull: there is no room; nothing changed.
        """
        needed = self.segment.end + size + self._reserve
        if needed > self.allocated:
            wished = max(needed, min(self.allocated + _GROWTH_BYTES, self._store_limit + self._reserve))
            self.allocated = allocate_most(self.store, wished, needed)
            self._update_free_end()

    def _update_free_end(self) -> None:
        full = self.is_stuck or self.index.size >= self._index_bytes
        self.free_end = 0 if full else min(self._segment_bytes, self._store_limit, self.allocated - self._reserve)

    def note_frame(self, header: FrameHeader, position: int) -> None:
        """Add a frame to the index."""
        self.index.add(header[0], header[2], header[1], position)
        self._update_free_end()

    def put(self, header: FrameHeader, head: bytes, payload: bytes) -> None:
        """Buffer one frame. The caller has reserved room."""
        segment = self.segment
        position = segment.end
        if position >= self.index.next_position:
            self.note_frame(header, position)
        if self.unwritten_index is None:
            self.unwritten_index = header[2]
        buffer = self._buffer
        buffer += head
        buffer += payload
        segment.end = position + HEADER_BYTES + header[1]
        if len(buffer) >= self._buffer_limit:
            with suppress(NoRoom):
                self.write_out()

    def put_piece(self, piece: memoryview, index: int) -> None:
        """Buffer whole frames, the first at `index`. The caller has reserved room and added them to `self.index`."""
        self.segment.end += len(piece)
        if not self._buffer and len(piece) >= self._buffer_limit:
            with suppress(NoRoom):
                self._write(self.written, piece)
                self.recent.clear()
                self.written += len(piece)
                return
        if self.unwritten_index is None:
            self.unwritten_index = index
        self._buffer += piece
        if len(self._buffer) >= self._buffer_limit:
            with suppress(NoRoom):
                self.write_out()

    def put_streamed(self, header: FrameHeader, head: bytes, pieces: Iterable[bytes | bytearray]) -> None:
        """Write one frame whose payload comes in pieces. The caller has reserved room.

        The header is written last: until then there is no frame, after a crash or if this raises.

        Raises:
            FrameInvalid: the pieces are not the payload that the header describes.
            NoRoom: the disk has no room for an overwrite.
        """
        self.write_out()
        self.recent.clear()
        position = end = self.segment.end
        end += HEADER_BYTES
        crc = 0
        for piece in pieces:
            self._write(end, piece)
            end += len(piece)
            crc = crc32c(piece, crc)
        if crc != header.payload_crc32c or end != position + header.size:
            raise FrameInvalid("the payload's crc32c differs")
        self._write(position, head)
        self.note_frame(header, position)
        self.segment.end = self.written = end

    def write_out(self) -> None:
        """Write the buffer to the file. Durable after a sync of `store`.

        Raises:
            NoRoom: the disk has no room for an overwrite; the frames stay in the buffer.
        """
        if self._buffer:
            buffer = self._buffer
            try:
                self._write(self.written, buffer)
            except NoRoom:
                self._note_stuck(is_stuck=True)
                raise
            if self.is_stuck:
                self._note_stuck(is_stuck=False)
            self.written += len(buffer)
            self._buffer = bytearray()
            if self.unwritten_index is not None and len(buffer) <= RECENT_BYTES:
                self.recent.append((self.unwritten_index, bytes(buffer)))
            else:
                self.recent.clear()
            self.unwritten_index = None

    def _note_stuck(self, *, is_stuck: bool) -> None:
        self.is_stuck = is_stuck
        self._update_free_end()

    def _write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        try:
            self.store.write_at(position, data)
        except OSError as error:
            refusal = translated(error, "write", store_name(self.segment.base_index), position + len(data))
            # NFS reports at a write, and then never again, that it lost earlier ones that were not synced yet.
            if isinstance(refusal, NoRoom) and self.proven == self.written:
                raise refusal from error
            raise

    def recent_frames(self, index: int, end: int, tail_index: int) -> bytes | None:
        """The frames [index, end), if they were written recently in whole pieces; `tail_index` is that of the log."""
        following = tail_index if self.unwritten_index is None else self.unwritten_index
        pieces: list[bytes] = []
        for first, raw in reversed(self.recent):
            if pieces or following == end:
                pieces.append(raw)
            if first == index:
                return pieces[0] if len(pieces) == 1 else b"".join(reversed(pieces))
            following = first
        return None

    def trim(self) -> None:
        """Remove the preallocated space after the last frame."""
        self.store.truncate(self.segment.end)
        self.allocated = self.segment.end
        self._update_free_end()


def allocate_most(store: Storage, wished: int, needed: int) -> int:
    """Allocate `wished` bytes, or on a nearly full disk half, a quarter and so on, down to `needed`; return how many.

    Raises:
        DiskFull: there is no room for `needed` bytes.
    """
    while True:
        try:
            store.allocate(wished)
        except NoRoom:
            if wished <= needed:
                raise
            wished = max(needed, wished // 2)
        else:
            return wished
