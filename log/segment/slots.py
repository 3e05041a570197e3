"""A file of two slots: 64 bytes at 0 and at 4096, each with its crc32c and version first.

    0 4 crc32c of 4..64 | 4 4 version | 8 56 body

`mark` and `promise` are such files. The slots are in different blocks, so that a torn write damages only one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from ..errors import UnknownVersion
from ..storage import Storage

SLOT_BYTES = 64
BODY_BYTES = SLOT_BYTES - 8
SLOT_POSITIONS = (0, 4096)

_HEAD = struct.Struct("<II")
_VERSION = struct.Struct("<I")


class Slot(NamedTuple):
    """A valid slot: its number, 0 or 1, and the 56 bytes after crc32c and version."""

    number: int
    body: bytes


def encode_slot(version: int, body: bytes) -> bytes:
    """Return the 64 bytes of a slot with a body of 56 bytes."""
    if len(body) != BODY_BYTES:
        raise ValueError(f"a slot's body is {BODY_BYTES} bytes, not {len(body)}")
    content = _VERSION.pack(version) + body
    return _VERSION.pack(crc32c(content)) + content


class SlotFile:
    """Two slots in a file. The owner decides which one to write, and when to sync."""

    __slots__ = ("_name", "_storage", "_version")

    def __init__(self, storage: Storage, *, name: str, version: int) -> None:
        self._storage = storage
        self._name = name
        self._version = version

    def read(self) -> list[Slot]:
        """Return the valid slots in order. If it raises, the file is closed.

        Raises:
            UnknownVersion: a slot is valid, but of another version.
        """
        try:
            return self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> list[Slot]:
        slots: list[Slot] = []
        for number, position in enumerate(SLOT_POSITIONS):
            raw = self._storage.read_at(position, SLOT_BYTES)
            if len(raw) < SLOT_BYTES:
                continue
            crc, version = _HEAD.unpack_from(raw)
            if crc32c(memoryview(raw)[4:]) != crc:
                continue
            if version != self._version:
                raise UnknownVersion(self._name, version)
            slots.append(Slot(number, raw[8:]))
        return slots

    def write(self, number: int, body: bytes) -> None:
        """Write one slot. Durable after `sync`."""
        self._storage.write_at(SLOT_POSITIONS[number], encode_slot(self._version, body))

    def sync(self) -> None:
        """Block until everything written to both slots survives a power loss."""
        self._storage.sync()

    def close(self) -> None:
        """Close the file."""
        self._storage.close()
