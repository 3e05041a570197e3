"""The children of a process that starts handlers: its own, and those that come to it.

Whatever a handler leaves behind becomes a child of process 1 of the container, or of a subreaper, once its parent is
gone. If this is that process, nobody else reaps them: each would stay a zombie, and take a process id, of which a
container has few. So it reaps them. The exit code of a process that it started itself is left to whoever waits for it.
"""

import asyncio
import errno
import os
import signal
from types import TracebackType
from typing import Self

from ...errors import NO_THREAD


class Children:
    """Starts processes, and while it is entered, on the main thread, reaps those that it did not start."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._starting = 0  # Processes whose ids are not known yet: nothing is reaped meanwhile.

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    async def start(self, *words: str, stderr: int) -> asyncio.subprocess.Process:
        """Start a process with a pipe as stdin, in a group of its own. Call `forget` at its end. Raises OSError."""
        self._starting += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stderr=stderr, process_group=0
            )
            self._own.add(process.pid)
        except RuntimeError as error:
            if str(error) != NO_THREAD:
                raise
            raise OSError(errno.EAGAIN, NO_THREAD) from error
        finally:
            self._starting -= 1
        return process

    def forget(self, process: asyncio.subprocess.Process) -> None:
        """The process was waited for: reap what came of it, and what ended while it was in the way."""
        if process.returncode is not None:
            self._own.discard(process.pid)
        self.reap()

    def reap(self) -> None:
        """Reap the children that have ended, up to the first of its own, which has a waiter."""
        while not self._starting and (pid := _next_ended()) is not None and pid not in self._own:
            os.waitpid(pid, os.WNOHANG)


def _next_ended() -> int | None:
    """The id of a child that has ended, which stays a zombie; None if there is none."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid
