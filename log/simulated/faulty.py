"""A disk in memory that loses what was not synced: `Storage` and `Directory` for tests and simulations.

What a power loss may take, and nothing more:

- of the 512-byte sectors written since the file's last sync, any subset, in any order
- of the changes of a file's size since then, any subset
- of the names created, renamed and removed since the folder's last sync, any subset; a renaming is atomic

A failed sync leaves the page cache looking clean: no later sync writes what it did not write.

`Disk.stop_before` loses the power before a given operation, so that a test can stop a change at each of its steps:

    disk = Disk(seed=1)
    disk.stop_before = 7
    with pytest.raises(PowerLoss):
        write_something(disk.directory())
    recover(disk.directory())  # as the next process finds it
"""

from __future__ import annotations

import copy
import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from ..errors import DiskFull, FileFailed, ResourcesExhausted, Unreadable
from ..files import FULL, translated
from ..storage import Directory

SECTOR_BYTES = 512
HELD_SYNC_TIMEOUT_S = 30.0
"""How long a sync waits for `Disk.holding_syncs`; a test that never sets it fails instead of hanging."""

Kept = Callable[[str], bool]
"""Called with the name of the file or folder for each change that was not synced, in order: whether it survives."""


class PowerLoss(Exception):
    """The power was lost, or a handle from before a power loss or restart was used."""


class Keep(Enum):
    """How much of what was not synced survives a power loss."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    SOME = "some"
    """Each change with a chance of one half, drawn from the disk's seed."""


class DiskFile:
    """A file as the page cache shows it, as the disk holds it, and the changes between the two."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []
        """Writes as (position, bytes), one for each sector, and changes of the size as the new size."""
        self.unreadable = range(0)
        """The positions of the bytes that cannot be read, whatever is written there."""

    def write(self, position: int, data: bytes) -> None:
        """Write to the page cache."""
        _overlay(self.cached, position, data)
        start = position
        while start < position + len(data):
            end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, position + len(data))
            self.pending.append((start, data[start - position : end - position]))
            start = end

    def resize(self, length: int) -> None:
        """Change the size in the page cache."""
        _resize(self.cached, length)
        self.pending.append(length)

    def settle(self, kept: Kept, count: int | None = None) -> None:
        """Of the pending changes (the first `count`), write those that `kept` accepts to the disk; lose the rest."""
        for change in self.pending[:count]:
            if kept(self.name):
                if isinstance(change, int):
                    _resize(self.durable, change)
                else:
                    _overlay(self.durable, *change)
        del self.pending[:count]


class DiskFolder:
    """A folder's names as the page cache shows them, as the disk holds them, and the changes between the two."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cached: dict[str, DiskFile | DiskFolder] = {}
        self.durable: dict[str, DiskFile | DiskFolder] = {}
        self.pending: list[dict[str, DiskFile | DiskFolder | None]] = []
        """Changes that are atomic, each as name -> what it names then, None for a name that goes."""

    def change(self, names: dict[str, DiskFile | DiskFolder | None]) -> None:
        """Change names in the page cache."""
        _rename(self.cached, names)
        self.pending.append(names)

    def settle(self, kept: Kept) -> None:
        """Bring the pending changes that `kept` accepts to the disk; the others are lost to it."""
        for names in self.pending:
            if kept(self.name):
                _rename(self.durable, names)
        self.pending.clear()

    def lose_power(self, kept: Kept) -> None:
        """Settle this folder and all in it as `kept` says; the page cache then shows what the disk holds."""
        self.settle(kept)
        self.cached = dict(self.durable)
        for node in self.cached.values():
            if isinstance(node, DiskFolder):
                node.lose_power(kept)
            else:
                node.settle(kept)
                node.cached = bytearray(node.durable)


