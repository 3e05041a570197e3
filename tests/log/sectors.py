"""A file of which a device does not give everything, as a process meets it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

PAGE_BYTES = 4096


class Sectors:
    """Lets `os.pread` fail for the pages of a file from one on, as Linux does: what comes before is returned first.

    `monkeypatch.setattr(os, "pread", Sectors(path, position).pread)`
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._file, self._first = path.stat().st_ino, position // PAGE_BYTES * PAGE_BYTES
        self._pread = os.pread

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        """Read, or raise EIO."""
        if os.fstat(descriptor).st_ino != self._file or position + length <= self._first:
            return self._pread(descriptor, length, position)
        if position >= self._first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._pread(descriptor, self._first - position, position)
