"""A value that arrives in chunks, kept outside the log until complete, so that a slow source blocks no other append.

Up to `write_buffer_bytes` of it stay in memory. The rest goes to a file beside the segments, `<number>.spool`, in
pieces of that size. The file is never synced or renamed; if a crash leaves it, the next open removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import RLock
from types import TracebackType
from typing import Self

from crc32c import crc32c

from ..errors import LogClosed, RecordTooLarge
from ..frames import HEADER_BYTES
from ..payload import blob_head
from ..state import LogState
from ..storage import Storage

SPOOL_SUFFIX = ".spool"
_LEAST_MEMORY_BYTES = 512
_ALLOCATION_BYTES = 16 << 20
_READ_BYTES = 1 << 20


class Spool:
    """The growing payload of one blob. Use it with `with`, or close it when it is appended or abandoned.

    `write` may run in another thread. `close` waits for it, because a cancelled caller leaves that thread running.
    """

    def __init__(self, state: LogState, number: int, limit: int, metadata: Mapping[str, str] | None) -> None:
        """Use `Log.begin_spool`."""
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
