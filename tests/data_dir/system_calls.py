"""The system calls that `quire.log.files` makes, one of which, or all from one on, can fail."""

import errno
import os
from collections.abc import Callable
from typing import Any

_SYNCS = frozenset({"fdatasync", "fsync"})
_NAMES = frozenset({"open", "listdir", "scandir"})
_CHANGES = frozenset({"open", "pwrite", "posix_fallocate", "makedirs", "replace", "rename", *_SYNCS})
_ALL = frozenset({*_NAMES, *_CHANGES, "fstat", "pread", "ftruncate", "unlink", "rmdir"})
CALLS_THAT_FAIL = {
    errno.EMFILE: _NAMES,
    errno.ENFILE: _NAMES,
    errno.ENOMEM: _ALL,
    errno.ENOSPC: _CHANGES,
    errno.EIO: _ALL,
}
"""Which calls can fail with an error."""


class SystemCalls:
    """In the place of the module `os`, for one process. Syncs do nothing: the machine that runs the tests stays up."""

    def __init__(self) -> None:
        self.made = 0
        """Calls so far that could fail with the error."""
        self._error = 0
        self._failing: Callable[[int], bool] = lambda _: False
        self._open: set[int] = set()

    def fail(self, error: int, failing: Callable[[int], bool]) -> None:
        """From now on, the calls that `failing` names fail with `error`; the first has number 1."""
        self.made, self._error, self._failing = 0, error, failing

    def end_process(self) -> None:
        """No call fails any more, and no file is open."""
        self._error = 0
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def open(self, *arguments: Any, **named: Any) -> int:
        """As `os.open`."""
        self._made("open")
        descriptor = os.open(*arguments, **named)
        self._open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        """As `os.close`."""
        self._open.discard(descriptor)
        os.close(descriptor)

    def __getattr__(self, name: str) -> Any:
        call = (lambda _: None) if name in _SYNCS else getattr(os, name)

        def made(*arguments: Any, **named: Any) -> Any:
            self._made(name)
            return call(*arguments, **named)

        return made if name in _ALL else call

    def _made(self, name: str) -> None:
        if name in CALLS_THAT_FAIL.get(self._error, ()):
            self.made += 1
            if self._failing(self.made):
                raise OSError(self._error, os.strerror(self._error))
