"""Where a log keeps its bytes: two small protocols, which files, memory and a faulty disk implement, and a sync."""

from __future__ import annotations

import errno
import threading
from typing import Protocol


class Storage(Protocol):
    """One open file. Errors of the device are `OSError`; one thread uses it, `sync` may run in another."""

    @property
    def size(self) -> int:
        """Bytes, preallocated ones included."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Return the bytes at `position`, fewer only where the file ends."""
        ...

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`; not durable before `sync` returns."""
        ...

    def truncate(self, length: int) -> None:
        """Cut to `length`."""
        ...

    def allocate(self, length: int) -> None:
        """Make the file at least `length` bytes, zeros where nothing was written, and keep the space for it.

        Raises:
            DiskFull: there is no room; what was written before is untouched.
        """
        ...

    def sync(self) -> None:
        """Return when everything written before this call survives a power loss (fdatasync)."""
        ...

    def close(self) -> None:
        """Give the handle back. Nothing is synced."""
        ...


class Directory(Protocol):
    """A folder of files, and of folders. Creations, renames and removals are durable once `sync` returned."""

    @property
    def path(self) -> str:
        """A name for messages."""
        ...

    def list(self) -> list[str]:
        """Return the names in it, in no order."""
        ...

    def create(self, name: str) -> Storage:
        """Return a new, empty file.

        Raises:
            FileExistsError: there is one already.
            DiskFull: there is no room for it.
        """
        ...

    def open(self, name: str) -> Storage:
        """Return an existing file.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Give the file or folder `source` the name `target`; a file takes the place of the file that had it."""
        ...

    def move(self, source: str, folder: Directory, target: str) -> None:
        """Let `source` stand as `target` in another folder of the same disk; durable once both folders are synced."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; open handles still read it.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def sync(self) -> None:
        """Return when all changes of names before this call survive a power loss."""
        ...

    def child(self, name: str) -> Directory:
        """Return a folder in this one, made if there is none (durable after `sync` of this one)."""
        ...

    def remove_child(self, name: str) -> None:
        """Remove a folder in this one that is empty.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def lock(self) -> bool:
        """Take the folder for this process; return whether this call took it (False: this object held it already).

        Raises:
            LogLocked: another holder has it.
        """
        ...

    def unlock(self) -> None:
        """Give the folder free; nothing if it was not held."""
        ...


class Sync:
    """One sync of a file: `run` it in any thread, then hand it back to its owner on the owner's thread.

    It runs at most once, and every caller learns how it ended: of two fsyncs at once on one descriptor, Linux may
    report an error to one of them only (errseq).
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._done = False
        self._error: OSError | None = OSError(errno.EINTR, "the sync was interrupted")

    def run(self) -> None:
        """Block until what was written before this object was made is durable. Later calls return at once.

        Raises:
            OSError: the device failed; nothing is proven, and a second attempt would prove nothing either.
        """
        with self._lock:
            if not self._done:
                self._done = True
                try:
                    self._storage.sync()
                    self._error = None
                except OSError as error:
                    self._error = error
        if self._error is not None:
            raise self._error
