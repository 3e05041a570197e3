"""Where a backup is kept: a small port, and a folder as one implementation of it (`object_store.py` is the other).

Keys are paths of segments separated by `/`. An object is whole or absent under its key. `create` is the conditional put
by which two writers of one backup are told apart: it succeeds for one of them.
"""

import errno
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Protocol

from quire.log import NotRegularFile
from quire.log.files import HELD_OPEN, make_folder, open_file, open_regular, sync_folder

from ..errors import ClusterError

SCHEMES = ("s3://", "gs://", "az://")
FILE_SCHEME = "file://"
TEMPORARY = ".tmp"
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class StoreFailed(ClusterError):
    """The store did not do what was asked, or did not answer; it may later."""


class StoreRefused(StoreFailed):
    """The store cannot be used as it is configured; the text says what to change."""


class StoreMissing(StoreFailed):
    """The store has no object under the key."""

    def __init__(self, key: str, store: str) -> None:
        super().__init__(f"{key} is not in {store}")
        self.key = key


class StoreDamaged(StoreFailed):
    """What is under the key is larger than what was written, or no file; nothing of it was read."""

    def __init__(self, key: str, store: str, reason: str) -> None:
        super().__init__(f"{key} in {store} is damaged: {reason}")
        self.key = key


class StoreTaken(StoreFailed):
    """`create` found an object under the key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is there already")
        self.key = key


class Stored(NamedTuple):
    """An object: its size in bytes, and when it was written, in seconds since 1970 by the store's clock."""

    size: int
    modified: float


class Store(Protocol):
    """Objects by key. All methods block, have deadlines of their own, and raise StoreFailed."""

    @property
    def name(self) -> str:
        """What the store is called in messages; without credentials."""
        ...

    def get(self, key: str, most: int) -> bytes:
        """The object's bytes.

        Raises:
            StoreMissing: there is none.
            StoreDamaged: it has more than `most` bytes, or is no regular file; it is not read.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object; it replaces any under the key. Durable on return, as the store understands it."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write an object unless there is one under the key.

        Raises:
            StoreTaken: there is one, perhaps of an earlier attempt of this very call.
            StoreRefused: the store has no such operation.
        """
        ...

    def list(self, prefix: str) -> dict[str, Stored]:
        """The objects whose keys begin with the prefix, a key that ends with `/`."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are gone already do not matter."""
        ...


class FolderStore:
    """Objects as files of a folder. Each is written under a temporary name, synced, and then named."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self._root)

    def get(self, key: str, most: int) -> bytes:
        """See `Store`. Its folders may be symbolic links, the file itself may not."""
        with _failing(f"{self._root / key} cannot be read"):
            try:
                descriptor = open_regular(str(self._root / key), os.O_RDONLY | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreMissing(key, self.name) from None
            except NotRegularFile:
                raise StoreDamaged(key, self.name, "it is not a regular file") from None
            with os.fdopen(descriptor, "rb") as file:
                size = os.fstat(descriptor).st_size
                check_size(key, self.name, size, most)
                return file.read(size)

    def put(self, key: str, data: bytes) -> None:
        """See `Store`."""
        with _failing(f"{self._root / key} cannot be written"):
            temporary = self._written(key, data)
            try:
                temporary.rename(self._root / key)
            except OSError:
                temporary.unlink()
                raise
            sync_folder(temporary.parent)

    def create(self, key: str, data: bytes) -> None:
        """See `Store`. The file system must have hard links."""
        with _failing(f"{self._root / key} cannot be written"):
            temporary = self._written(key, data)
            try:
                os.link(temporary, self._root / key)
            except FileExistsError:
                raise StoreTaken(key) from None
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                reason = "its file system has no hard links, by which two writers are told apart"
                raise StoreRefused(f"{self.name} cannot hold a backup: {reason}; choose another folder") from error
            finally:
                temporary.unlink()
            sync_folder(temporary.parent)

    def _written(self, key: str, data: bytes) -> Path:
        """A synced file with these bytes beside the place of `key`."""
        folder = (self._root / key).parent
        make_folder(folder)
        temporary = folder / f"{Path(key).name}.{token_hex(8)}{TEMPORARY}"
        try:
            with open(temporary, "xb", opener=open_file) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary

    def list(self, prefix: str) -> dict[str, Stored]:
        """See `Store`."""
        with _failing(f"{self.name} cannot be listed"):
            return dict(_files(self._root / prefix, prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store`. Folders that are empty then go, too."""
        with _failing(f"files of {self.name} cannot be deleted"):
            for key in keys:
                (self._root / key).unlink(missing_ok=True)
            for folder in {(self._root / key).parent for key in keys}:
                with suppress(OSError):
                    folder.rmdir()


def check_size(key: str, store: str, size: int, most: int) -> None:
    """Raise StoreDamaged if an object has more bytes than were written."""
    if size > most:
        raise StoreDamaged(key, store, f"it has {size:,} bytes, and {most:,} at most were written")


def _files(folder: Path, prefix: str) -> Iterable[tuple[str, Stored]]:
    waiting = [(folder, prefix)]  # Not recursive: others may have made folders of any depth there.
    while waiting:
        within, its_prefix = waiting.pop()
        try:
            entries = list(os.scandir(within))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.name.startswith(HELD_OPEN):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append((within / entry.name, f"{its_prefix}{entry.name}/"))
                continue
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield its_prefix + entry.name, Stored(found.st_size, found.st_mtime)


@contextmanager
def _failing(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{what}: {(error.strerror or str(error)).lower()}") from error
