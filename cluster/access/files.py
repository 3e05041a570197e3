"""Files of keys, certificates and tokens: read within a bound, and replaced as a whole.

A command writes them while nodes read them. A reader finds the old content or the new one, never a part of it, and so
does whoever looks after a crash.
"""

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


@dataclass(frozen=True, slots=True)
class NewFile:
    """What a file is to hold. An existing one keeps its mode and its owner; a new one gets `mode`."""

    path: Path
    data: bytes = field(repr=False)
    mode: int = PRIVATE


def read_bounded(path: Path, limit: int) -> tuple[bytes, int]:
    """The content of a regular file and its mode. The content has at most `limit` bytes and one: the caller refuses it.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    # A pipe without a writer would hold up the open, and with it the node that reads its files anew.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(None, "it is not a regular file")
        return file.read(limit + 1), mode


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold a folder's lock, so that no other command of quire changes files in it meanwhile.

    Raises:
        OSError: there is no such folder, or another command holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another command is changing files in that folder") from None
        yield
    finally:
        os.close(descriptor)


def replace_files(*files: NewFile) -> None:
    """Write all files under temporary names, flush them, then rename them in this order. Durable on return.

    The caller holds the lock of their folders.

    Raises:
        OSError: a file cannot be written. If it is not a renaming that failed, none was replaced.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for file in files:
            target = file.path.resolve()  # A link stays, and what it points to is replaced.
            temporary = target.with_name(f".{target.name}.new")
            temporary.unlink(missing_ok=True)  # That of a command that was killed.
            written.append((temporary, target))
            _write(temporary, target, file)
        for temporary, target in written:
            temporary.rename(target)
    except BaseException:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
        raise
    for folder in {target.parent for _, target in written}:
        _flush_folder(folder)


def _write(temporary: Path, target: Path, file: NewFile) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    with os.fdopen(descriptor, "wb") as opened:
        mode = file.mode
        if target.exists():
            old = target.stat()
            mode = stat.S_IMODE(old.st_mode)
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.fstat(descriptor).st_gid):
                os.fchown(descriptor, old.st_uid, old.st_gid)  # Else the node could not read the file any more.
        os.fchmod(descriptor, mode)
        opened.write(file.data)
        opened.flush()
        os.fsync(descriptor)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
