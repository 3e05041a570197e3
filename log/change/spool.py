"""A value that arrives in chunks, kept outside the log until complete, so that a slow source blocks no other append.

Up to `write_buffer_bytes` of it stay in memory. The rest goes to a file beside the segments, `<number>.spool`, in
pieces of that size. The file is never synced or renamed; if a crash leaves it, the next open removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import RLock
from types import TracebackType
from typing import Self

from crc32c import crc32c

from ..errors import FrameCorrupt, FrameInvalid, LogClosed, RecordTooLarge, UnexpectedIndex
from ..files import refusing_full
from ..frames import HEADER_BYTES, FrameHeader, Kind, Tail, seal_header
from ..payload import blob_head
from ..state import LogState
from ..storage import Storage
from .append import make_room

SPOOL_SUFFIX = ".spool"
_LEAST_MEMORY_BYTES = 512
_ALLOCATION_BYTES = 16 << 20
_READ_BYTES = 1 << 20


class Spool:
    """The growing payload of one blob. Use it with `with`, or close it when it is appended or abandoned.

    `write` may run in another thread. `close` waits for it, because a cancelled caller leaves that thread running.
    """

    def __init__(self, state: LogState, number: int, limit: int, metadata: Mapping[str, str] | None) -> None:
        """Use `Spools.begin`."""
        self.limit = limit
        """Most bytes that the frame may have, header included."""
        self.size = HEADER_BYTES
        """Bytes that the frame has so far, header included."""
        self.crc32c = 0
        self.name = f"{number:020d}{SPOOL_SUFFIX}"
        """Name of its file, if it needs one."""
        self._state = state
        self._memory_bytes = max(state.options.write_buffer_bytes, _LEAST_MEMORY_BYTES)
        self._waiting = bytearray()
        self._file: Storage | None = None
        self._written = 0
        self._allocated = 0
        self._closed = False
        self._lock = RLock()
        self.write(blob_head(metadata))

    @property
    def length(self) -> int:
        """Bytes of the payload so far."""
        return self.size - HEADER_BYTES

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Add a chunk. After any error the spool is closed and its file removed.

        Raises:
            RecordTooLarge: with it, the frame exceeds the limit.
            DiskFull: there is no room to spool it.
            LogReadOnly: the device failed.
            LogClosed: the log or the spool was closed.
        """
        with self._lock:
            if self._closed or self._state.closed:
                self.close()
                raise LogClosed
            try:
                self._take(chunk)
            except BaseException:
                self.close()
                raise

    def _take(self, chunk: bytes | bytearray | memoryview) -> None:
        if self.size + len(chunk) > self.limit:
            raise RecordTooLarge(self.size + len(chunk), self.limit)
        self.size += len(chunk)
        self.crc32c = crc32c(chunk, self.crc32c)
        view = memoryview(chunk)
        for start in range(0, len(chunk), self._memory_bytes):
            piece = view[start : start + self._memory_bytes]
            if len(self._waiting) + len(piece) > self._memory_bytes:
                self._write_out()
            self._waiting += piece

    def _write_out(self) -> None:
        with self._state.failing("spooling a record"):
            if self._file is None:
                self._file = self._state.files.create(self.name)
            end = self._written + len(self._waiting)
            if end > self._allocated:
                # A full disk is found here, before anything in the log has changed.
                self._allocated = max(end, min(self._allocated + _ALLOCATION_BYTES, self.limit))
                self._file.allocate(self._allocated)
            with refusing_full(self.name):
                self._file.write_at(self._written, self._waiting)
            self._written = end
            self._waiting = bytearray()

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield the payload in pieces of at most 1 MiB."""
        if self._file is not None:
            for start in range(0, self._written, _READ_BYTES):
                yield self._file.read_at(start, min(_READ_BYTES, self._written - start))
        yield self._waiting

    def close(self) -> None:
        """Drop the payload and remove its file."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting = bytearray()
                if self._file is not None:
                    self._file.close()
                    # If the log was closed and opened again, that open has removed the file.
                    with self._state.failing("removing a spool"), suppress(FileNotFoundError):
                        self._state.files.remove(self.name)

    @property
    def closed(self) -> bool:
        """Whether it takes no more chunks."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Spools:
    """The appends of one log whose values arrive in chunks.

    No part of a value is in the log until the last chunk has arrived: others may append in between, and nothing is left
    if it never arrives. Memory use does not grow with its size.
    """

    def __init__(self, state: LogState, clock: Callable[[], int]) -> None:
        self._state = state
        self._clock = clock
        # Number of spools begun, which gives each its file name.
        self._begun = 0

    def begin(self, threshold: int | None = None, *, metadata: Mapping[str, str] | None = None) -> Spool:
        """Return a spool for a value that arrives in chunks, e.g. from a socket; then call `append`.

        `threshold` limits the bytes of the frame, header included, below the log's own limit.

        Raises:
            RecordTooLarge: `metadata` alone exceeds the limit.
            LogReadOnly, LogClosed: the log takes no appends.
        """
        state = self._state
        state.refuse_if_unwritable()
        self._begun += 1
        limit = state.frame_limit if threshold is None else min(threshold, state.frame_limit)
        return Spool(state, self._begun, limit, metadata)

    def append(self, spool: Spool, *, expected_index: int | None = None, epoch: int = 0) -> int:
        """Append the spooled value as one blob and close the spool; return its index. Not durable on return.

        Raises:
            LogClosed: the spool was closed before.
            UnexpectedIndex, RecordTooLarge, DiskFull, LogReadOnly: as `Log.append`; nothing was appended.
            FrameCorrupt: the spool does not hold what was written to it; nothing was appended.
        """
        state = self._state
        with spool:
            if spool.closed:
                raise LogClosed
            state.refuse_if_unwritable()
            return _put_spooled(state, spool, expected_index, epoch, self._clock()).index


def _put_spooled(state: LogState, spool: Spool, expected_index: int | None, epoch: int, now: int) -> FrameHeader:
    """Append a spooled value as one frame of kind blob. Raises as `Spools.append`."""
    index, last_epoch, timestamp, prev_crc32c = state.tail
    if expected_index is not None and expected_index != index:
        raise UnexpectedIndex(expected_index, index)
    if epoch < last_epoch:
        raise ValueError(f"a record of epoch {epoch} cannot follow epoch {last_epoch}")
    header, head = seal_header(
        spool.length, spool.crc32c, index, epoch, max(now, timestamp), 1, prev_crc32c, 0, 0, Kind.BLOB
    )
    make_room(state, header.size)
    try:
        with state.writing_out:
            state.writer.put_streamed(header, head, spool.pieces())
            state.tail = Tail(index + 1, epoch, header.timestamp, header.crc32c)
            if epoch != last_epoch or not state.epochs:
                state.epochs.append((epoch, index))
    except FrameInvalid as error:
        raise FrameCorrupt(spool.name, 0, error.reason) from error
    return header
