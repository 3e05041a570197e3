"""Where a log keeps its bytes: two small protocols, which files, memory and a faulty disk implement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from .errors import Unreadable


class Storage(Protocol):
    """One open file. One thread uses it; `sync` may run in another. Errors of the device are `OSError`."""

    wrote_zeros: bool
    """Whether `allocate` had to write zeros, which takes long."""

    @property
    def size(self) -> int:
        """Bytes in the file, preallocated ones included."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on; fewer only at the end of the file.

        Raises:
            Unreadable: the device does not give them.
        """
        ...

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`. It is durable when a later `sync` has returned."""
        ...

    def truncate(self, length: int) -> None:
        """Truncate the file to `length` bytes."""
        ...

    def allocate(self, length: int) -> None:
        """Make the file at least `length` bytes, with zeros for those not written, and reserve the space for them.

        Raises:
            DiskFull, ResourcesExhausted: there is no room, or memory; the file is as it was.
        """
        ...

    def sync(self) -> None:
        """Block until everything written before this call survives a power loss (fdatasync).

        Raises:
            FileUnlinked: another program removed the file: it is lost when this process ends.
        """
        ...

    def close(self) -> None:
        """Close the handle. Nothing is synced, and an error says nothing about what was."""
        ...


def read_ahead(storage: Storage, position: int, length: int, least: int) -> bytes:
    """`read_at`, but fewer bytes before one that cannot be read.

    Raises:
        Unreadable: it is among the first `least`.
    """
    try:
        return storage.read_at(position, length)
    except Unreadable as error:
        if len(error.before) < least:
            raise
        return error.before


class Directory(Protocol):
    """A folder of files and folders. Creations, renames and removals are durable when `sync` has returned."""

    @property
    def path(self) -> str:
        """Its path, for messages."""
        ...

    def list(self) -> list[str]:
        """Return the names in it, in any order, without those of files that were removed and are held open."""
        ...

    def create(self, name: str) -> Storage:
        """Return a new, empty file.

        Raises:
            FileExistsError: the name is taken.
            DiskFull, ResourcesExhausted: there is no room, or no descriptor.
        """
        ...

    def open(self, name: str) -> Storage:
        """Return an existing file.

        Raises:
            FileNotFoundError: it does not exist.
            ResourcesExhausted: the process can open no more.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename the file or folder `source` to `target`; a file replaces a file of that name."""
        ...

    def move(self, source: str, folder: Directory, target: str) -> None:
        """Move `source` to another folder of the same disk, as `target`; durable when both folders are synced.

        A folder that the file system does not rename (EXDEV) is copied, and then removed.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file; open handles can still read it.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def sync(self) -> None:
        """Block until all changes of names before this call survive a power loss."""
        ...

    def child(self, name: str) -> Directory:
        """Return a folder in this one, created if it does not exist (durable after a `sync` of this one)."""
        ...

    def existing(self, name: str) -> Directory:
        """Return a folder in this one, to read its files; nothing is created.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def remove_child(self, name: str) -> None:
        """Remove an empty folder in this one; one with files that other programs hold open stays.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def lock(self) -> bool:
        """Lock the folder for this process; return False if this object had locked it already.

        Raises:
            LogLocked: another process has locked it.
        """
        ...

    def unlock(self) -> None:
        """Unlock the folder, if this object locked it."""
        ...

    def keep(self) -> None:
        """Keep the folder open until `release`, so that `misplaced` can distinguish it from another at its path."""
        ...

    def release(self) -> None:
        """Undo `keep`."""
        ...

    def misplaced(self, names: Iterable[str] = ()) -> Sequence[str]:
        """What is wrong with the folder's location, one sentence each; empty if nothing is, or if it is not kept open.

        It checks whether the path still leads to the folder; whether the lock, and each open file that was synced, is
        the one with that name; and whether all of `names` exist. A change of this program in another thread may look
        like a fault, so one check proves nothing.
        """
        ...
