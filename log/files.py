"""`Storage` and `Directory` on a file system, and a sync of any storage, which another thread may run.

A file that was removed, or whose folder was moved, can still be written and synced through its descriptor, but the data
is lost when the process ends. So a sync fails if its file no longer has a name, unless this program removed it, and
`FileDirectory.misplaced` compares names and descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import DiskFull, FileFailed, FileUnlinked, LogLocked, NotRegularFile, ResourcesExhausted, Unreadable
from .storage import Directory, Storage

LOCK_NAME = "lock"
HELD_OPEN = (".nfs", ".fuse_hidden")
"""How names begin under which NFS and FUSE keep a file that was removed while another program holds it open."""
FOLDER_MODE, FILE_MODE = 0o750, 0o640
"""Of the folders and files that quire creates for records: only the owner writes, and nobody but the group reads."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENODEV, errno.ENXIO})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_ROTTEN = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})


# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, of an int in spite of their size; FS_NOCOW_FL.
_GET_FLAGS, _SET_FLAGS, _NOCOW = 0x80086601, 0x40086602, 0x00800000
# FS_IOC_RESVSP: fallocate, which Python has only with the C library's substitute for it.
_RESERVE, _FIRST_BYTE = 0x40305828, struct.pack("hhqqiI16x", 0, 0, 0, 1, 0, 0)
_ZEROS = bytes(1 << 20)


def is_exhaustion(error: OSError) -> bool:
    """Return whether the error is a lack of descriptors or memory, and not of the device."""
    return error.errno in _EXHAUSTED


def translated(error: OSError, operation: str, path: str, size: int = 0) -> Exception:
    """Return the error of an operation that changes nothing if it fails, or of which nothing was promised yet."""
    if is_exhaustion(error):
        return ResourcesExhausted(path, error.strerror or str(error))
    return DiskFull(path, size) if error.errno in FULL else _named(error, operation, path)


@contextmanager
def refusing_full(path: str) -> Generator[None]:
    """Translate what the block raises on a full disk or for lack of memory: for writes that promise nothing yet.

    Raises:
        DiskFull, ResourcesExhausted: instead of the OSError.
    """
    try:
        yield
    except OSError as error:
        raise translated(error, "write", path) from error


def _named(error: OSError, operation: str, path: str) -> OSError:
    """The error with operation and file; one that Python has a class for is named by the path, and caught by that."""
    return FileFailed(operation, path, error) if type(error) is OSError else error


@contextmanager
def naming(operation: str, path: str | Path) -> Generator[None]:
    """Let an error of the operating system in the block name the operation and the path."""
    try:
        yield
    except OSError as error:
        raise _named(error, operation, os.fspath(path)) from error


def open_file(path: str | Path, flags: int) -> int:
    """Open a file, and return its descriptor; an opener for `open`.

    If this creates it, its mode is FILE_MODE whatever the umask. A file that is there keeps its own.
    """
    flags |= os.O_CLOEXEC
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags, FILE_MODE)
    with suppress(OSError):  # Some file systems have no modes. It is open to no more than FILE_MODE already.
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def make_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, each durable in the one above.

    Their mode is FOLDER_MODE whatever the umask. A folder that is there keeps its own.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    try:
        with naming("mkdir", folder):
            folder.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return  # Another process has just made it.
    with suppress(OSError):  # As in `open_file`.
        folder.chmod(FOLDER_MODE | folder.stat().st_mode & stat.S_ISGID)
    sync_folder(folder.parent)


