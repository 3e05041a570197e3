"""Checks that the files of an open log are still at their paths.

If a data directory is removed, moved, or hidden by a mount, the process keeps writing and syncing files that nobody can
open again, and everything it acknowledges is lost when it ends. A sync notices that its own file no longer has a name
(`FileUnlinked`). All other cases are noticed here, by one check per second, whether or not anything is written:

- the path of the data directory, and of `log/`, leads to the folder that is open
- `lock`, and each open file that was synced, is the file with that name
- each segment's store exists, by name: it may be another inode, after an overlay's copy-up

Two checks in a row must report the same file: this program may be renaming or removing it during one of them, and
network file systems cache names. Then the log accepts no more writes. The process should keep running anyway: its
descriptors may be the last copy, and a restart would use whatever is at the path now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .errors import LogReadOnly
from .segment.segments import Segments
from .segment.store import store_name
from .storage import Directory

AGAIN_S = 0.05
"""The interval between the two checks after a failure."""
NAMED = 8
"""How many of the missing or moved files the sentence names."""


class FileWatch:
    """Checks the files of one log, from its opening until `close`."""

    def __init__(self, directory: Directory, files: Directory, segments: Segments, fail: Callable[[str], None]) -> None:
        """`directory` and `files`, its folder `log/`, are kept open already; `fail` makes the log read-only."""
        self._directory = directory
        self._files = files
        self._segments = segments
        self._fail = fail
        self._seen: list[str] = []
        self._accused: frozenset[str] = frozenset()
        self._closed = False
        self.lost = ""
        """Why the process should keep running although its log accepts no writes, in one sentence; empty if not."""

    def look(self) -> None:
        """Check once, in any thread; then call `judge`. Blocks."""
        self._seen = self._misplaced()

    def judge(self) -> None:
        """Compare the last two checks, in the log's own thread.

        Raises:
            LogReadOnly: both report the same file.
        """
        seen, accused = self._seen, self._accused
        self._accused = frozenset(seen)
        if any(sentence in accused for sentence in seen) and not self._closed:
            self.lost = _sentence(seen)
            self._fail(self.lost)
            raise LogReadOnly(self.lost)

    def judge_failure(self) -> str:
        """After an error: check twice more and return `lost`; the log then accepts no more writes. Blocks."""
        if not self.lost and (first := self._misplaced()):
            time.sleep(AGAIN_S)
            if seen := [sentence for sentence in self._misplaced() if sentence in first]:
                self.lost = _sentence(seen)
                self._fail(self.lost)
        return self.lost

    def _misplaced(self) -> list[str]:
        if self._closed:
            return []
        names = [store_name(base) for base in list(self._segments.bases)[:-1]]  # The last one is open.
        return [*self._directory.misplaced(), *self._files.misplaced(names)]

    def close(self) -> None:
        """Stop checking."""
        self._closed = True
        self._directory.release()
        self._files.release()


def _sentence(misplaced: list[str]) -> str:
    more = f"; and {len(misplaced) - NAMED} more" if len(misplaced) > NAMED else ""
    process = os.getpid()
    return (
        f"its files are no longer in place: {'; '.join(misplaced[:NAMED])}{more}. Nothing more is acknowledged. Do "
        f"not stop process {process} yet: its descriptors may be the last copy. `ls -l /proc/{process}/fd` lists them; "
        f"copy each with `cp /proc/{process}/fd/N FOLDER/NAME`, or put the folder back; then restart it"
    )
