"""Long work in a forked child, such as writing a snapshot (`snapshotting`).

The child sees this process's memory as it was at the fork; this process continues at once.

Why this is safe in a process with threads and an event loop:

- only the forking thread exists in the child, so a lock that another thread held stays held forever. The child takes
  no locks: it runs one function of ours, which computes and makes plain system calls; it imports nothing, and never
  returns into the code that forked. It logs nothing: in a child of a server, the queue of stderr accepts no lines
- descriptors are shared. The child first closes all but the three standard ones and its pipe: when this process closes
  a connection, its peer must see that, and the data_dir's lock must be released when this process ends
- the garbage collector is off, since finalizers would touch the parent's objects
- signals are blocked from before the fork until the child has its own handlers: one of the parent's would write to the
  pipe that wakes the parent's loop, and so the parent would obey a signal that was sent to the child
- it ends with `os._exit`, so no exit handler, buffer or event loop of this process runs
- before each piece of work it checks that its parent is alive, so no orphan writes while a successor runs
- it may still hang, on a lock of a library that was held at the fork or on a disk that does not answer. So the parent
  kills a child that makes no progress (`Patience`)
"""

import asyncio
import errno
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec, TypeVar

from quire import QuireError

from ..errors import NO_THREAD, ClusterError

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[[Callable[[], None]], bytes]
"""The function to run in the child. It gets a function to call before each piece of work, and returns its report."""

REPORT_BYTES = 1 << 16
NICENESS = 5  # It yields to this process if they share a processor.

_PIECE, _DONE, _FAILED = b".", b"+", b"-"
_FIRST_DESCRIPTOR = 3
_MAX_DESCRIPTORS = 1 << 20


class Patience(NamedTuple):
    """When a child counts as hanging. Time during which this process itself was frozen does not count."""

    idle_s: float = 120.0
    """It started no piece and used no CPU time for this long. Writing and syncing a piece takes seconds at most."""
    piece_s: float = 900.0
    """It started no piece for this long, although it used CPU time. A piece takes well below a second to compute."""
    killed_s: float = 10.0
    """It was killed and has not ended for this long: the device that it waits for does not answer."""
    look_s: float = 1.0
    """The interval between two checks."""


PATIENCE = Patience()


class ChildFailed(ClusterError):
    """The child failed; the text says why."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but raises OSError if no thread can be started: like EMFILE, that may be temporary."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise OSError(errno.EAGAIN, NO_THREAD) from error


class Child:
    """A forked child. Made and used on the event loop's thread."""

    def __init__(self, work: Work) -> None:
        """Fork. Raises OSError if there is no memory, process or thread for it."""
        self._pieces = 0
        self._ends = False
        self._killed: str | None = None
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[tuple[bytes, int]] = self._loop.create_future()
        forked: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        # Not a pool thread: if the child cannot be killed, it must not block the pool or the exit of this process.
        # Started before the fork: without it nothing would reap the child or read its report.
        try:
            threading.Thread(target=self._wait, args=(forked,), name="child", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        try:
            self._pid, reading = _fork(work)
        except BaseException:
            forked.put(None)
            raise
        forked.put((self._pid, reading))

    @property
    def ended(self) -> bool:
        """Whether the child is gone."""
        return self._end.done()

    async def report(self, patience: Patience = PATIENCE) -> bytes:
        """Wait for the child's end; return its report. A child that hangs is killed.

        Raises:
            ChildFailed: it failed, or was killed, or was killed and does not end.
        """
        seen, idle_s, piece_s, killed_s = (0, 0), 0.0, 0.0, 0.0
        while not (await asyncio.wait([self._end], timeout=patience.look_s))[0]:
            before, seen = seen, (self._pieces, _processor_ticks(self._pid))
            # Checks are counted, not the clock: a freeze of this process must not use up the child's time.
            piece_s = 0.0 if seen[0] != before[0] else piece_s + patience.look_s
            idle_s = 0.0 if seen != before else idle_s + patience.look_s
            if self._killed is not None:
                killed_s += patience.look_s
                if killed_s >= patience.killed_s:
                    raise ChildFailed(f"{self._killed}; it was killed but does not end: check the disk")
            elif idle_s >= patience.idle_s:
                self.kill(f"the child made no progress for {patience.idle_s:.0f} s")
            elif piece_s >= patience.piece_s:
                self.kill(f"the child was busy for {patience.piece_s:.0f} s and wrote nothing")
        said, status = self._end.result()
        if said[:1] == _DONE:
            return said[1:]
        reason = said[1:].decode(errors="replace") or f"the child ended with status {status}"
        raise ChildFailed(f"{self._killed}: {reason}" if self._killed else reason)

    def kill(self, reason: str = "it is no longer wanted") -> None:
        """Kill it now, unless it has ended."""
        if not self._ends:
            self._killed = reason
            os.kill(self._pid, signal.SIGKILL)

    def _wait(self, forked: "SimpleQueue[tuple[int, int] | None]") -> None:
        """In the thread: read the child's report until it ends, and reap it. `forked` gets its pid and its pipe."""
        if (child := forked.get()) is None:
            return
        pid, reading = child
        said = b""
        while read := os.read(reading, REPORT_BYTES):
            rest = read if said else read.lstrip(_PIECE)
            self._pieces += len(read) - len(rest)
            said += rest
        os.close(reading)
        self._ends = True  # Before its pid may be reused.
        status = os.waitpid(pid, 0)[1]
        with suppress(RuntimeError):  # The loop has ended: nobody waits.
            self._loop.call_soon_threadsafe(self._end.set_result, (said, status))


def _fork(work: Work) -> tuple[int, int]:
    """Fork; return the child's pid and the read end of its pipe."""
    reading, writing = os.pipe()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads: see above.
            pid = os.fork()
        if not pid:
            _run_child(work, writing, parent, mask)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(writing)
    return pid, reading


def _processor_ticks(pid: int) -> int:
    """The CPU time of a process, in ticks; 0 if it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    user, system = fields[11:13]  # The 14th and 15th of the line; the state, the 3rd, is the first here.
    return int(user) + int(system)


def _run_child(work: Work, writing: int, parent: int, mask: set[int]) -> None:
    """Run the child, with the parent's `mask` of signals; never return."""
    status = 1
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # A reload of the whole process group ends no snapshot.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.closerange(_FIRST_DESCRIPTOR, writing)
        os.closerange(writing + 1, _MAX_DESCRIPTORS)
        os.nice(NICENESS)

        def go_on() -> None:
            if os.getppid() != parent:
                os._exit(1)
            os.write(writing, _PIECE)

        said, status = _DONE + work(go_on), 0
    except BaseException as error:  # noqa: BLE001  # Whatever it is, it is reported, and ends here.
        why = str(error) if isinstance(error, QuireError) else f"{type(error).__name__}: {error}"
        said = _FAILED + why.encode(errors="replace")[: REPORT_BYTES - 1]
    try:
        os.write(writing, said)
    finally:
        os._exit(status)
