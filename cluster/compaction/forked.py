"""Long work in a forked child, such as writing a snapshot (`snapshotting`).

The child sees this process's memory as it was at the fork; this process continues at once.

Why this is safe in a process with threads and an event loop:

- only the forking thread exists in the child, so a lock that another thread held stays held for ever. The child takes
  none: it runs one function of ours, which computes and makes plain system calls; it logs nothing, imports nothing,
  and never returns into the code that forked
- descriptors are shared. The child first closes all but the three standard ones and its pipe: a connection that this
  process closes must end for its peer, and the data_dir's lock must end with this process
- it collects no garbage, since finalizers would touch what is not its own, and handles signals as a new process does
- it ends by `os._exit`: it runs no handler, buffer or loop of this process
- before each piece of work it checks that its parent lives, so no orphan writes beside a successor
"""

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import Callable

Work = Callable[[Callable[[], None]], bytes]
"""Runs in the child. It gets a check to call before each piece of work, and returns its report."""

REPORT_BYTES = 1 << 16
NICENESS = 5  # It yields to this process if they share a processor.

_DONE, _FAILED = b"+", b"-"
_FIRST_DESCRIPTOR = 3
_MAX_DESCRIPTORS = 1 << 20


class ChildFailed(Exception):
    """The child failed; the text says why."""


class Child:
    """A forked child. Made and used on the event loop's thread."""

    def __init__(self, work: Work) -> None:
        """Fork. Raises OSError if there is no memory or no process for it."""
        reading, writing = os.pipe()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads: see above.
                self._pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if not self._pid:
            _run_child(work, writing, parent)
        os.close(writing)
        self._reading = reading
        self._ends = False

    async def report(self) -> bytes:
        """Wait for the child's end; return its report.

        Raises:
            ChildFailed: it failed, or was killed.
        """
        said, status = await asyncio.shield(asyncio.to_thread(self._wait))
        if said[:1] == _DONE:
            return said[1:]
        raise ChildFailed(said[1:].decode(errors="replace") or f"the child ended with status {status}")

    def kill(self) -> None:
        """Kill it now, unless it has ended."""
        if not self._ends:
            os.kill(self._pid, signal.SIGKILL)

    def _wait(self) -> tuple[bytes, int]:
        said = b""
        while piece := os.read(self._reading, REPORT_BYTES):
            said += piece
        os.close(self._reading)
        self._ends = True  # Before its pid may be reused.
        return said, os.waitpid(self._pid, 0)[1]


def _run_child(work: Work, writing: int, parent: int) -> None:
    """Run the child; never return."""
    status = 1
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(_FIRST_DESCRIPTOR, writing)
        os.closerange(writing + 1, _MAX_DESCRIPTORS)
        os.nice(NICENESS)

        def go_on() -> None:
            if os.getppid() != parent:
                os._exit(1)

        said, status = _DONE + work(go_on), 0
    except BaseException as error:  # noqa: BLE001  # Whatever it is, it is reported, and ends here.
        said = _FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")[: REPORT_BYTES - 1]
    try:
        os.write(writing, said)
    finally:
        os._exit(status)
