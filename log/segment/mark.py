"""The mark: a lower bound, kept on disk, of what was durable and committed.

    slot body   8 8 generation | 16 8 durable_index | 24 8 segment base | 32 8 position | 40 8 epoch |
                48 8 commit_index (at most durable_index) | 56 4 frame crc32c | 60 1 clean | 61 3 zero

Epoch and crc32c are those of the frame before durable_index, `position` is where that frame ends. The highest valid
generation wins. Between two fsyncs only one slot is written: the other holds the last fsynced mark. So while a sync
runs, a newer mark waits in memory, and after it the slots swap roles.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..storage import Storage, Sync
from .slots import SLOT_BYTES, SLOT_POSITIONS, Slot, SlotFile

MARK_NAME = "mark"
MARK_VERSION = 1
MARK_FILE_BYTES = SLOT_POSITIONS[-1] + SLOT_BYTES

_BODY = struct.Struct("<QQQQQQIB3x")


class Mark(NamedTuple):
    """What a mark slot says."""

    generation: int
    durable_index: int
    segment_base: int
    position: int
    epoch: int
    commit_index: int
    crc32c: int
    clean: bool


def encode_mark(mark: Mark) -> bytes:
    """Return the 56 bytes of a mark in its slot."""
    return _BODY.pack(*mark)


def decode_mark(body: bytes) -> Mark:
    """Return the mark in a valid slot's 56 bytes."""
    mark = Mark._make(_BODY.unpack(body))
    return mark._replace(clean=bool(mark.clean))


class MarkFile:
    """The mark's two slots and which of them may be written."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._slots = SlotFile(storage, name=MARK_NAME, version=MARK_VERSION)
        winner: tuple[Mark, Slot] | None = None
        for slot in self._slots.read():
            mark = decode_mark(slot.body)
            if winner is None or mark.generation > winner[0].generation:
                winner = mark, slot
        self.found: Mark | None = winner[0] if winner else None
        """The winning mark as it stood when the file was opened, None if no slot was valid."""
        self._latest = self.found
        self._synced_slot = winner[1].number if winner else 1
        self._unsynced = False
        self._sync: Sync | None = None
        self._waiting = False

    @property
    def latest(self) -> Mark | None:
        """The last mark that was found or given."""
        return self._latest

    def allocate(self) -> None:
        """Have room for both slots, so that a disk that fills up later does not fail the mark.

        Raises:
            DiskFull: there is none.
        """
        self._storage.allocate(MARK_FILE_BYTES)

    def rewrite_winner(self) -> None:
        """Write the winning slot again in place and sync it: after a kill it may stand in the page cache only."""
        if self.found is not None:
            self._slots.write(self._synced_slot, encode_mark(self.found))
            self._slots.sync()

    def write(self, mark: Mark) -> None:
        """Write a newer mark (its generation is set here); not durable before a sync."""
        generation = 1 if self._latest is None else self._latest.generation + 1
        self._latest = mark._replace(generation=generation)
        if self._sync is None:
            self._write_latest()
        else:
            self._waiting = True

    def write_synced(self, mark: Mark) -> None:
        """Write a newer mark and return when it is durable.

        Raises:
            OSError: the device failed; the last synced mark still stands.
        """
        self.settle()
        self.write(mark)
        self._slots.sync()
        self._swap()

    def begin_sync(self) -> Sync | None:
        """Return the sync of what was written, None if that is nothing or a sync is on its way."""
        if self._sync is not None or not self._unsynced:
            return None
        self._sync = Sync(self._storage)
        return self._sync

    def end_sync(self, sync: Sync) -> None:
        """Take note that `sync` ran well."""
        if sync is self._sync:
            self._sync = None
            self._swap()
            if self._waiting:
                self._waiting = False
                self._write_latest()

    def settle(self) -> None:
        """Run a sync that is on its way to its end here and now."""
        if self._sync is not None:
            self._sync.run()
            self.end_sync(self._sync)

    def close(self) -> None:
        """Give the handle back."""
        self._slots.close()

    def _write_latest(self) -> None:
        if self._latest is not None:
            self._slots.write(1 - self._synced_slot, encode_mark(self._latest))
            self._unsynced = True

    def _swap(self) -> None:
        self._synced_slot = 1 - self._synced_slot
        self._unsynced = False
