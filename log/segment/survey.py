"""Walks over the frames of one store file, which find its tail, index, epochs and members records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from ..errors import ChainBroken, FrameInvalid, PayloadInvalid, UnknownVersion, Unreadable
from ..frames import FRAME_VERSION, HEADER_BYTES, FrameHeader, Kind, decode_header, follow, walk_headers
from ..options import STORE_HEADER_BYTES
from ..payload import decode_system
from ..storage import Storage, read_ahead
from .index import FrameIndex
from .store import StoreHeader

CHUNK_BYTES = 1 << 20
MEMBERS_TYPES = frozenset({"members", "genesis", "history"})
"""The system records that name the members of the cluster (rule 15)."""

# length, epoch, kind: all that a walk over trusted frames needs.
_GLANCE = struct.Struct("<4xI8xQ32xB")
# What every frame has after its kind: few other bytes look like this.
_VERSION_AND_ZEROS = bytes([FRAME_VERSION, 0, 0])
_VERSION_POSITION = 57


def names_members(payload: bytes | memoryview) -> bool:
    """Return whether a `system` payload is a record that names the members: one of MEMBERS_TYPES.

    Raises:
        PayloadInvalid: it is not a system payload.
    """
    return decode_system(payload)["type"] in MEMBERS_TYPES


class Survey:
    """A walk over one segment, and what it has found so far."""

    def __init__(self, header: StoreHeader, interval_bytes: int, epoch_before: int | None) -> None:
        self.end = STORE_HEADER_BYTES
        self.tail = header.origin
        self.index = FrameIndex(header.base_index, interval_bytes)
        self.epochs: list[tuple[int, int]] = []
        self.members: list[int] = []
        self.invalid: str | None = None
        """Why the walk stopped before its end; None if it did not."""
        self.is_unreadable = False
        """Whether it stopped where the device does not give the bytes: whether a frame is there is unknown."""
        self._epoch = epoch_before

    def add(self, header: FrameHeader, payload: memoryview | None) -> None:
        """Add one verified frame. Without its payload, it is not checked for a members record."""
        self.index.add(header.crc32c, header.index, header.length, self.end)
        if header.epoch != self._epoch:
            self.note_epoch(header.epoch, header.index)
        if payload is not None and header.kind == Kind.SYSTEM and names_members(payload):
            self.members.append(header.index)
        self.end += HEADER_BYTES + header.length

    def note_epoch(self, epoch: int, index: int) -> None:
        """Note that `epoch` starts at `index`."""
        self.epochs.append((epoch, index))
        self._epoch = epoch

    def verify(self, store: Storage, until: int, file: str) -> None:
        """Walk to `until` and check every checksum and the chain. If it stops before, `invalid` says why.

        Raises:
            UnknownVersion: a frame is valid, in a version that this program does not know.
        """
        try:
            for header, payload in walk_store(store, self.end, until, file):
                self.tail = follow(self.tail, header)
                self.add(header, payload)
        except (FrameInvalid, ChainBroken, PayloadInvalid) as error:
            self.invalid, self.is_unreadable = str(error), isinstance(error, Unreadable)

    def glance(self, store: Storage, until: int) -> None:
        """Walk to exactly `until` over trusted frames: below the mark, or after a clean stop.

        It verifies only the headers of frames that get an index entry or start an epoch, system frames, and the last.

        Raises:
            FrameInvalid: one of these is invalid, or the last frame does not end at `until`.
        """
        position, last = self.end, -1
        raw, start = b"", 0
        while position < until:
            offset = position - start
            if offset + HEADER_BYTES > len(raw):
                raw, start, offset = _chunk(store, position, until), position, 0
                if len(raw) < HEADER_BYTES:
                    raise FrameInvalid("the header is cut short", position)
            length, epoch, kind = _GLANCE.unpack_from(raw, offset)
            if position >= self.index.next_position or epoch != self._epoch or kind == Kind.SYSTEM:
                header = _header_at(raw, offset, position)
                self.end = position
                self.add(header, _payload_at(store, header, position) if kind == Kind.SYSTEM else None)
            last, position = position, position + HEADER_BYTES + length
        if position != until:
            raise FrameInvalid("the last frame is cut short", last)
        self.end = until
        if last >= 0:
            header = _header_at(store.read_at(last, HEADER_BYTES), 0, last)
            self.tail = header.tail


def _chunk(store: Storage, position: int, end: int) -> bytes:
    return read_ahead(store, position, min(CHUNK_BYTES, end - position), HEADER_BYTES)


def _header_at(raw: bytes, offset: int, position: int) -> FrameHeader:
    try:
        return decode_header(raw, offset)
    except FrameInvalid as error:
        raise FrameInvalid(error.reason, position) from error


def _payload_at(store: Storage, header: FrameHeader, position: int) -> memoryview:
    payload = store.read_at(position + HEADER_BYTES, header.length)
    if crc32c(payload) != header.payload_crc32c:
        raise FrameInvalid("the payload's crc32c differs", position)
    return memoryview(payload)


def walk_store(store: Storage, start: int, end: int, file: str) -> Iterator[tuple[FrameHeader, memoryview | None]]:
    """Yield header and payload of the frames in [start, end) of a store, verified by checksum. The chain is not.

    A payload above 1 MiB is verified in pieces and yielded as None, except that of a system frame.

    Raises:
        FrameInvalid: the bytes at its position in the file are not a frame.
        UnknownVersion: a frame is valid, in a version that this program does not know.
    """
    position = start
    while position < end:
        view = memoryview(_chunk(store, position, end))
        consumed = 0
        try:
            for offset, header in walk_headers(view, partial=True):
                consumed = offset + HEADER_BYTES + header.length
                yield header, view[offset + HEADER_BYTES : consumed]
            if consumed == 0:
                # No whole frame: it is larger than the chunk, or cut short by the end or by what cannot be read.
                header = decode_header(view)
                if header.size <= len(view) or position + header.size > end:
                    raise FrameInvalid("the payload is cut short")
                yield header, _large_payload(store, header, position)
                consumed = header.size
        except Unreadable:
            raise
        except FrameInvalid as error:
            raise FrameInvalid(error.reason, position + error.position) from error
        except UnknownVersion as error:
            raise UnknownVersion(f"a frame in {file}", error.version) from error
        position += consumed


def _large_payload(store: Storage, header: FrameHeader, position: int) -> memoryview | None:
    body = position + HEADER_BYTES
    if header.kind == Kind.SYSTEM:
        payload = store.read_at(body, header.length)
        if crc32c(payload) != header.payload_crc32c:
            raise FrameInvalid("the payload's crc32c differs")
        return memoryview(payload)
    crc = 0
    for start in range(0, header.length, CHUNK_BYTES):
        crc = crc32c(store.read_at(body + start, min(CHUNK_BYTES, header.length - start)), crc)
    if crc != header.payload_crc32c:
        raise FrameInvalid("the payload's crc32c differs")
    return None


class Torn(NamedTuple):
    """The bytes after the last whole frame of a log that was not stopped cleanly."""

    file: str
    position: int
    size: int
    """Bytes up to the last one that is not zero."""
    next_frame: int | None
    """Index of a valid frame after the invalid bytes: these were written before it, and are damaged or were lost."""


def torn_after(store: Storage, end: int, next_index: int, file: str) -> Torn | None:
    """Return what follows from `end` on, where the frame of `next_index` would begin; None if only zeros do."""
    last, before, found = end, b"", None
    for start in range(end, store.size, CHUNK_BYTES):
        try:
            chunk = store.read_at(start, min(CHUNK_BYTES, store.size - start))
        except Unreadable as error:  # It goes with the tail; whether it is zeros does not matter.
            chunk = error.before + b"\xff"
        if not chunk.strip(b"\0"):
            continue
        last = start + len(chunk.rstrip(b"\0"))
        found = _frame_in(before + chunk, next_index) if found is None else found
        before = chunk[-HEADER_BYTES:]
    return None if last == end else Torn(file, end, last - end, found)


def _frame_in(raw: bytes, next_index: int) -> int | None:
    """Return the index of the first valid header of a frame later than `next_index`, which is the damaged one's."""
    place = raw.find(_VERSION_AND_ZEROS, _VERSION_POSITION)
    while place >= 0:
        with suppress(FrameInvalid, UnknownVersion):
            header = decode_header(raw, place - _VERSION_POSITION)
            if header.index > next_index:
                return header.index
        place = raw.find(_VERSION_AND_ZEROS, place + 1)
    return None
