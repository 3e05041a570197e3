"""The witnesses: two files that record what `promise`, `mark` and `log` held, so that older copies are noticed.

Each is a file of two slots (`quire.log.SlotFile`):

    0 4 crc32c of 4..64 | 4 4 version=1 | 8 8 promised epoch | 16 8 generation of the mark | 24 8 epoch and
    32 8 index of the log's durable end | 40 8 commit_index | 48 16 disk_id

Every field is a lower bound of what the other files hold, whenever the node stops: it is written after what it bounds.

- A promise is in both witnesses before it is answered. So an older promise is always noticed.
- After each sync of the mark one witness, in turn, gets its generation and its durable end; after an open and a clean
  stop both get them. Generations only rise, so an older mark is noticed, as is an older log with its mark, if the copy
  is older than the last sync of the mark: one second, while records arrive.
- The end may be lowered by a truncation or a reset. Both witnesses forget it before either begins.

Of equal generations the lowest end counts: that of a witness that forgot it. There are two files because one may be
damaged together with another file. A lost or damaged witness is recreated from the other.
"""

import struct
from contextlib import closing, suppress
from threading import Lock
from typing import NamedTuple

from quire.log import Directory, Mark, NoRoom, SlotFile, Storage

from .core.members import DISK_ID_BYTES
from .errors import ReplicationError

WITNESS_FILES = ("witness-1", "witness-2")
WITNESS_VERSION = 1
FILE_BYTES = 8192

_BODY = struct.Struct(f"<QQQQQ{DISK_ID_BYTES}s")


class WitnessForeign(ReplicationError):
    """A witness is of another disk; the text names both."""


class Witnessed(NamedTuple):
    """Lower bounds of what a data directory holds. The end is that of this mark, (0, 0) if unknown."""

    promised_epoch: int = 0
    mark_generation: int = 0
    end_epoch: int = 0
    end_index: int = 0
    commit_index: int = 0

    def joined(self, other: "Witnessed") -> "Witnessed":
        """What both say."""
        older, newer = sorted((self, other), key=lambda each: each.mark_generation)
        both_ends = (newer.end_epoch, newer.end_index), (older.end_epoch, older.end_index)
        end = both_ends[0] if older.mark_generation < newer.mark_generation else min(both_ends)
        return Witnessed(
            max(self.promised_epoch, other.promised_epoch),
            newer.mark_generation,
            *end,
            max(self.commit_index, other.commit_index),
        )

    def with_mark(self, mark: Mark | None) -> "Witnessed":
        """The same after a sync of `mark`."""
        if mark is None:
            return self
        commit_index = max(self.commit_index, mark.commit_index)
        return Witnessed(self.promised_epoch, mark.generation, mark.epoch, mark.durable_index, commit_index)


class _WitnessFile:
    """One open witness, and which of its slots is written next."""

    def __init__(self, storage: Storage, name: str, disk_id: bytes) -> None:
        self._storage = storage
        self._slots = SlotFile(storage, name=name, version=WITNESS_VERSION)
        self._disk_id = disk_id
        self._next = 0
        self.says: Witnessed | None = None
        newest: tuple[int, ...] = ()
        for slot in self._slots.read():
            *fields, disk = _BODY.unpack(slot.body)
            if disk != disk_id:
                self.close()
                raise WitnessForeign(f"its {name} file is of disk {disk.hex()}, its identity of {disk_id.hex()}")
            said = Witnessed(*fields)
            # A slot that forgot the end was written after the one that knew it.
            order = (said.promised_epoch, said.mark_generation, not said.end_index)
            if order >= newest:
                newest, self._next = order, 1 - slot.number
            self.says = said if self.says is None else self.says.joined(said)

    def write(self, witnessed: Witnessed) -> None:
        """Make it durable in the slot that was written less recently."""
        self._slots.write(self._next, _BODY.pack(*witnessed, self._disk_id))
        self._slots.sync()
        self._next = 1 - self._next

    def allocate(self) -> None:
        """Reserve room, so that a full disk cannot fail a write. Raises DiskFull."""
        self._storage.allocate(FILE_BYTES)

    def close(self) -> None:
        """Close the file."""
        self._slots.close()


