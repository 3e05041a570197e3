"""The mark: a lower bound on disk of what was durable and committed; and the kind of file that it is.

`mark` and `promise` are files of two slots: 64 bytes at 0 and at 4096, each with its crc32c and version first. They are
in different blocks, so that a torn write damages only one. In the mark's:

    0 4 crc32c of 4..64 | 4 4 version | 8 8 generation | 16 8 durable_index | 24 8 segment base | 32 8 position |
    40 8 epoch | 48 8 commit_index (at most durable_index) | 56 4 frame crc32c | 60 1 clean | 61 3 zero

A segment base of 2^64 - 1 says that the log is being emptied: the next open removes all existing segments, and a log
that is not standalone begins at durable_index. (Earlier versions wrote the beginning of the old log there.)
Epoch and crc32c are those of the frame before durable_index; that frame ends at `position`. The valid slot with the
highest generation wins. Between two fsyncs only one slot is written: the other holds the last fsynced mark. So while a
sync runs, a newer mark waits in memory; after it, the slots swap roles.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from ..errors import NoRoom, UnknownVersion
from ..files import Sync, translated
from ..options import STORE_HEADER_BYTES
from ..storage import Storage

SLOT_BYTES = 64
BODY_BYTES = SLOT_BYTES - 8
SLOT_POSITIONS = (0, 4096)

MARK_NAME = "mark"
MARK_VERSION = 1
MARK_FILE_BYTES = SLOT_POSITIONS[-1] + SLOT_BYTES

_HEAD = struct.Struct("<II")
_VERSION = struct.Struct("<I")

_DISCARDING = (1 << 64) - 1

_BODY = struct.Struct("<QQQQQQIB3x")


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
        """Write one slot. Durable after `sync`.

        Raises:
            DiskFull: a file system that copies on write has no room for it. This slot may be torn, the other is whole.
        """
        try:
            self._storage.write_at(SLOT_POSITIONS[number], encode_slot(self._version, body))
        except OSError as error:
            raise translated(error, "write", self._name, SLOT_POSITIONS[number] + SLOT_BYTES) from error

    def sync(self) -> None:
        """Block until everything written to both slots survives a power loss."""
        self._storage.sync()

    def close(self) -> None:
        """Close the file."""
        self._storage.close()


class Mark(NamedTuple):
    """The content of a mark slot. `durable_index` lies at byte `position` of the segment at `segment_base`."""

    generation: int
    durable_index: int
    segment_base: int
    position: int
    epoch: int
    commit_index: int
    crc32c: int
    clean: bool

    @property
    def discards(self) -> bool:
        """Whether all remaining segments are to be removed."""
        return self.segment_base == _DISCARDING


def empty_mark(index: int) -> Mark:
    """Return the mark of a log that holds nothing and begins at `index`."""
    return Mark(0, index, index, STORE_HEADER_BYTES, 0, 0, 0, clean=False)


def discarding_mark(index: int) -> Mark:
    """Return the mark of a log whose segments are all being removed, and which will then begin at `index`."""
    return empty_mark(index)._replace(segment_base=_DISCARDING)


def encode_mark(mark: Mark) -> bytes:
    """Return the 56 bytes of a mark, the body of its slot."""
    return _BODY.pack(*mark)


def decode_mark(body: bytes) -> Mark:
    """Return the mark in the body of a valid slot."""
    mark = Mark._make(_BODY.unpack(body))
    return mark._replace(clean=bool(mark.clean))


class MarkFile:
    """The two slots of the mark, and which of them may be written."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._slots = SlotFile(storage, name=MARK_NAME, version=MARK_VERSION)
        winner: tuple[Mark, Slot] | None = None
        valid = self._slots.read()
        for slot in valid:
            mark = decode_mark(slot.body)
            if winner is None or mark.generation > winner[0].generation:
                winner = mark, slot
        self.found: Mark | None = winner[0] if winner else None
        """The winning mark when the file was opened; None if no slot was valid."""
        self.is_damaged = any(self._is_garbage(number) for number in {0, 1} - {slot.number for slot in valid})
        """Whether a slot was written but is not valid, because of rot or a power loss during the write."""
        self.commit_index = 0
        """The commit_index of the next mark, which is written as at most its durable_index."""
        self.synced = self.found
        """The mark that was synced last; until `rewrite_winner` or a first sync, the one that was found."""
        self._latest = self._syncing = self.found
        self._synced_slot = winner[1].number if winner else 1
        self._unsynced = False
        self._sync: Sync | None = None
        self._waiting = False

    @property
    def latest(self) -> Mark | None:
        """The last mark that was found or written."""
        return self._latest

    def allocate(self) -> None:
        """Reserve room for both slots, so that a full disk cannot fail the mark later.

        Raises:
            DiskFull: there is no room.
        """
        self._storage.allocate(MARK_FILE_BYTES)

    def rewrite_winner(self) -> None:
        """Write the winning slot again and sync it: after a kill it may be in the page cache only."""
        if self.found is not None:
            self._slots.write(self._synced_slot, encode_mark(self.found))
            self._slots.sync()

    def write(self, mark: Mark) -> None:
        """Write a newer mark, with the next generation. Durable after a sync. Without room on the disk it waits."""
        self._take(mark)
        if self._sync is None:
            self._write_latest()

    def write_synced(self, mark: Mark) -> None:
        """Write a newer mark and sync it.

        Raises:
            OSError, DiskFull: the device failed, or has no room; the last synced mark is still valid.
        """
        self.settle()
        self._take(mark)
        self._write_latest(waits=False)
        self._slots.sync()
        self._swap(self._latest)

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is in progress."""
        return self._sync is not None

    def begin_sync(self) -> Sync | None:
        """Return a sync of what was written; None if nothing was, or a sync is in progress."""
        if self._sync is None and self._waiting:
            self._write_latest()
        if self._sync is not None or not self._unsynced:
            return None
        self._sync, self._syncing = Sync(self._storage), self._latest
        return self._sync

    def end_sync(self, sync: Sync) -> None:
        """Note that `sync` succeeded."""
        if sync is self._sync:
            self._sync = None
            self._swap(self._syncing)
            if self._waiting:
                self._write_latest()

    def settle(self) -> None:
        """Finish a sync in progress here."""
        if self._sync is not None:
            self._sync.run()
            self.end_sync(self._sync)

    def close(self) -> None:
        """Close the file."""
        self._slots.close()

    def _is_garbage(self, number: int) -> bool:
        raw = self._storage.read_at(SLOT_POSITIONS[number], SLOT_BYTES)
        return len(raw) < SLOT_BYTES or any(raw)

    def _take(self, mark: Mark) -> None:
        generation = 1 if self._latest is None else self._latest.generation + 1
        self._latest, self._waiting = Mark(generation, *mark[1:]), True

    def _write_latest(self, *, waits: bool = True) -> None:
        if self._latest is not None:
            self._unsynced = False  # If this is refused, the slot may be torn.
            try:
                self._slots.write(1 - self._synced_slot, encode_mark(self._latest))
            except NoRoom:
                if waits:
                    return
                raise
            self._unsynced, self._waiting = True, False

    def _swap(self, synced: Mark | None) -> None:
        self.synced = synced
        self._synced_slot = 1 - self._synced_slot
        self._unsynced = False
