"""A disk in memory that loses what was not synced.

What a power loss does, and what it may do at most:

- every 512-byte sector written since the file's last sync is old or new, each by itself, in any order
- every change of a file's size since then happened or not
- every creation, renaming and removal since the folder's last sync happened or not, a renaming as one
- a failed sync leaves the page cache looking clean: what it did not bring to the disk no later sync will

`Disk.stop_before` loses the power before a given operation, so that a test can stop a change at each of its steps.
"""

from __future__ import annotations

import copy
import errno
import random
import threading
from collections.abc import Callable
from enum import Enum

from ..errors import DiskFull
from ..storage import Directory

SECTOR_BYTES = 512


Kept = Callable[[str], bool]
"""Told a file's or folder's name for each thing that was not synced, in turn: whether it survives."""


class PowerLoss(Exception):
    """The power went away; or a handle from before it is used."""


class Keep(Enum):
    """What survives of what was not synced."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    SOME = "some"


class _File:
    """A file as the page cache shows it, as the disk has it, and the steps from one to the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []

    def write(self, position: int, data: bytes) -> None:
        _overlay(self.cached, position, data)
        start = position
        while start < position + len(data):
            end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, position + len(data))
            self.pending.append((start, data[start - position : end - position]))
            start = end

    def resize(self, length: int) -> None:
        _resize(self.cached, length)
        self.pending.append(length)

    def settle(self, kept: Kept) -> None:
        """Bring those pending steps to the disk that `kept` says."""
        for step in self.pending:
            if kept(self.name):
                if isinstance(step, int):
                    _resize(self.durable, step)
                else:
                    _overlay(self.durable, *step)
        self.pending.clear()


class _Folder:
    def __init__(self, name: str) -> None:
        self.name = name
        self.cached: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}
        self.pending: list[dict[str, _File | _Folder | None]] = []

    def change(self, names: dict[str, _File | _Folder | None]) -> None:
        _rename(self.cached, names)
        self.pending.append(names)

    def settle(self, kept: Kept) -> None:
        for names in self.pending:
            if kept(self.name):
                _rename(self.durable, names)
        self.pending.clear()

    def lose_power(self, kept: Kept) -> None:
        self.settle(kept)
        self.cached = dict(self.durable)
        for node in self.cached.values():
            if isinstance(node, _Folder):
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


def _rename(known: dict[str, _File | _Folder], names: dict[str, _File | _Folder | None]) -> None:
    for name, node in names.items():
        if node is None:
            known.pop(name, None)
        else:
            known[name] = node


