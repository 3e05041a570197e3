"""A sync that another thread may run.

errseq semantics of Linux: of two fsyncs at once on one descriptor, one may take the other's error with it. So a sync
runs at most once, whoever comes first, and everybody who asks learns how it ended.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

from ..frames import Tail
from ..storage import Storage

if TYPE_CHECKING:
    from .segments import Segment


class Sync:
    """One sync of a file: `run` it in any thread, then hand it back to the log on the writer's thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._done = False
        self._error: OSError | None = OSError(errno.EINTR, "the sync was broken off")

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


class Flush(Sync):
    """A sync of the write segment, and what it covers: the frames that were written out before it began."""

    def __init__(self, storage: Storage, tail: Tail, segment: Segment, position: int, generation: int) -> None:
        super().__init__(storage)
        self.tail = tail
        self.segment = segment
        self.position = position
        self.generation = generation
