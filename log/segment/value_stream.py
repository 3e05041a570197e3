"""One value's bytes, read in chunks: a blob of any size in flat memory, and never a byte that was not verified.

A payload's crc is known only at its end. So it is read twice: once to verify it, once to hand it on; and the second
time its crc is compared again, for the bytes may have been cut off in between.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

from crc32c import crc32c

from ..errors import FrameCorrupt, IndexOutOfBounds, LogError, PayloadInvalid
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
    """The bytes of one value: iterate over it for chunks of at most 1 MiB, and `close` it. For any one thread."""

    header: FrameHeader
    """Of the frame that holds the record."""
    metadata: Mapping[str, str]
    """The record's headers; known once `verify` has returned."""
    length: int
    """Bytes of the value; known once `verify` has returned."""

    def verify(self) -> None:
        """Read all of it and check its crc; block. Iterating does that first, if it was not done.

        Raises:
            FrameCorrupt: the bytes are not what was written.
            IndexOutOfBounds: the record was truncated away meanwhile.
        """
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Yield the value in chunks; raises as `verify`, and what came before was verified."""
        ...

    def close(self) -> None:
        """Give the handle back; in any thread, after a read that is under way."""
        ...


class BlobStream:
    """A blob's bytes. It has a file handle of its own, so that the log may expire meanwhile."""

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
        self._reading = threading.Lock()  # Closed in the middle of a read, its number may be another file's by then.

    def verify(self) -> None:
        if not self._verified:
            for _ in self._payload():
                pass
            head = self._read(0, _LENGTH.size)
            (metadata_bytes,) = _LENGTH.unpack(head)
            if metadata_bytes > min(_MAX_METADATA_BYTES, self.header.length - _LENGTH.size):
                raise PayloadInvalid(f"a blob's metadata of {metadata_bytes} bytes cannot be")
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
                raise ValueError("this stream of a value was closed")
            chunk = self._store.read_at(self._position + HEADER_BYTES + start, length)
        if len(chunk) < length:
            raise self._wrong("the payload is cut short")
        return chunk

    def _wrong(self, reason: str) -> LogError:
        # Bytes that were cut off may have been overwritten at any time: that is no rot.
        if self._generation != self._state.generation:
            return IndexOutOfBounds(self.header.index, self._state.origin.index, self._state.tail.index)
        self._state.is_rotten = True
        return FrameCorrupt(self._file, self._position, reason)


class RecordStream:
    """The bytes of a record that is no blob: it was read with its frame."""

    def __init__(self, header: FrameHeader, value: bytes, metadata: Mapping[str, str]) -> None:
        self.header, self.metadata, self.length = header, metadata, len(value)
        self._value = value

    def verify(self) -> None:
        """It was verified when it was read."""

    def __iter__(self) -> Iterator[bytes]:
        yield self._value

    def close(self) -> None:
        """It holds no file."""


def record_stream(frame: Frame, index: int) -> RecordStream:
    """Return the bytes of the record at `index` of a frame that is no blob.

    Raises:
        PayloadInvalid: its value is no bytes.
    """
    record = stored_record(frame, index)
    if type(record.value) is not bytes:
        raise PayloadInvalid(f"the record at {index} is no bytes")
    return RecordStream(frame.header, record.value, record.headers or {})