class Witnesses:
    """Both witnesses of one data directory. Any thread may call any method; all but `known` block for syncs.

    What may be answered only afterwards raises DiskFull if an overwrite finds no room.
    """

    def __init__(self, directory: Directory, disk_id: bytes) -> None:
        """Read the existing witnesses; nothing is written before `settle`.

        Raises:
            WitnessForeign: one of them is of another disk.
            UnknownVersion: a later program wrote one.
        """
        self._directory = directory
        self._disk_id = disk_id
        self._lock = Lock()
        self._files: list[_WitnessFile] = []
        self._turn = 0
        self._stale_generation = -1
        self.known = Witnessed()
        """Their content; zeros if there are none, as in a directory of an earlier version."""
        for name in WITNESS_FILES:
            if name in directory.list():
                with closing(_WitnessFile(directory.open(name), name, disk_id)) as file:
                    self.known = self.known if file.says is None else self.known.joined(file.says)

    def settle(self, promised_epoch: int, mark: Mark | None) -> None:
        """Write the verified values to both; create missing or damaged files. Call it once, before the others.

        On a full disk a file may not be created; the next start tries again.
        """
        with self._lock:
            self.known = self.known._replace(promised_epoch=promised_epoch).with_mark(mark)
            for name in WITNESS_FILES:
                with suppress(NoRoom):
                    self._files.append(self._opened(name))
            self._write_all()
            self._directory.sync()

    def accept_generation(self, generation: int) -> None:
        """Accept a lower generation of the mark: a slot of it is damaged, and the log's end is compared instead.

        Call it before the mark is written and before `settle`.
        """
        with self._lock:
            self.known = self.known._replace(mark_generation=generation)
            for name in WITNESS_FILES:
                if name in self._directory.list():
                    with closing(_WitnessFile(self._directory.open(name), name, self._disk_id)) as file:
                        file.write(self.known)  # Both slots: neither may keep the higher one.
                        file.write(self.known)

    def _opened(self, name: str) -> _WitnessFile:
        is_new = name not in self._directory.list()
        storage = self._directory.create(name) if is_new else self._directory.open(name)
        file = _WitnessFile(storage, name, self._disk_id)
        try:
            file.allocate()
        except NoRoom:
            file.close()
            if is_new:
                self._directory.remove(name)
            raise
        return file

    def promise(self, epoch: int) -> None:
        """Note in both, durably, that a promise of this epoch is durable: only then may it be answered."""
        with self._lock:
            self.known = self.known._replace(promised_epoch=max(epoch, self.known.promised_epoch))
            self._write_all()

    def note(self, mark: Mark | None) -> None:
        """Note in one, durably, that this mark is durable. If the disk has no room, the older bound stays."""
        with self._lock:
            if self._files and self._is_newer(mark):
                self.known = self.known.with_mark(mark)
                self._turn += 1
                with suppress(NoRoom):
                    self._files[self._turn % len(self._files)].write(self.known)

    def note_in_both(self, mark: Mark | None) -> None:
        """Note in both, durably, that this mark is durable; as `note`."""
        with self._lock, suppress(NoRoom):
            if self._is_newer(mark):
                self.known = self.known.with_mark(mark)
                self._write_all()

    def forget_end(self, mark: Mark | None) -> None:
        """Forget in both, durably, where the log ends: a truncation or a reset is about to lower it.

        `mark` is the newest that was written: a sync of it that still runs proves nothing about what follows.
        """
        with self._lock:
            self._stale_generation = -1 if mark is None else mark.generation
            self.known = self.known._replace(end_epoch=0, end_index=0)
            self._write_all()

    def _is_newer(self, mark: Mark | None) -> bool:
        return mark is not None and mark.generation > max(self._stale_generation, self.known.mark_generation)

    def _write_all(self) -> None:
        for file in self._files:
            file.write(self.known)

    def close(self) -> None:
        """Close both."""
        with self._lock:
            while self._files:
                self._files.pop().close()
