"""The store file, a 64-byte header and then frames back to back; and the names of a segment's files.

0 4 crc32c of 4..64 | 4 4 "QSTO" | 8 8 base_index | 16 8 epoch | 24 8 timestamp | 32 4 crc32c (these three of the
frame before base, 0 if none) | 36 1 version=1 | 37 3 zero | 40 8 members_index (last members or genesis record
below base; 2^64-1 none) | 48 16 cluster_id
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from ..errors import FrameInvalid, UnknownVersion
from ..frames import Tail
from ..options import STORE_HEADER_BYTES
from ..storage import Directory, Storage

STORE_VERSION = 1
SEGMENTS_FOLDER = "log"
STORE_SUFFIX = ".store"
INDEX_SUFFIX = ".index"
UNFINISHED_SUFFIX = ".new"

_MAGIC = b"QSTO"
_NO_MEMBERS = (1 << 64) - 1
_BODY = struct.Struct("<4sQQQIB3sQ16s")
_CRC = struct.Struct("<I")
_NAME_DIGITS = 20


class StoreHeader(NamedTuple):
    """The header of a store file. Epoch, timestamp and crc32c are those of the frame before `base_index`."""

    base_index: int
    epoch: int
    timestamp: int
    crc32c: int
    members_index: int | None
    cluster_id: bytes

    @property
    def origin(self) -> Tail:
        """The tail that the segment's first frame follows."""
        return Tail(self.base_index, self.epoch, self.timestamp, self.crc32c)


def encode_store_header(header: StoreHeader) -> bytes:
    """Return the 64 bytes at the start of a store file."""
    members = _NO_MEMBERS if header.members_index is None else header.members_index
    body = _BODY.pack(
        _MAGIC,
        header.base_index,
        header.epoch,
        header.timestamp,
        header.crc32c,
        STORE_VERSION,
        bytes(3),
        members,
        header.cluster_id,
    )
    return _CRC.pack(crc32c(body)) + body


def decode_store_header(raw: bytes, file: str) -> StoreHeader:
    """Return the header in the first 64 bytes of a store file.

    Raises:
        FrameInvalid: it is cut short, is not a store file, or its crc32c differs.
        UnknownVersion: it is valid, in a version that this program does not know.
    """
    if len(raw) < STORE_HEADER_BYTES:
        raise FrameInvalid("the store header is cut short")
    magic, base, epoch, timestamp, crc, version, zeros, members, cluster_id = _BODY.unpack_from(raw, _CRC.size)
    if magic != _MAGIC:
        raise FrameInvalid("this is not a store file")
    if _CRC.unpack_from(raw)[0] != crc32c(memoryview(raw)[_CRC.size : STORE_HEADER_BYTES]):
        raise FrameInvalid("the store header's crc32c differs")
    if version != STORE_VERSION:
        raise UnknownVersion(file, version)
    if any(zeros):
        raise FrameInvalid("reserved bytes of the store header are not zero")
    return StoreHeader(base, epoch, timestamp, crc, None if members == _NO_MEMBERS else members, cluster_id)


def store_name(base_index: int) -> str:
    """Return the name of the store file of the segment at `base_index`."""
    return f"{base_index:0{_NAME_DIGITS}d}{STORE_SUFFIX}"


def index_name(base_index: int) -> str:
    """Return the name of the index file of the segment at `base_index`."""
    return f"{base_index:0{_NAME_DIGITS}d}{INDEX_SUFFIX}"


def base_of_name(name: str, suffix: str) -> int | None:
    """Return the base index in a file name with this suffix; None if it is not such a name."""
    digits = name.removesuffix(suffix)
    if len(digits) != _NAME_DIGITS or not name.endswith(suffix) or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def create_fresh(files: Directory, name: str) -> Storage:
    """Return a new, empty file, replacing one of this name that a crash or a full disk left behind."""
    try:
        return files.create(name)
    except FileExistsError:
        files.remove(name)
        return files.create(name)
