"""An event loop in a thread of its own: what a blocking client runs its calls on."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from selectors import DefaultSelector
from typing import TypeVar

from .forks import closed, leave_to_parent, opened, refuse_fork

Given = TypeVar("Given")
Result = TypeVar("Result")


class LoopThread:
    """An event loop that runs in its own thread from `start` to `stop`. Any thread may run calls on it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._selector: DefaultSelector | None = None
        self._opened_in: int | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started in this process and not stopped."""
        return self._loop is not None

    def start(self) -> None:
        """Start the thread, which runs the loop."""
        self._opened_in, self._selector = os.getpid(), DefaultSelector()
        # Not the policy's: `forked` has its descriptors.
        self._loop = loop = asyncio.SelectorEventLoop(self._selector)
        opened(self)
        self._thread = threading.Thread(target=loop.run_forever, name="quire-client", daemon=True)
        self._thread.start()

    def stop(self, last: Coroutine[object, object, None]) -> None:
        """Run one more call, then cancel the calls of other threads and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            last.close()
            return
        try:
            self.run(last)
            self.run(_cancel_calls())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            closed(self)

    def forked(self) -> None:
        """In a forked child: close the copied descriptors of the loop. Its thread exists only in the parent."""
        loop, selector = self._loop, self._selector
        self._loop = self._thread = self._selector = None
        if loop is None or selector is None:
            return
        # asyncio does not show the ends of the pipe that wakes a loop. Without them the child only keeps two more open.
        ends = (getattr(loop, name, None) for name in ("_ssock", "_csock"))
        leave_to_parent((selector, *(end for end in ends if end is not None)))
        # Nothing is wrong with what is never finished here.
        loop.set_exception_handler(lambda _loop, _context: None)

    def run(self, call: Coroutine[object, object, Result], /) -> Result:
        """Run a call on the loop and return its result. Ctrl-C in this thread cancels the call.

        Raises:
            ForkedClient: the thread runs in the parent of this process.
            RuntimeError: it does not run, or this is the thread itself.
        """
        loop = self._loop
        if loop is None:
            call.close()
            refuse_fork(self._opened_in)
            raise RuntimeError("the client is not open; use it as in: with quire.connect_sync(...) as cluster")
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("a blocking call on the client's own thread would never return")
        running = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


async def thread_future(
    submit: Callable[[Given], Coroutine[object, object, asyncio.Future[Result]]], given: Given
) -> Future[Result]:
    """A future for other threads, with the result of the loop's future. Cancelling it does not cancel the command."""
    answer, mirror = await submit(given), _Mirror[Result]()

    def copy_result(answer: asyncio.Future[Result]) -> None:
        if not mirror.set_running_or_notify_cancel():
            # Retrieved, so that asyncio does not report it as lost.
            _ = answer.cancelled() or answer.exception()
        elif answer.cancelled():
            mirror.set_exception(CancelledError())
        elif (error := answer.exception()) is not None:
            mirror.set_exception(error)
        else:
            mirror.set_result(answer.result())
        mirror.opened_in = None

    answer.add_done_callback(copy_result)
    return mirror


class _Mirror(Future[Result]):
    """A future that raises ForkedClient in a child of the process in which it is resolved."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_in: int | None = os.getpid()
        """None once resolved. Reads without the lock, because another thread may have held it at the fork."""

    def result(self, timeout: float | None = None) -> Result:
        refuse_fork(self.opened_in)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        refuse_fork(self.opened_in)
        return super().exception(timeout)


async def _cancel_calls() -> None:
    """Cancel the calls of other threads, which would otherwise never return."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
