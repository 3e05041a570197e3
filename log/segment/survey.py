"""Walks over the frames of one store file, and what they find: its tail, index, epochs and members records."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from ..errors import ChainBroken, FrameInvalid, PayloadInvalid, UnknownVersion
from ..frames import HEADER_BYTES, FrameHeader, Kind, Tail, decode_header, follow, walk_headers
from ..options import STORE_HEADER_BYTES
from ..payload import decode_system
from ..storage import Storage
from .index import FrameIndex
from .store import StoreHeader

CHUNK_BYTES = 1 << 20
MEMBERS_TYPES = frozenset({"members", "genesis"})

# length, epoch, kind: all that a walk over frames needs that were checked when they were written.
_GLANCE = struct.Struct("<4xI8xQ32xB")


def names_members(payload: bytes | memoryview) -> bool:
    """Return whether a `system` payload is a members or genesis record.

    Raises:
        PayloadInvalid: it is no system payload.
    """
    return decode_system(payload)["type"] in MEMBERS_TYPES


class Survey:
    """What a walk over a segment has found so far."""

    def __init__(self, header: StoreHeader, interval_bytes: int, epoch_before: int | None) -> None:
        self.end = STORE_HEADER_BYTES
        self.tail = header.origin
        self.index = FrameIndex(header.base_index, interval_bytes)
        self.epochs: list[tuple[int, int]] = []
        self.members: list[int] = []
        self.invalid: str | None = None
        """Why the walk ended before the end of the file, None if it did not."""
        self._epoch = epoch_before

    def add(self, header: FrameHeader, payload: memoryview | None) -> None:
        """Take one verified frame; without its payload, members records are not looked for."""
        self.index.add(header.crc32c, header.index, header.length, self.end)
        if header.epoch != self._epoch:
            self.note_epoch(header.epoch, header.index)
        if payload is not None and header.kind == Kind.SYSTEM and names_members(payload):
            self.members.append(header.index)
        self.end += HEADER_BYTES + header.length

    def note_epoch(self, epoch: int, index: int) -> None:
        """Take note that `epoch` starts at `index`."""
        self.epochs.append((epoch, index))
        self._epoch = epoch

    def verify(self, store: Storage, until: int, file: str) -> None:
        """Walk on to `until`, checking every crc and the chain; `invalid` tells if it ended before.

        Raises:
            UnknownVersion: a valid frame of a version that this program does not know.
        """
        try:
            for header, payload in walk_store(store, self.end, until, file):
                self.tail = follow(self.tail, header)
                self.add(header, payload)
        except (FrameInvalid, ChainBroken, PayloadInvalid) as error:
            self.invalid = str(error)

    def glance(self, store: Storage, until: int) -> None:
        """Walk on to exactly `until` over frames that are trusted: after a clean stop, or below the mark.

        A few are verified nevertheless: those that get an index entry or start an epoch, and the last.

        Raises:
            FrameInvalid: a verified one is invalid, or the last does not end at `until`.
        """
        position, last = self.end, -1
        raw, start = b"", 0
        while position < until:
            offset = position - start
            if offset + HEADER_BYTES > len(raw):
                raw, start, offset = store.read_at(position, min(CHUNK_BYTES, until - position)), position, 0
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
            self.tail = Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)


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
    """Yield header and payload of the frames in [start, end) of a store, verified by crc (the chain is not).

    The payload is None where it is too large to be held, which that of a system record never is.

    Raises:
        FrameInvalid: bytes that are no frame, with their position in the file.
        UnknownVersion: a valid frame of a version that this program does not know.
    """
    position = start
    while position < end:
        view = memoryview(store.read_at(position, min(CHUNK_BYTES, end - position)))
        consumed = 0
        try:
            for offset, header in walk_headers(view, partial=True):
                consumed = offset + HEADER_BYTES + header.length
                yield header, view[offset + HEADER_BYTES : consumed]
            if consumed == 0:
                # Not one whole frame: it is larger than the chunk, or cut short by the end.
                header = decode_header(view)
                if header.size <= len(view) or position + header.size > end:
                    raise FrameInvalid("the payload is cut short")
                yield header, _large_payload(store, header, position)
                consumed = header.size
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
