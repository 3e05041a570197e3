"""A bounded number of something at a time."""

from collections.abc import Generator
from contextlib import contextmanager

from ...errors import Overloaded

STREAMS_LIMIT = 1024  # Of /commands/stream on one node, carried ones included: each may hold a window of memory.


class Places:
    """So many may be taken at once. One event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    @contextmanager
    def place(self) -> Generator[None, None, None]:
        """A place, as long as the block runs.

        Raises:
            Overloaded: all of them are taken.
        """
        if self._taken >= self._limit:
            raise Overloaded()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
