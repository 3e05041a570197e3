"""The next segment's store, allocated ahead of time in another thread, where that means to write zeros.

They are written in pieces, since flushes wait for that thread. The store has an unfinished name, as in a rotation, so
the next open removes it. A rotation that finds none ready allocates no more than the next frame needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..errors import NoRoom
from ..segment.store import STORE_SUFFIX, UNFINISHED_SUFFIX, create_fresh
from ..storage import Directory, Storage

PIECE_BYTES = 1 << 20

_NAME = f"{'9' * 20}{STORE_SUFFIX}{UNFINISHED_SUFFIX}"


class Spare:
    """The store that the next rotation takes. `prepare` may run in another thread, the rest is for the log's."""

    def __init__(self, files: Directory, size: int) -> None:
        self._files = files
        self._size = size
        self._growing: Storage | None = None
        self._store: Storage | None = None
        self.has_begun = False
        """Whether `prepare` was called, or is about to be, since the last one was taken."""

    def prepare(self, elsewhere: Callable[[Callable[[], None]], object]) -> None:
        """Allocate a piece of the store, if none is ready, and the others in further calls `elsewhere`.

        Without room for all of it there is none.
        """
        if self._store is not None:
            return
        with suppress(NoRoom, OSError):
            store = self._growing = self._growing or create_fresh(self._files, _NAME)
            try:
                store.allocate(min(store.size + PIECE_BYTES, self._size))
                store.sync()
            except BaseException:
                self._growing = None
                store.close()
                self._files.remove(_NAME)
                raise
            if store.size < self._size:
                elsewhere(lambda: self.prepare(elsewhere))
            else:
                self._store, self._growing = store, None

    def take(self, name: str) -> Storage | None:
        """Return the store, under this unfinished name, if it is ready."""
        store = self._store
        if store is not None:
            self._files.rename(_NAME, name)
            self._store = None  # Only now: the other thread may be about to prepare another one.
        self.has_begun = self._growing is not None
        return store

    def close(self) -> None:
        """Close the store, for the next open to remove. Nothing prepares one any more."""
        for store in self._growing, self._store:
            if store is not None:
                store.close()