class Disk:
    """The device behind all handles of one test; `directory()` gives the handle of a new process."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.operations = 0
        """Changing operations so far: writes, resizes, syncs, creations, renames, removals."""
        self.stop_before: int | None = None
        """Lose the power before the operation of this number."""
        self.on_power_loss = Keep.SOME
        self.full = False
        """Whether nothing more can be allocated."""
        self.failing: Callable[[str, str], bool] | None = None
        """Told operation and file name; True: that operation fails with EIO."""
        self.holding_syncs: threading.Event | None = None
        """If set, a sync of a file hangs until the event is."""
        self.open_files = 0
        """Handles of files that were opened or created and not closed, by whatever process."""
        self.journal: list[tuple[str, str]] = []
        """(operation, file name) of every changing operation, in order."""
        self._root = _Folder("disk")
        self._life = 0

    def directory(self) -> FaultyDirectory:
        """Return the data directory as a new process finds it; handles from before are dead."""
        self._life += 1
        return FaultyDirectory(self, self._root, "disk")

    def lose_power(self, keep: Keep | Kept | None = None) -> None:
        """Lose what was not synced, or some of it at random or as `keep` says, or, with luck, nothing."""
        how = self.on_power_loss if keep is None else keep
        self.stop_before = None
        self._life += 1
        self._root.lose_power(self._kept(how) if isinstance(how, Keep) else how)

    def fork(self, into: Disk | None = None) -> Disk:
        """Return a disk, or `into`, that stands as this one does, unsynced things included; handles stay with this."""
        fork = Disk() if into is None else into
        fork._root = copy.deepcopy(self._root)
        return fork

    def unsynced(self) -> list[str]:
        """Return the name of the file or folder of each thing that a power loss may lose now."""
        asked: list[str] = []

        def kept(name: str) -> bool:
            asked.append(name)
            return True

        fork = self.fork()
        fork.lose_power(kept)
        return asked

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Rot: change one bit of a file, on the disk and in the page cache."""
        file = self._file(path)
        file.cached[position] ^= 1 << bit
        if position < len(file.durable):
            file.durable[position] ^= 1 << bit

    def content(self, path: str) -> bytes:
        """Return a file's bytes as the page cache shows them."""
        return bytes(self._file(path).cached)

    def durable_content(self, path: str) -> bytes:
        """Return a file's bytes as they would be after a power loss that keeps nothing unsynced."""
        return bytes(self._file(path).durable)

    def unsynced_from(self, path: str) -> int | None:
        """Return the lowest position of a file that was written or cut since its last sync; None: there is none."""
        pending = self._file(path).pending
        return min((step if isinstance(step, int) else step[0] for step in pending), default=None)

    def replace(self, path: str, content: bytes) -> None:
        """Put durable content into a file, made if there is none."""
        *folders, name = path.split("/")
        folder = self._folder(folders)
        file = _File(name)
        file.cached, file.durable = bytearray(content), bytearray(content)
        folder.cached[name] = folder.durable[name] = file

    def delete(self, path: str) -> None:
        """Remove a file durably."""
        *folders, name = path.split("/")
        folder = self._folder(folders)
        folder.cached.pop(name)
        folder.durable.pop(name, None)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in a folder."""
        return sorted(self._folder(folder.split("/") if folder else []).cached)

    def step(self, operation: str, name: str, life: int) -> None:
        """Count a changing operation; lose the power or fail if its turn has come."""
        self.check(life)
        self.operations += 1
        if self.stop_before is not None and self.operations >= self.stop_before:
            self.lose_power()
            raise PowerLoss(f"before {operation} of {name}")
        self.journal.append((operation, name))

    def fails(self, operation: str, name: str) -> bool:
        """Return whether the test wants this operation to fail."""
        return self.failing is not None and self.failing(operation, name)

    def check(self, life: int) -> None:
        """Refuse a handle of a process that died."""
        if life != self._life:
            raise PowerLoss("a handle from before the power loss or restart")

    @property
    def life(self) -> int:
        """Number of the process that uses the disk now."""
        return self._life

    def chance(self, _name: str = "") -> bool:
        """Return a seeded coin."""
        return self.random.random() < 0.5

    def _kept(self, how: Keep) -> Kept:
        match how:
            case Keep.NOTHING:
                return lambda _: False
            case Keep.EVERYTHING:
                return lambda _: True
            case Keep.SOME:
                return self.chance

    def _folder(self, path: list[str]) -> _Folder:
        folder = self._root
        for part in path:
            node = folder.cached[part]
            if not isinstance(node, _Folder):
                raise NotADirectoryError(part)
            folder = node
        return folder

    def _file(self, path: str) -> _File:
        *folders, name = path.split("/")
        node = self._folder(folders).cached[name]
        if not isinstance(node, _File):
            raise IsADirectoryError(path)
        return node


class FaultyStorage:
    """A `Storage` on a `Disk`."""

    def __init__(self, disk: Disk, file: _File) -> None:
        self._disk, self._file, self._life = disk, file, disk.life
        self._closed = False
        disk.open_files += 1

    @property
    def size(self) -> int:
        self._disk.check(self._life)
        return len(self._file.cached)

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.check(self._life)
        if self._disk.fails("read", self._file.name):
            raise OSError(errno.EIO, "injected", self._file.name)
        return bytes(self._file.cached[position : position + length])

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._step("write")
        self._file.write(position, bytes(data))

    def truncate(self, length: int) -> None:
        self._step("truncate")
        self._file.resize(length)

    def allocate(self, length: int) -> None:
        self._step("allocate")
        if length > len(self._file.cached):
            if self._disk.full:
                raise DiskFull(self._file.name, length)
            self._file.resize(length)

    def sync(self) -> None:
        if self._disk.holding_syncs is not None and not self._disk.holding_syncs.wait(30):
            raise TimeoutError("the test never let the sync go")
        try:
            self._step("sync")
        except OSError:
            self._file.settle(self._disk.chance)
            raise
        self._file.settle(lambda _: True)

    def close(self) -> None:
        """Closing syncs nothing."""
        self._disk.open_files -= not self._closed
        self._closed = True

    def _step(self, operation: str) -> None:
        self._disk.step(operation, self._file.name, self._life)
        if self._disk.fails(operation, self._file.name):
            raise OSError(errno.EIO, "injected", self._file.name)


class FaultyDirectory:
    """A `Directory` on a `Disk`."""

    def __init__(self, disk: Disk, folder: _Folder, path: str) -> None:
        self.disk, self._folder, self._path, self._life = disk, folder, path, disk.life
        self._locked = False

    @property
    def path(self) -> str:
        return self._path

    def list(self) -> list[str]:
        self.disk.check(self._life)
        return [*self._folder.cached]

    def create(self, name: str) -> FaultyStorage:
        self._step("create", name)
        if name in self._folder.cached:
            raise FileExistsError(name)
        if self.disk.full:
            raise DiskFull(name, 0)
        file = _File(name)
        self._folder.change({name: file})
        return FaultyStorage(self.disk, file)

    def open(self, name: str) -> FaultyStorage:
        self.disk.check(self._life)
        node = self._folder.cached.get(name)
        if not isinstance(node, _File):
            raise FileNotFoundError(name)
        return FaultyStorage(self.disk, node)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source)
        if source not in self._folder.cached:
            raise FileNotFoundError(source)
        node = self._folder.cached[source]
        if isinstance(node, _File):
            node.name = target
        self._folder.change({source: None, target: node})

    def move(self, source: str, folder: Directory, target: str) -> None:
        self._step("move", source)
        if not isinstance(folder, FaultyDirectory) or source not in self._folder.cached:
            raise FileNotFoundError(source)
        # One step for a file system's journal: what moves is never in neither place. Here it may be in both.
        folder._folder.change({target: self._folder.cached[source]})
        folder._folder.settle(lambda _: True)
        self._folder.change({source: None})

    def remove_child(self, name: str) -> None:
        self._step("remove folder", name)
        node = self._folder.cached.get(name)
        if not isinstance(node, _Folder):
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
        failed = self.disk.fails("sync folder", self._path)
        self._folder.settle(self.disk.chance if failed else lambda _: True)
        if failed:
            raise OSError(errno.EIO, "injected", self._path)

    def child(self, name: str) -> FaultyDirectory:
        self.disk.check(self._life)
        node = self._folder.cached.get(name)
        if node is None:
            self._step("create folder", name)
            node = _Folder(name)
            self._folder.change({name: node})
        if not isinstance(node, _Folder):
            raise NotADirectoryError(name)
        return FaultyDirectory(self.disk, node, f"{self._path}/{name}")

    def lock(self) -> bool:
        taken, self._locked = not self._locked, True  # One handle is one process's, and there is no other.
        return taken

    def unlock(self) -> None:
        self._locked = False

    def _step(self, operation: str, name: str) -> None:
        self.disk.step(operation, name, self._life)
        if self.disk.fails(operation, name):
            raise OSError(errno.EIO, "injected", name)
