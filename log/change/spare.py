"""The next segment's store, allocated ahead of time in another thread, where that means to write zeros.

It has an unfinished name, as in a rotation, so the next open removes it. A rotation that finds none allocates no more
than the next frame needs.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import NoRoom
from ..segment.store import STORE_SUFFIX, UNFINISHED_SUFFIX, create_fresh
from ..storage import Directory, Storage

_NAME = f"{'9' * 20}{STORE_SUFFIX}{UNFINISHED_SUFFIX}"


class Spare:
    """The store that the next rotation takes. `prepare` may run in another thread, the rest is for the log's."""

    def __init__(self, files: Directory, size: int) -> None:
        self._files = files
        self._size = size
        self._store: Storage | None = None
        self.has_begun = False
        """Whether `prepare` was called, or is about to be, since the last one was taken."""

    def prepare(self) -> None:
        """Allocate the store, if there is none. Without room for all of it there is none either."""
        if self._store is not None:
            return
        with suppress(NoRoom, OSError):
            store = create_fresh(self._files, _NAME)
            try:
                store.allocate(self._size)
                store.sync()
            except BaseException:
                store.close()
                self._files.remove(_NAME)
                raise
            self._store = store

    def take(self, name: str) -> Storage | None:
        """Return the store, under this unfinished name, if it is ready."""
        store = self._store
        if store is not None:
            self._files.rename(_NAME, name)
            self._store = None  # Only now: the other thread may be about to prepare another one.
        self.has_begun = False
        return store

    def close(self) -> None:
        """Close the store, for the next open to remove. Nothing prepares one any more."""
        if self._store is not None:
            self._store.close()
