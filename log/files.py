"""`Storage` and `Directory` on a file system."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .errors import DiskFull, LogLocked, ResourcesExhausted
from .storage import Directory

LOCK_NAME = "lock"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_exhaustion(error: OSError) -> bool:
    """Return whether the process or the machine lacks a descriptor or memory: nothing is wrong with the device."""
    return error.errno in _EXHAUSTED


def _translated(error: OSError, path: str, size: int = 0) -> Exception:
    """The error of an operation that changes nothing if it fails."""
    if is_exhaustion(error):
        return ResourcesExhausted(path, error.strerror or str(error))
    return DiskFull(path, size) if error.errno in _FULL else error


class FileStorage:
    """An open file of a file system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, flags: int, access: int = os.O_RDWR) -> None:
        self._path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, flags | access | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise _translated(error, path) from error

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        # The kernel returns at most 2 GiB at once, and less if a signal interrupts it.
        pieces = [data]
        got = len(data)
        while got < length and (data := os.pread(self._descriptor, length - got, position + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], position + written)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def allocate(self, length: int) -> None:
        if not length:
            return  # POSIX allocates nothing of a file of no length.
        try:
            os.posix_fallocate(self._descriptor, 0, length)
        except OSError as error:
            raise _translated(error, self._path, length) from error

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FileDirectory:
    """A folder of a file system, created if it does not exist."""

    __slots__ = ("_lock_descriptor", "_path")

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)
        self._lock_descriptor = -1
        missing = [folder for folder in (Path(self._path), *Path(self._path).parents) if not folder.exists()]
        os.makedirs(self._path, mode=0o750, exist_ok=True)
        # The names of the new folders must survive a power loss, as the files in them do.
        for folder in missing:
            _sync_folder(folder.parent)

    @property
    def path(self) -> str:
        return self._path

    def list(self) -> list[str]:
        return os.listdir(self._path)

    def create(self, name: str) -> FileStorage:
        return FileStorage(f"{self._path}/{name}", os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> FileStorage:
        return FileStorage(f"{self._path}/{name}", 0)

    def rename(self, source: str, target: str) -> None:
        os.replace(f"{self._path}/{source}", f"{self._path}/{target}")

    def move(self, source: str, folder: Directory, target: str) -> None:
        os.rename(f"{self._path}/{source}", f"{folder.path}/{target}")

    def remove(self, name: str) -> None:
        os.unlink(f"{self._path}/{name}")

    def sync(self) -> None:
        _sync_folder(Path(self._path))

    def child(self, name: str) -> FileDirectory:
        return FileDirectory(f"{self._path}/{name}")

    def existing(self, name: str) -> FileDirectory:
        return ReadOnlyDirectory(f"{self._path}/{name}")

    def remove_child(self, name: str) -> None:
        os.rmdir(f"{self._path}/{name}")

    def lock(self) -> bool:
        if self._lock_descriptor >= 0:
            return False
        descriptor = os.open(f"{self._path}/{LOCK_NAME}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise LogLocked(self._path) from error
        self._lock_descriptor = descriptor
        return True

    def unlock(self) -> None:
        # The file stays: if it were removed, two processes could each lock a file of this name.
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


class ReadOnlyDirectory(FileDirectory):
    """An existing folder whose files are opened read-only: for a log that another process writes."""

    __slots__ = ()

    def __init__(self, path: str | Path) -> None:
        """Raises FileNotFoundError or NotADirectoryError if there is no such folder."""
        self._path = os.fspath(path)
        self._lock_descriptor = -1
        os.scandir(self._path).close()

    def open(self, name: str) -> FileStorage:
        return FileStorage(f"{self._path}/{name}", 0, os.O_RDONLY)

    def child(self, name: str) -> ReadOnlyDirectory:
        return ReadOnlyDirectory(f"{self._path}/{name}")

    def create(self, name: str) -> FileStorage:
        raise PermissionError(errno.EROFS, "opened read-only", f"{self._path}/{name}")

    def rename(self, source: str, target: str) -> None:
        raise PermissionError(errno.EROFS, "opened read-only", f"{self._path}/{source}")

    def remove(self, name: str) -> None:
        raise PermissionError(errno.EROFS, "opened read-only", f"{self._path}/{name}")

    def lock(self) -> bool:
        raise PermissionError(errno.EROFS, "opened read-only", self._path)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
