"""Frames: the unit that is appended, shipped and applied. The diagram is in `log/DESIGN.md`.

    0 4 crc32c of 4..64          4 4 length: payload bytes      8 8 index of the first record
    16 8 epoch                   24 8 timestamp, microseconds   32 4 count: records
    36 4 prev_crc32c             40 8 session, 0 = none         48 8 sequence of the first record
    56 1 kind   57 1 version=1   58 2 zero                      60 4 payload_crc32c

Each field as: position, size, name. All little-endian; the payload follows. `prev_crc32c` is the crc32c field of the
previous frame: frames form a chain across segments. Only the log's first frame has 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from .errors import ChainBroken, FrameInvalid, UnknownVersion

HEADER_BYTES = 64
FRAME_VERSION = 1

# The eleven fields in the order of `FrameHeader`; version and zeros are checked as the three bytes at 57.
_HEADER = struct.Struct("<IIQQQIIQQB3xI")
_BODY = struct.Struct("<IQQQIIQQB3sI")
_CRC = struct.Struct("<I")
_VERSION_AND_ZEROS = bytes([FRAME_VERSION, 0, 0])


class Kind(IntEnum):
    """What a frame's payload holds; `payload.py` has the formats."""

    RECORDS = 0
    BLOB = 1
    SYSTEM = 2
    RUNS = 3


_HIGHEST_KIND = max(Kind)
_SINGLE_KINDS = (Kind.BLOB, Kind.SYSTEM)


class FrameHeader(NamedTuple):
    """The 64 bytes before a payload. (`index` and `count` hide the tuple's methods, which nothing here needs.)"""

    crc32c: int
    length: int
    index: int  # type: ignore[assignment]
    epoch: int
    timestamp: int
    count: int  # type: ignore[assignment]
    prev_crc32c: int
    session: int
    sequence: int
    kind: int
    payload_crc32c: int

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.length

    @property
    def next_index(self) -> int:
        """Index of the first record after this frame."""
        return self.index + self.count

    @property
    def tail(self) -> Tail:
        """The end of the chain whose last frame this is."""
        return Tail(self.index + self.count, self.epoch, self.timestamp, self.crc32c)


class Frame(NamedTuple):
    """A header and its payload, both verified by checksum."""

    header: FrameHeader
    payload: bytes


class Tail(NamedTuple):
    """The end of a chain of frames: the next index, and epoch, timestamp and crc32c of the last frame (0 if none)."""

    index: int  # type: ignore[assignment]
    epoch: int
    timestamp: int
    crc32c: int


def seal_header(
    length: int,
    payload_crc: int,
    index: int,
    epoch: int,
    timestamp: int,
    count: int,
    prev_crc32c: int,
    session: int,
    sequence: int,
    kind: int,
) -> tuple[FrameHeader, bytes]:
    """Return the header for a payload of this length and crc32c, as fields and as its 64 bytes."""
    body = _BODY.pack(
        length, index, epoch, timestamp, count, prev_crc32c, session, sequence, kind, _VERSION_AND_ZEROS, payload_crc
    )
    crc = crc32c(body)
    fields = (crc, length, index, epoch, timestamp, count, prev_crc32c, session, sequence, kind, payload_crc)
    return tuple.__new__(FrameHeader, fields), _CRC.pack(crc) + body


def encode_frame(
    *,
    index: int,
    epoch: int,
    timestamp: int,
    count: int,
    prev_crc32c: int,
    kind: int,
    payload: bytes,
    session: int = 0,
    sequence: int = 0,
) -> bytes:
    """Return the bytes of a whole frame."""
    _, head = seal_header(
        len(payload), crc32c(payload), index, epoch, timestamp, count, prev_crc32c, session, sequence, kind
    )
    return head + payload


