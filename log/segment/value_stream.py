"""The bytes of one value, read in chunks: a blob of any size, in the memory of one chunk, and verified before use.

The checksum of a payload is known only at its end. So the payload is read twice, first to verify it and then to yield
it. The second read compares the checksum again, because a truncation may have replaced the bytes in between.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

from crc32c import crc32c

from ..errors import IndexOutOfBounds, LogError, PayloadInvalid, Unreadable
from ..frames import HEADER_BYTES, Frame, FrameHeader
from ..payload import decode_blob, stored_record
from ..state import LogState
from ..storage import Storage
from .segments import Segment
from .store import store_name

CHUNK_BYTES = 1 << 20
_MAX_METADATA_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class ValueStream(Protocol):
    """The bytes of one value: iterate for chunks of at most 1 MiB, then `close` it. For any one thread."""

    header: FrameHeader
    """The header of the frame that holds the record."""
    metadata: Mapping[str, str]
    """The record's headers; set when `verify` has returned."""
    length: int
    """Size of the value in bytes; set when `verify` has returned."""

    def verify(self) -> None:
        """Read the whole payload and check it. Blocks. An iteration calls this first if it was not called.

        Raises:
            FrameCorrupt: the bytes are not those that were written.
            IndexOutOfBounds: the record has been truncated.
        """
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Yield the value in chunks, all of them verified. Raises as `verify`."""
        ...

    def close(self) -> None:
        """Close the file. Any thread may call this; it waits for a read in progress."""
        ...


class BlobStream:
    """The bytes of a blob. It has a file handle of its own, so that the log may expire the segment."""

    def __init__(self, state: LogState, segment: Segment, position: int, header: FrameHeader) -> None:
        self.header = header
        self.metadata: Mapping[str, str] = {}
        self.length = 0
        self._state = state
        self._generation = state.generation
        self._file = store_name(segment.base_index)
        self._position = position
        self._store: Storage | None = state.files.open(self._file)
        self._verified = False
        self._reading = threading.Lock()  # Without it, a read could use a closed descriptor that is another file's now.

    def verify(self) -> None:
        if not self._verified:
            for _ in self._payload():
                pass
            head = self._read(0, _LENGTH.size)
            (metadata_bytes,) = _LENGTH.unpack(head)
            if metadata_bytes > min(_MAX_METADATA_BYTES, self.header.length - _LENGTH.size):
                raise PayloadInvalid(f"a blob's metadata has {metadata_bytes} bytes")
            self.metadata, _ = decode_blob(head + self._read(_LENGTH.size, metadata_bytes))
            self.length = self.header.length - _LENGTH.size - metadata_bytes
            self._verified = True

    def __iter__(self) -> Iterator[bytes]:
        self.verify()
        skip = self.header.length - self.length
        for chunk in self._payload():
            if skip < len(chunk):
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))

    def close(self) -> None:
        with self._reading:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _payload(self) -> Iterator[bytes]:
        crc, length = 0, self.header.length
        for start in range(0, length, CHUNK_BYTES):
            chunk = self._read(start, min(CHUNK_BYTES, length - start))
            crc = crc32c(chunk, crc)
            if start + len(chunk) == length and crc != self.header.payload_crc32c:
                raise self._wrong("the payload's crc32c differs")
            yield chunk

    def _read(self, start: int, length: int) -> bytes:
        with self._reading:
            if self._store is None:
                raise ValueError("this stream is closed")
            try:
                chunk = self._store.read_at(self._position + HEADER_BYTES + start, length)
            except Unreadable as error:
                raise self._wrong(error.reason) from error
        if len(chunk) < length:
            raise self._wrong("the payload is cut short")
        return chunk

    def _wrong(self, reason: str) -> LogError:
        # After a truncation the bytes may have been overwritten: that is not rot.
        if self._generation != self._state.generation:
            return IndexOutOfBounds(self.header.index, self._state.origin.index, self._state.tail.index)
        return self._state.corrupt(self._file, self._position, reason)


class RecordStream:
    """The bytes of a record that is not a blob, which was read with its frame."""

    def __init__(self, header: FrameHeader, value: bytes, metadata: Mapping[str, str]) -> None:
        self.header, self.metadata, self.length = header, metadata, len(value)
        self._value = value

    def verify(self) -> None:
        """Do nothing: its frame was verified when it was read."""

    def __iter__(self) -> Iterator[bytes]:
        yield self._value

    def close(self) -> None:
        """Do nothing: no file is open."""


def record_stream(frame: Frame, index: int) -> RecordStream:
    """Return a stream of the bytes of the record at `index`, in a frame that is not a blob.

    Raises:
        PayloadInvalid: its value is not bytes.
    """
    record = stored_record(frame, index)
    if type(record.value) is not bytes:
        raise PayloadInvalid(f"the record at {index} is not bytes")
    return RecordStream(frame.header, record.value, record.headers or {})
