"""The removal of an expired segment's files, apart from the log that they were taken out of: it runs in any thread."""

from __future__ import annotations

import threading

from ..errors import ResourcesExhausted
from ..files import Sync, is_exhaustion
from ..storage import Directory
from .segments import remove_segment


class Expiry:
    """The removal of one segment, and the sync of the mark before it if the mark on disk may name that segment.

    It completes at most once; every caller gets the same outcome.
    """

    def __init__(self, files: Directory, base_index: int, to_index: int, size: int, mark_sync: Sync | None) -> None:
        self.base_index = base_index
        self.to_index = to_index
        """The new beginning of the log."""
        self.size = size
        """The bytes of the removed frames."""
        self.mark_sync = mark_sync
        self._files = files
        self._lock = threading.Lock()
        self._removed = False
        self._done = False
        self._error: OSError | None = None

    def run(self) -> None:
        """Block until the files are durably removed. Later calls return at once.

        Raises:
            OSError: the device failed; only a restart tells what is left.
            ResourcesExhausted: the folder cannot be opened to be synced now; a later call continues.
        """
        with self._lock:
            if not self._done:
                try:
                    self._remove()
                except OSError as error:
                    if is_exhaustion(error):
                        raise ResourcesExhausted(self._files.path, error.strerror or str(error)) from error
                    self._error = error
                self._done = True
        if self._error is not None:
            raise self._error

    def _remove(self) -> None:
        if self.mark_sync is not None:
            self.mark_sync.run()
        if not self._removed:
            remove_segment(self._files, self.base_index)
            self._removed = True
        # Before the next segment is removed: a power loss must not restore this one without the next.
        self._files.sync()