def decode_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> FrameHeader:
    """Return the frame header at `offset`, verified by its checksum. The payload is not read.

    Raises:
        FrameInvalid: it is cut short, its crc32c differs, or a field has an impossible value.
        UnknownVersion: the header is valid, in a version that this program does not know.
    """
    if len(buffer) - offset < HEADER_BYTES:
        raise FrameInvalid("the header is cut short", offset)
    header = FrameHeader._make(_HEADER.unpack_from(buffer, offset))
    if crc32c(buffer[offset + 4 : offset + HEADER_BYTES]) != header.crc32c:
        raise FrameInvalid("the header's crc32c differs", offset)
    if buffer[offset + 57] != FRAME_VERSION:
        raise UnknownVersion("frame", buffer[offset + 57])
    if buffer[offset + 58] or buffer[offset + 59]:
        raise FrameInvalid("reserved bytes are not zero", offset)
    _check_count(header, offset)
    return header


def _check_count(header: FrameHeader, offset: int) -> None:
    # A record takes at least one byte. A count above the length is false, and would overflow relative indices.
    kind, count = header.kind, header.count
    if kind > _HIGHEST_KIND:
        raise FrameInvalid(f"kind {kind} is unknown", offset)
    if count == 0 or (count != 1 and kind in _SINGLE_KINDS) or count > header.length:
        raise FrameInvalid(f"count {count} is impossible for kind {kind} and {header.length} bytes", offset)


def walk_headers(raw: bytes | memoryview, *, partial: bool = False) -> Iterator[tuple[int, FrameHeader]]:
    """Yield (offset, header) of the frames in `raw`, headers and payloads verified by checksum. The chain is not.

    With `partial`, an incomplete last frame ends the walk; without, it is an error.

    Raises:
        FrameInvalid: the bytes at its position in `raw` are not a frame.
        UnknownVersion: as `decode_header`.
    """
    view = memoryview(raw)
    end = len(view)
    unpack = _HEADER.unpack_from
    make = FrameHeader._make
    offset = 0
    while offset < end:
        body = offset + HEADER_BYTES
        if body > end:
            if partial:
                return
            raise FrameInvalid("the header is cut short", offset)
        header = make(unpack(view, offset))
        if crc32c(view[offset + 4 : body]) != header.crc32c:
            raise FrameInvalid("the header's crc32c differs", offset)
        if view[offset + 57] != FRAME_VERSION:
            raise UnknownVersion("frame", view[offset + 57])
        if view[offset + 58] or view[offset + 59]:
            raise FrameInvalid("reserved bytes are not zero", offset)
        if header.count != 1 or header.kind or not header.length:
            _check_count(header, offset)
        following = body + header.length
        if following > end:
            if partial:
                return
            raise FrameInvalid("the payload is cut short", offset)
        if crc32c(view[body:following]) != header.payload_crc32c:
            raise FrameInvalid("the payload's crc32c differs", offset)
        yield offset, header
        offset = following


def walk_frames(raw: bytes | memoryview) -> Iterator[Frame]:
    """Yield the frames in `raw`, verified by checksum. The chain is not.

    Raises:
        FrameInvalid: the bytes at its position are not a frame; the frames before it have been yielded.
    """
    view = memoryview(raw)
    for offset, header in walk_headers(view):
        body = offset + HEADER_BYTES
        yield Frame(header, bytes(view[body : body + header.length]))


def cut_frames(raw: bytes | memoryview) -> Iterator[Frame]:
    """Yield the frames in `raw`, which were verified before (`Log.read_frames` does): nothing is checked again."""
    view = memoryview(raw)
    end, offset = len(view), 0
    while offset < end:
        header = FrameHeader._make(_HEADER.unpack_from(view, offset))
        body = offset + HEADER_BYTES
        offset = body + header.length
        yield Frame(header, bytes(view[body:offset]))


def follow(tail: Tail, header: FrameHeader) -> Tail:
    """Return the tail after `header`, having checked that it follows `tail` in index, chain, epoch and timestamp.

    Raises:
        ChainBroken: it does not follow.
    """
    if header.index != tail.index:
        raise ChainBroken(header.index, "index", tail.index, header.index)
    if header.prev_crc32c != tail.crc32c:
        raise ChainBroken(header.index, "prev_crc32c", tail.crc32c, header.prev_crc32c)
    if header.epoch < tail.epoch:
        raise ChainBroken(header.index, "epoch", tail.epoch, header.epoch)
    if header.timestamp < tail.timestamp:
        raise ChainBroken(header.index, "timestamp", tail.timestamp, header.timestamp)
    return Tail(header.index + header.count, header.epoch, header.timestamp, header.crc32c)
