"""`Storage` and `Directory` in memory, for tests and simulations. They lose nothing while the objects live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import LogLocked
from .storage import Directory


class MemoryStorage:
    """A file in memory. Allocated space that was not written takes no memory."""

    __slots__ = ("_data", "_size", "wrote_zeros")

    def __init__(self) -> None:
        self.wrote_zeros = False
        self._data = bytearray()
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        end = min(position + length, self._size)
        if position >= end:
            return b""
        data = bytes(memoryview(self._data)[position:end])
        return data if len(data) == end - position else data + bytes(end - position - len(data))

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        if position > len(self._data):
            self._data += bytes(position - len(self._data))
        self._data[position : position + len(data)] = data
        self._size = max(self._size, len(self._data))

    def truncate(self, length: int) -> None:
        del self._data[length:]
        self._size = length

    def allocate(self, length: int) -> None:
        self._size = max(self._size, length)

    def sync(self) -> None:
        """Do nothing: every write is as durable as the object."""

    def close(self) -> None:
        """Do nothing: there is no handle."""


class MemoryDirectory:
    """A folder in memory."""

    def __init__(self, path: str = "memory") -> None:
        self._path = path
        self._files: dict[str, MemoryStorage] = {}
        self._children: dict[str, MemoryDirectory] = {}
        self._locked = False

    @property
    def path(self) -> str:
        return self._path

    def list(self) -> list[str]:
        return [*self._files, *self._children]

    def create(self, name: str) -> MemoryStorage:
        if name in self._files:
            raise FileExistsError(f"{self._path}/{name}")
        storage = self._files[name] = MemoryStorage()
        return storage

    def open(self, name: str) -> MemoryStorage:
        if name not in self._files:
            raise FileNotFoundError(f"{self._path}/{name}")
        return self._files[name]

    def rename(self, source: str, target: str) -> None:
        if source in self._files:
            self._files[target] = self._files.pop(source)
        elif source in self._children:
            self._children[target] = self._children.pop(source)
        else:
            raise FileNotFoundError(f"{self._path}/{source}")

    def move(self, source: str, folder: Directory, target: str) -> None:
        if not isinstance(folder, MemoryDirectory):
            raise TypeError(f"{folder.path} is on another disk")
        folder.take(target, self._files.pop(source) if source in self._files else self._children.pop(source))

    def take(self, name: str, node: MemoryStorage | MemoryDirectory) -> None:
        """Take a file or folder of another folder into this one."""
        if isinstance(node, MemoryStorage):
            self._files[name] = node
        else:
            self._children[name] = node

    def remove(self, name: str) -> None:
        if self._files.pop(name, None) is None:
            raise FileNotFoundError(f"{self._path}/{name}")

    def sync(self) -> None:
        """Do nothing: every write is as durable as the object."""

    def child(self, name: str) -> MemoryDirectory:
        if name not in self._children:
            self._children[name] = MemoryDirectory(f"{self._path}/{name}")
        return self._children[name]

    def existing(self, name: str) -> MemoryDirectory:
        if name not in self._children:
            raise FileNotFoundError(f"{self._path}/{name}")
        return self._children[name]

    def remove_child(self, name: str) -> None:
        if self._children.pop(name, None) is None:
            raise FileNotFoundError(f"{self._path}/{name}")

    def lock(self) -> bool:
        if self._locked:
            raise LogLocked(self._path)
        self._locked = True
        return True

    def unlock(self) -> None:
        self._locked = False

    def keep(self) -> None:
        """Do nothing: nobody else has this folder."""

    def release(self) -> None:
        """Do nothing."""

    def misplaced(self, names: Iterable[str] = ()) -> Sequence[str]:
        return [f"{self._path}/{name} was removed" for name in names if name not in self._files]