def _overlay(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content += bytes(position - len(content))
    content[position : position + len(data)] = data


def _resize(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content += bytes(length - len(content))


def _rename(known: dict[str, DiskFile | DiskFolder], names: dict[str, DiskFile | DiskFolder | None]) -> None:
    for name, node in names.items():
        if node is None:
            known.pop(name, None)
        else:
            known[name] = node


class Disk:
    """A simulated device. Each process that a test simulates uses it through a `directory()` of its own.

    One thread uses it, except that a sync may wait for `holding_syncs` in another. All chances are drawn from `seed`.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.operations = 0
        """Changing operations so far: writes, resizes, syncs, creations, renames, removals."""
        self.stop_before: int | None = None
        """Lose the power before the operation of this number; the first is 1."""
        self.on_power_loss = Keep.SOME
        """What survives if `lose_power` gets no argument."""
        self.full = False
        """Whether nothing more can be created or allocated: `DiskFull`."""
        self.exhausted = False
        """Whether no file can be created or opened (`ResourcesExhausted`), and no folder listed or synced (EMFILE)."""
        self.writes_zeros = False
        """Whether files are allocated by writing zeros."""
        self.most_bytes: int | None = None
        """If set, no file can be allocated beyond it: `DiskFull`."""
        self.copies_on_write = False
        """Whether an overwrite takes new space: a full disk then refuses each write after some sectors, with ENOSPC."""
        self.failing: Callable[[str, str], bool | int] | None = None
        """Called with operation and file name before each operation; that one fails with EIO if it returns True, and
        with another errno if it returns that."""
        self.holding_syncs: threading.Event | None = None
        """If set, a sync of a file waits for this event."""
        self.bytes_read = 0
        """Bytes of files that were read, by any process."""
        self.bytes_written = 0
        """Bytes that were written to files, by any process."""
        self.open_files = 0
        """File handles that were opened or created and not closed, by any process."""
        self.journal: list[tuple[str, str]] = []
        """(operation, file name) of every changing operation, in order."""
        self._root = DiskFolder("disk")
        self._life = 0

    def directory(self) -> FaultyDirectory:
        """Return the disk's root folder for a new process; handles of earlier ones raise `PowerLoss`."""
        self._life += 1
        return FaultyDirectory(self, self._root, "disk")

    def lose_power(self, keep: Keep | Kept | None = None) -> None:
        """Lose what was not synced, or a part of it as `keep`, else `on_power_loss`, says; end the process."""
        how = self.on_power_loss if keep is None else keep
        self.stop_before = None
        self._life += 1
        self._root.lose_power(self._kept(how) if isinstance(how, Keep) else how)

    def fork(self, into: Disk | None = None) -> Disk:
        """Return a disk, or `into`, with the content of this one, unsynced changes included; handles stay with this."""
        fork = Disk() if into is None else into
        fork.mount(copy.deepcopy(self._root))
        return fork

    def mount(self, root: DiskFolder) -> None:
        """Replace all content by `root`."""
        self._root = root

    def unsynced(self) -> list[str]:
        """Return the file or folder name of each change that a power loss could take now."""
        asked: list[str] = []

        def kept(name: str) -> bool:
            asked.append(name)
            return True

        fork = self.fork()
        fork.lose_power(kept)
        return asked

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Let a file rot: change one bit of it, on the disk and in the page cache."""
        file = self._file(path)
        file.cached[position] ^= 1 << bit
        if position < len(file.durable):
            file.durable[position] ^= 1 << bit

    def make_unreadable(self, path: str, position: int, length: int = SECTOR_BYTES) -> None:
        """Let a file rot: from now on, a read of any of these bytes fails with EIO."""
        self._file(path).unreadable = range(position, position + length)

    def content(self, path: str) -> bytes:
        """Return a file's bytes as the page cache shows them."""
        return bytes(self._file(path).cached)

    def durable_content(self, path: str) -> bytes:
        """Return a file's bytes as a power loss leaves them that keeps nothing unsynced."""
        return bytes(self._file(path).durable)

    def unsynced_from(self, path: str) -> int | None:
        """Return the lowest position of a file that was written or truncated since its last sync, or None."""
        pending = self._file(path).pending
        return min((change if isinstance(change, int) else change[0] for change in pending), default=None)

    def replace(self, path: str, content: bytes) -> None:
        """Put durable content into a file, which is created if it does not exist."""
        *folders, name = path.split("/")
        folder = self._folder(folders)
        file = DiskFile(name)
        file.cached, file.durable = bytearray(content), bytearray(content)
        folder.cached[name] = folder.durable[name] = file

    def delete(self, path: str) -> None:
        """Remove a file durably."""
        *folders, name = path.split("/")
        folder = self._folder(folders)
        folder.cached.pop(name)
        folder.durable.pop(name, None)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(self._folder(folder.split("/") if folder else []).cached)

    def step(self, operation: str, name: str, life: int) -> None:
        """Count a changing operation of a handle; lose the power before it if it is the one to stop before.

        Raises:
            PowerLoss: the power went away now, or the handle is of an earlier process.
        """
        self.check(life)
        self.operations += 1
        if self.stop_before is not None and self.operations >= self.stop_before:
            self.lose_power()
            raise PowerLoss(f"before {operation} of {name}")
        self.journal.append((operation, name))

    def fails(self, operation: str, name: str) -> int:
        """Return the errno with which `failing` wants this operation to fail; 0 if it wants none."""
        wanted = self.failing is not None and self.failing(operation, name)
        return errno.EIO if wanted is True else int(wanted)

    def check(self, life: int) -> None:
        """Raise `PowerLoss` for a handle of an earlier process."""
        if life != self._life:
            raise PowerLoss("a handle from before the power loss or restart")

    @property
    def life(self) -> int:
        """Number of the process that uses the disk now."""
        return self._life

    def chance(self, _name: str = "") -> bool:
        """Return True with a chance of one half, drawn from the seed."""
        return self.random.random() < 0.5

    def _kept(self, how: Keep) -> Kept:
        match how:
            case Keep.NOTHING:
                return lambda _: False
            case Keep.EVERYTHING:
                return lambda _: True
            case Keep.SOME:
                return self.chance

    def _folder(self, path: list[str]) -> DiskFolder:
        folder = self._root
        for part in path:
            node = folder.cached[part]
            if not isinstance(node, DiskFolder):
                raise NotADirectoryError(part)
            folder = node
        return folder

    def _file(self, path: str) -> DiskFile:
        *folders, name = path.split("/")
        node = self._folder(folders).cached[name]
        if not isinstance(node, DiskFile):
            raise IsADirectoryError(path)
        return node


class FaultyStorage:
    """An open file on a `Disk`: a `Storage`. Made by a `FaultyDirectory`."""

    def __init__(self, disk: Disk, file: DiskFile) -> None:
        self._disk, self._file, self._life = disk, file, disk.life
        self._closed = False
        self.wrote_zeros = disk.writes_zeros
        disk.open_files += 1

    @property
    def size(self) -> int:
        self._disk.check(self._life)
        return len(self._file.cached)

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.check(self._life)
        data, unreadable = bytes(self._file.cached[position : position + length]), self._file.unreadable
        first = max(position, unreadable.start)
        if error := self._disk.fails("read", self._file.name):
            raise Unreadable(self._file.name, position, b"", OSError(error, "injected"))
        if first < min(position + len(data), unreadable.stop):
            bad = OSError(errno.EIO, os.strerror(errno.EIO))
            raise Unreadable(self._file.name, first, data[: first - position], bad)
        self._disk.bytes_read += len(data)
        return data

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        try:
            self._step("write")
            if self._disk.full and self._disk.copies_on_write:
                raise OSError(errno.ENOSPC, "injected", self._file.name)
        except OSError as error:
            if error.errno in FULL:
                end = position + self._disk.random.randrange(len(data) + 1)
                self._file.write(position, bytes(data[: max(0, end - end % SECTOR_BYTES - position)]))
            raise
        self._disk.bytes_written += len(data)
        self._file.write(position, bytes(data))

    def truncate(self, length: int) -> None:
        self._step("truncate")
        self._file.resize(length)

    def allocate(self, length: int) -> None:
        try:
            self._step("allocate")
        except OSError as error:
            raise translated(error, "fallocate", self._file.name, length) from error
        if length > len(self._file.cached):
            if self._disk.full or (self._disk.most_bytes is not None and length > self._disk.most_bytes):
                raise DiskFull(self._file.name, length)
            self._file.resize(length)

    def sync(self) -> None:
        written = len(self._file.pending)  # What is written while it runs is for the next one.
        if self._disk.holding_syncs is not None and not self._disk.holding_syncs.wait(HELD_SYNC_TIMEOUT_S):
            raise TimeoutError("holding_syncs was never set: the sync still waits")
        try:
            self._step("sync")
        except OSError:
            self._file.settle(self._disk.chance, written)
            raise
        self._file.settle(lambda _: True, written)

    def close(self) -> None:
        """Closing syncs nothing."""
        self._disk.open_files -= not self._closed
        self._closed = True

    def _step(self, operation: str) -> None:
        self._disk.step(operation, self._file.name, self._life)
        if error := self._disk.fails(operation, self._file.name):
            raise FileFailed(operation, self._file.name, OSError(error, "injected"))


class FaultyDirectory:
    """A folder on a `Disk`: a `Directory`. Made by `Disk.directory`."""

    def __init__(self, disk: Disk, folder: DiskFolder, path: str) -> None:
        self.disk, self._folder, self._path, self._life = disk, folder, path, disk.life
        self._locked = False

    @property
    def path(self) -> str:
        return self._path

    def list(self) -> list[str]:
        self.disk.check(self._life)
        self._need_descriptor()
        return [*self._folder.cached]

    def create(self, name: str) -> FaultyStorage:
        try:
            self._step("create", name)
        except OSError as error:
            raise translated(error, "open", name) from error
        if name in self._folder.cached:
            raise FileExistsError(name)
        if self.disk.exhausted:
            raise ResourcesExhausted(name, "injected")
        if self.disk.full:
            raise DiskFull(name, 0)
        file = DiskFile(name)
        self._folder.change({name: file})
        return FaultyStorage(self.disk, file)

    def open(self, name: str) -> FaultyStorage:
        self.disk.check(self._life)
        node = self._folder.cached.get(name)
        if not isinstance(node, DiskFile):
            raise FileNotFoundError(name)
        if self.disk.exhausted:
            raise ResourcesExhausted(name, "injected")
        return FaultyStorage(self.disk, node)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source)
        if source not in self._folder.cached:
            raise FileNotFoundError(source)
        node = self._folder.cached[source]
        if isinstance(node, DiskFile):
            node.name = target
        self._folder.change({source: None, target: node})

    def move(self, source: str, folder: Directory, target: str) -> None:
        self._step("move", source)
        if not isinstance(folder, FaultyDirectory) or source not in self._folder.cached:
            raise FileNotFoundError(source)
        # A file system's journal moves a name in one step, so it is never in neither folder. Here it may be in both.
        folder.receive(target, self._folder.cached[source])
        self._folder.change({source: None})

    def receive(self, name: str, node: DiskFile | DiskFolder) -> None:
        """Give a file or folder that moves here its name, durably."""
        self._folder.change({name: node})
        self._folder.settle(lambda _: True)

    def remove_child(self, name: str) -> None:
        self._step("remove folder", name)
        node = self._folder.cached.get(name)
        if not isinstance(node, DiskFolder):
            raise FileNotFoundError(name)
        if node.cached:
            raise OSError(errno.ENOTEMPTY, "not empty", name)
        self._folder.change({name: None})

    def remove(self, name: str) -> None:
        self._step("remove", name)
        if name not in self._folder.cached:
            raise FileNotFoundError(name)
        self._folder.change({name: None})

    def sync(self) -> None:
        self.disk.step("sync folder", self._path, self._life)
        self._need_descriptor()
        error = self.disk.fails("sync folder", self._path)
        self._folder.settle(self.disk.chance if error else lambda _: True)
        if error:
            raise FileFailed("sync", self._path, OSError(error, "injected"))

    def child(self, name: str) -> FaultyDirectory:
        self.disk.check(self._life)
        node = self._folder.cached.get(name)
        if node is None:
            self._step("create folder", name)
            node = DiskFolder(name)
            self._folder.change({name: node})
        if not isinstance(node, DiskFolder):
            raise NotADirectoryError(name)
        return FaultyDirectory(self.disk, node, f"{self._path}/{name}")

    def existing(self, name: str) -> FaultyDirectory:
        self.disk.check(self._life)
        node = self._folder.cached.get(name)
        if not isinstance(node, DiskFolder):
            raise FileNotFoundError(name)
        self._need_descriptor()
        return FaultyDirectory(self.disk, node, f"{self._path}/{name}")

    def lock(self) -> bool:
        # No other process can hold it: `Disk.directory` ended the one before.
        taken, self._locked = not self._locked, True
        return taken

    def unlock(self) -> None:
        self._locked = False

    def keep(self) -> None:
        """Do nothing: nobody else has this folder."""

    def release(self) -> None:
        """Do nothing."""

    def misplaced(self, names: Iterable[str] = ()) -> Sequence[str]:
        """Nothing: a node that lost its power has no files open, and nobody else changes the disk."""
        return []

    def _step(self, operation: str, name: str) -> None:
        self.disk.step(operation, name, self._life)
        if error := self.disk.fails(operation, name):
            raise FileFailed(operation, name, OSError(error, "injected"))

    def _need_descriptor(self) -> None:
        """A folder is opened to be listed or synced, and a file system has no better error for it than this."""
        if self.disk.exhausted:
            raise OSError(errno.EMFILE, "injected", self._path)