def open_regular(path: str, access: int = os.O_RDONLY) -> int:
    """Return the descriptor of a regular file that exists, without waiting, as one would for a named pipe's writer.

    Raises:
        NotRegularFile: it is something else.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NotRegularFile(path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegularFile(path)


def overwrite_in_place(folder: str) -> None:
    """Let what is created in and below an empty folder be overwritten in place, if its file system has a flag for that.

    btrfs writes elsewhere without it, and then a full disk or a quota refuses to overwrite what is there.
    """
    with opened_folder(folder) as descriptor:
        if not os.listdir(descriptor):
            with suppress(OSError):
                fcntl.ioctl(descriptor, _SET_FLAGS, (_flags(descriptor) | _NOCOW).to_bytes(8, "little"))


def is_overwritten_in_place(folder: str | Path) -> bool:
    """Whether a folder has the flag that `overwrite_in_place` sets. Raises OSError: its file system has none."""
    with opened_folder(folder) as descriptor:
        return bool(_flags(descriptor) & _NOCOW)


def _flags(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))[:4], "little")


def _allocate(descriptor: int, length: int) -> bool:
    """Make a file at least `length` bytes, and reserve room for them; return whether the file system has a call for it.

    Without one, zeros are written. The C library's substitute writes into the blocks of the file, too, at any time.

    Raises:
        OSError: there is no room; the file is as it was. (ext4 would keep the room that it got, and the size.)
    """
    size = os.fstat(descriptor).st_size
    has_call = _has_allocation(descriptor)
    # tmpfs begins anew after a signal: one that comes each few milliseconds would keep it from ever ending.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    try:
        if has_call:
            os.posix_fallocate(descriptor, 0, length)
        else:
            _write_zeros(descriptor, size, length)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return has_call


def _has_allocation(descriptor: int) -> bool:
    try:
        fcntl.ioctl(descriptor, _RESERVE, _FIRST_BYTE)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def _write_zeros(descriptor: int, position: int, end: int) -> None:
    while position < end:
        position += os.pwrite(descriptor, memoryview(_ZEROS)[: end - position], position)


def _close(descriptor: int) -> None:
    """Close what is synced as far as anyone relies on it: a file server may report here what no sync has asked for."""
    with suppress(OSError):  # It is closed in any case.
        os.close(descriptor)


class FileStorage:
    """An open file of a file system."""

    __slots__ = ("_descriptor", "_is_synced", "_path", "_registry", "wrote_zeros")

    def __init__(
        self, path: str, flags: int, access: int = os.O_RDWR, registry: set[FileStorage] | None = None
    ) -> None:
        """`registry` is that of its folder: the file is in it until it is closed or this program removes its name."""
        self._path = path
        self._descriptor = -1
        self._is_synced = False  # Whether it was ever synced: then this program relies on it.
        self._registry = registry
        self.wrote_zeros = False
        try:
            self._descriptor = open_file(path, flags | access) if flags else open_regular(path, access)
        except OSError as error:
            raise translated(error, "open", path) from error
        if registry is not None:
            registry.add(self)

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, length: int) -> bytes:
        pieces: list[bytes] = []
        got = 0
        try:
            data = os.pread(self._descriptor, length, position)
            # The kernel returns at most 2 GiB at once, less if a signal interrupts it, and what precedes an error.
            while data and got + len(data) < length:
                pieces.append(data)
                got += len(data)
                data = os.pread(self._descriptor, length - got, position + got)
        except OSError as error:
            if error.errno in _ROTTEN:
                raise Unreadable(self._path, position + got, b"".join(pieces), error) from error
            raise _named(error, "read", self._path) from error
        return b"".join([*pieces, data]) if pieces else data

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        try:
            written = os.pwrite(self._descriptor, data, position)
            while written < len(data):
                written += os.pwrite(self._descriptor, memoryview(data)[written:], position + written)
        except OSError as error:
            raise _named(error, "write", self._path) from error

    def truncate(self, length: int) -> None:
        with naming("truncate", self._path):
            os.ftruncate(self._descriptor, length)

    def allocate(self, length: int) -> None:
        if not length:
            return  # POSIX allocates nothing of a file of no length.
        try:
            self.wrote_zeros = not _allocate(self._descriptor, length)
        except OSError as error:
            raise translated(error, "fallocate", self._path, length) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            remedy = "make room" if error.errno in FULL else "check the device, or the file server"
            reason = f"{error.strerror}; what was written may be lost: {remedy}, then start again"
            raise _named(OSError(error.errno, reason, self._path), "fdatasync", self._path) from error
        self._is_synced = True
        own = os.fstat(self._descriptor)
        if not own.st_nlink and self._registry is not None and not self._is_named(own):
            raise FileUnlinked(self._path, self._descriptor)

    def _is_named(self, own: os.stat_result) -> bool:
        """Whether its path certainly leads to it. (Some file systems do not count links.)"""
        try:
            named = os.stat(self._path)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def close(self) -> None:
        self._forget()
        if self._descriptor >= 0:
            _close(self._descriptor)
            self._descriptor = -1

    def renamed(self, source: str, target: str) -> None:
        """Note that this program renamed the file at `source`."""
        if self._path == source:
            self._path = target

    def removed(self, path: str) -> None:
        """Note that this program removed the file at `path`: this one is then expected to have no name."""
        if self._path == path:
            self._forget()

    def misplaced(self, folder: int) -> str | None:
        """What is wrong with its name in the folder with the descriptor `folder`; None if nothing is.

        Only a file that was synced is checked: one that is only read may be another inode after an overlay's copy-up.
        """
        if not self._is_held or not self._is_synced:
            return None
        descriptor = self._descriptor
        wrong = _wrong(descriptor, os.path.basename(self._path), folder)
        if not wrong or not self._is_held:  # It was given up meanwhile, and its descriptor may be another file's.
            return None
        return f"{self._path} {wrong}, {_open_as(descriptor)}"

    @property
    def _is_held(self) -> bool:
        """Whether it is open, and this program has not given up its name. Another thread may end that at any time."""
        return self._registry is not None

    def _forget(self) -> None:
        if self._registry is not None:
            self._registry.discard(self)
            self._registry = None


def _wrong(descriptor: int, path: str, folder: int | None = None) -> str:
    """What happened to the path of an open file or folder; empty if it still leads there, or if that is unknown.

    Only files that are certainly gone count: the next sync reports a failed device or an unreachable file server.
    """
    try:
        own, named = os.fstat(descriptor), os.stat(path, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return "was removed"
    except OSError:  # Nothing is known.
        return ""
    return "" if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) else "was replaced by another file"


def _open_as(descriptor: int) -> str:
    return f"open as /proc/{os.getpid()}/fd/{descriptor}"


def _copy(source: str, target: str) -> None:
    with open(open_regular(source), "rb") as file, open(target, "wb", opener=open_file) as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fdatasync(copy.fileno())


class FileDirectory:
    """A folder of a file system, created if it does not exist."""

    __slots__ = ("_descriptor", "_files", "_lock_descriptor", "_path")

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)
        self._lock_descriptor = self._descriptor = -1
        self._files: set[FileStorage] = set()
        make_folder(Path(self._path))

    @property
    def path(self) -> str:
        return self._path

    def list(self) -> list[str]:
        with naming("list", self._path):
            return [name for name in os.listdir(self._path) if not name.startswith(HELD_OPEN)]

    def create(self, name: str) -> FileStorage:
        return FileStorage(f"{self._path}/{name}", os.O_CREAT | os.O_EXCL, registry=self._files)

    def open(self, name: str) -> FileStorage:
        return FileStorage(f"{self._path}/{name}", 0, registry=self._files)

    def rename(self, source: str, target: str) -> None:
        old, new = f"{self._path}/{source}", f"{self._path}/{target}"
        for file in list(self._files):
            file.removed(new)  # Before it loses its name: a sync in another thread must not report it as lost.
        with naming("rename", old):
            os.replace(old, new)
        for file in list(self._files):
            file.renamed(old, new)

    def move(self, source: str, folder: Directory, target: str) -> None:
        path = f"{self._path}/{source}"
        for file in list(self._files):
            file.removed(path)
        with naming("rename", path):
            try:
                os.replace(path, f"{folder.path}/{target}")
            except OSError as error:
                if error.errno != errno.EXDEV or not os.path.isdir(path):
                    raise
                self._copy(source, folder, target)

    def _copy(self, source: str, folder: Directory, target: str) -> None:
        """Copy a folder of an overlay's lower layer, which it does not rename, and then remove it.

        A crash leaves the copy under an unfinished name, or both. The last names go first, each durably: without its
        manifest, a snapshot does not count.
        """
        old, unfinished = self.child(source), folder.child(f"{target}.copy.new")
        names = sorted(old.list())
        for name in names:
            _copy(f"{old.path}/{name}", f"{unfinished.path}/{name}")
        unfinished.sync()
        folder.rename(f"{target}.copy.new", target)
        folder.sync()
        for name in reversed(names):
            old.remove(name)
            old.sync()
        self.remove_child(source)

    def remove(self, name: str) -> None:
        path = f"{self._path}/{name}"
        for file in list(self._files):
            file.removed(path)
        with naming("remove", path):
            os.unlink(path)

    def sync(self) -> None:
        sync_folder(self._path)

    def child(self, name: str) -> FileDirectory:
        os.stat(self._path)  # If this folder was removed by others, it is not created again.
        return FileDirectory(f"{self._path}/{name}")

    def existing(self, name: str) -> FileDirectory:
        return ReadOnlyDirectory(f"{self._path}/{name}")

    def remove_child(self, name: str) -> None:
        path = f"{self._path}/{name}"
        try:
            os.rmdir(path)
        except OSError as error:
            # Files that another program holds open go when it closes them, and the folder at a later attempt.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or ReadOnlyDirectory(path).list():
                raise _named(error, "remove", path) from error

    def lock(self) -> bool:
        if self._lock_descriptor >= 0:
            return False
        overwrite_in_place(self._path)
        descriptor = open_file(f"{self._path}/{LOCK_NAME}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise LogLocked(self._path) from error
        except OSError as error:  # A file system without locks, or a server that has failed.
            os.close(descriptor)
            raise _named(error, "flock", f"{self._path}/{LOCK_NAME}") from error
        self._lock_descriptor = descriptor
        return True

    def unlock(self) -> None:
        # The file stays: if it were removed, two processes could each lock a file of this name.
        if self._lock_descriptor >= 0:
            _close(self._lock_descriptor)
            self._lock_descriptor = -1

    def keep(self) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _close(descriptor)

    def misplaced(self, names: Iterable[str] = ()) -> Sequence[str]:
        if self._descriptor < 0:
            return []
        found = [self._misplaced_folder(), *(file.misplaced(self._descriptor) for file in list(self._files))]
        if self._lock_descriptor >= 0 and (wrong := _wrong(self._lock_descriptor, LOCK_NAME, self._descriptor)):
            found.append(f"{self._path}/{LOCK_NAME} {wrong}, {_open_as(self._lock_descriptor)}")
        found += self._missing(frozenset(names))
        return [sentence for sentence in found if sentence]

    def _missing(self, names: frozenset[str]) -> Sequence[str]:
        """Which of these names are missing in the folder that is kept open; empty if that is unknown."""
        try:
            # Not by the kept descriptor: two listings at once would share its position.
            with opened_folder(".", self._descriptor) as listing:
                held = frozenset(os.listdir(listing) if names else ())
        except OSError:  # There is no descriptor for it, or the device fails: the next sync tells.
            return []
        return [f"{self._path}/{name} was removed" for name in sorted(names - held)]

    def _misplaced_folder(self) -> str | None:
        """What is wrong with the path of the folder that is kept open."""
        if not _wrong(self._descriptor, self._path):
            return None
        try:
            now = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:  # /proc is not mounted, or shows no descriptors.
            return f"{self._path} is no longer the folder that was opened"
        if now.endswith(" (deleted)"):
            return f"{self._path} was removed"
        if now == os.path.realpath(self._path):  # The folder has its name, and another is seen in its place.
            return f"{self._path} is hidden: a file system was mounted over it, or over a folder above it"
        return f"{self._path} is now {now}"


class ReadOnlyDirectory(FileDirectory):
    """An existing folder whose files are opened read-only: for a log that another process writes."""

    __slots__ = ()

    def __init__(self, path: str | Path) -> None:
        """Raises FileNotFoundError or NotADirectoryError if there is no such folder."""
        self._path = os.fspath(path)
        self._lock_descriptor = self._descriptor = -1
        self._files = set()
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


@contextmanager
def opened_folder(path: str | Path, beside: int | None = None) -> Generator[int]:
    """The descriptor of a folder, for the block. A relative path begins at the folder with the descriptor `beside`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=beside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable."""
    with naming("fsync", path), opened_folder(path) as descriptor:
        os.fsync(descriptor)


class Sync:
    """One sync of a file: `run` it in any thread, then return it to its owner on the owner's thread.

    It runs at most once, and every caller gets its outcome: of two concurrent fsyncs on one descriptor, Linux may
    report an error to only one (errseq).
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
