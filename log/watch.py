"""Whether the files of an open log are still where their names say.

Whoever removes a data directory, moves it, or mounts another one over it, leaves a process that writes and syncs files
that nobody can open again: what it acknowledges is lost with it. A sync notices that its own file has no name any more
(`FileUnlinked`). All else is noticed here, by one look a second, whether or not anything is written:

- the path of the data directory, and of `log/`, leads to the folder that is open
- `lock`, and each open file that was synced, is what its name names
- each segment's store is there, by name: it may be another inode, after a copy-up of an overlay

Two looks in a row have to accuse the same file: a rename or a removal of this program may be under way during one of
them, and network file systems cache names. Then the log takes no more writes. The process should stay all the same: its
descriptors may be the last copy, and a restart would begin with what is at the path now.
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
"""Between the two looks after a failure."""
NAMED = 8
"""How many of the files that are not in place the sentence names."""


class FileWatch:
    """Looks at the files of one log, from its opening until `close`."""

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
        """Why the process should stay though its log takes no more writes, in one sentence; empty: it need not."""

    def look(self) -> None:
        """Look once, in any thread; then call `judge`. Blocks."""
        self._seen = self._misplaced()

    def judge(self) -> None:
        """Compare the last look with the one before it, in the log's own thread.

        Raises:
            LogReadOnly: both accuse the same file.
        """
        seen, accused = self._seen, self._accused
        self._accused = frozenset(seen)
        if any(sentence in accused for sentence in seen) and not self._closed:
            self.lost = _sentence(seen)
            self._fail(self.lost)
            raise LogReadOnly(self.lost)

    def judge_failure(self) -> str:
        """After something failed: look twice more, and return `lost`; the log then takes no more writes. Blocks."""
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
        """Look no more."""
        self._closed = True
        self._directory.release()
        self._files.release()


def _sentence(misplaced: list[str]) -> str:
    more = f"; and {len(misplaced) - NAMED} more" if len(misplaced) > NAMED else ""
    process = os.getpid()
    return (
        f"its files are not in place any more: {'; '.join(misplaced[:NAMED])}{more}. Nothing more is acknowledged. Do "
        f"not stop process {process} yet: its descriptors may be the last copy. `ls -l /proc/{process}/fd` lists them; "
        f"copy each with `cp /proc/{process}/fd/N FOLDER/NAME`, or put the folder back; then restart it"
    )
