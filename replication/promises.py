"""The promise file: two slots. Both are written and fsynced, one after the other, before a promise is answered; then
the `witnesses`, which notice if this file is ever replaced by an older one.

    0 4 crc32c of 4..64 | 4 4 version=1 | 8 8 epoch | 16 24 candidate, zero-padded | 40 8 incarnation | 48 16 disk_id

After any crash at least one slot is whole, and it holds the last answered promise or a later one. The highest valid
epoch wins; if they are equal, the first slot. Without a valid slot the node cannot know what it promised, and does not
start. Not voting would not be enough, since an ack in an older epoch can break a forgotten promise, too.
"""

import struct
from contextlib import closing

from quire.log import SLOT_BYTES, SLOT_POSITIONS, Directory, SlotFile

from .core.belief import EPOCH_LIMIT
from .core.members import DISK_ID_BYTES, MAX_NODE_ID_BYTES
from .core.messages import NO_PROMISE, Promise
from .errors import ReplicationError
from .witnesses import Witnesses

PROMISE_FILE = "promise"
PROMISE_VERSION = 1
FILE_BYTES = 8192

_BODY = struct.Struct(f"<Q{MAX_NODE_ID_BYTES}sQ{DISK_ID_BYTES}s")


class PromiseLost(ReplicationError):
    """The promise file holds no promise that this disk can have made; the text says what it holds."""


def _winner(slots: SlotFile) -> tuple[Promise, bytes]:
    """The promise of the highest epoch, and its disk id. Closes the file if it raises."""
    held: tuple[Promise, bytes] | None = None
    for slot in slots.read():
        epoch, candidate, incarnation, disk = _BODY.unpack(slot.body)
        if held is None or epoch > held[0].epoch:
            held = (Promise(epoch, candidate.rstrip(b"\0").decode("ascii"), incarnation), disk)
    if held is None:
        slots.close()
        raise PromiseLost("no slot of the promise file is valid")
    if held[0].epoch >= EPOCH_LIMIT:
        slots.close()
        raise PromiseLost(f"the promise file holds epoch {held[0].epoch}, and none is at or above 2^63")
    return held


class PromiseFile:
    """This disk's promise, and its disk id. `write` blocks for two fsyncs; one caller at a time."""

    def __init__(self, slots: SlotFile, disk_id: bytes, promise: Promise) -> None:
        self._slots = slots
        self.disk_id = disk_id
        self.promise = promise
        self.witnesses: Witnesses | None = None
        """Get each promise when it is durable; None if the directory has none."""

    @classmethod
    def create(cls, directory: Directory, disk_id: bytes) -> "PromiseFile":
        """Write (0, none) with a new disk_id. Durable on return; only then may the disk id be sent to anyone."""
        storage = directory.create(PROMISE_FILE)
        storage.allocate(FILE_BYTES)
        promises = cls(SlotFile(storage, name=PROMISE_FILE, version=PROMISE_VERSION), disk_id, NO_PROMISE)
        promises.write(NO_PROMISE)
        directory.sync()
        return promises

    @classmethod
    def open(cls, directory: Directory, disk_id: bytes | None = None) -> "PromiseFile":
        """Read the winning slot and write it to both again: after a kill -9 it may be only in the page cache.

        `disk_id` is the one in the identity file.

        Raises:
            PromiseLost: no slot is valid, or they are of another disk or an impossible epoch (rule 18).
            UnknownVersion: they have another version's format.
        """
        slots = SlotFile(directory.open(PROMISE_FILE), name=PROMISE_FILE, version=PROMISE_VERSION)
        held = _winner(slots)
        if disk_id not in (None, held[1]):
            slots.close()
            raise PromiseLost(f"the promise file is of disk {held[1].hex()}, the identity of another")
        promises = cls(slots, held[1], held[0])
        promises.write(held[0])
        directory.sync()  # The file name, too: the start that created it may have been killed before this.
        return promises

    @staticmethod
    def read(directory: Directory) -> Promise:
        """The promise that the file holds. Writes nothing.

        Raises:
            PromiseLost: no slot is valid, or it is of an impossible epoch.
            UnknownVersion: they have another version's format.
        """
        slots = SlotFile(directory.open(PROMISE_FILE), name=PROMISE_FILE, version=PROMISE_VERSION)
        with closing(slots):
            return _winner(slots)[0]

    @staticmethod
    def has_second_slot(directory: Directory) -> bool:
        """Whether the second slot was ever written, which is after the first one was durable."""
        with closing(directory.open(PROMISE_FILE)) as storage:
            return any(storage.read_at(SLOT_POSITIONS[1], SLOT_BYTES))

    def write(self, promise: Promise) -> None:
        """Make a promise durable: write a slot, fsync, write the other, fsync; then the witnesses."""
        body = _BODY.pack(promise.epoch, promise.candidate.encode("ascii"), promise.incarnation, self.disk_id)
        for number in (0, 1):
            self._slots.write(number, body)
            self._slots.sync()
        if self.witnesses is not None:
            self.witnesses.promise(promise.epoch)
        self.promise = promise

    def close(self) -> None:
        """Close the file."""
        self._slots.close()
