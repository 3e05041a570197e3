"""How a process waits for its disk: flushes by the kernel (`kernel_syncs`), if that is switched on, else
in the writer's thread, as promises and the like; the mark's syncs in another.

The threads run the blocks that the driver hands them, in order, and know neither the log nor the core.
"""

import asyncio
import contextvars
import errno
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from quire.log import Sync, time_since_boot, wall_clock

from .kernel_syncs import KernelSyncs
from .ports import Done

BY_KERNEL = False
"""Whether the kernel is to run flushes. Off: in two of sixty runs of a test, one never told its end (ADR 0024)."""


class DiskThread:
    """Runs blocks that wait for the device (flushes, promises) in order, off the event loop.

    An executor would do the same, but costs about 15 us more per hand-over, and so per command.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._waiting: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the thread, then `done` on the loop."""
        self._waiting.put((block, done))

    def stop(self) -> None:
        """Block until everything submitted has run. Submit nothing after this."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (submitted := self._waiting.get()) is not None:
            block, done = submitted
            error: BaseException | None = None
            began = time.monotonic_ns()
            try:
                block()
            except BaseException as raised:  # noqa: BLE001  # `done` gets it, whatever it is.
                error = raised
            self._loop.call_soon_threadsafe(done, error, (time.monotonic_ns() - began) // 1_000)


class Threads:
    """The `Device` of a process: its clocks, a thread for the writer, and one for the mark. Made on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now, self.clock = time_since_boot, wall_clock  # They are read in each step, so nothing is around them.
        # Its own: log lines written while writes are appended must not name the first caller's request.
        self._context = contextvars.copy_context()
        self._writer = DiskThread(self._loop, "quire-writer")
        self._marker = DiskThread(self._loop, "quire-mark")
        self._syncs = self._by_kernel()
        self._ending: asyncio.Future[None] | None = None

    def _by_kernel(self) -> KernelSyncs | None:
        """What has the kernel run flushes; None if it does not allow it, or is another system's."""
        if not BY_KERNEL:
            return None
        try:
            syncs = KernelSyncs()
        except (OSError, AttributeError):
            return None
        try:
            self._loop.add_reader(syncs.event, syncs.complete)
        except NotImplementedError:  # A loop of another kind.
            syncs.close()
            return None
        return syncs

    def write(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the writer's thread, in order; then `done` on the loop."""
        self._writer.submit(block, done)

    def flush(self, sync: Sync, done: Done) -> None:
        """Run a flush by the kernel, else in the writer's thread; then `done` on the loop."""
        began = time.monotonic_ns()

        def ended(error: OSError | None) -> None:
            try:
                if error is not None and error.errno == errno.ECANCELED:  # The kernel could make no thread for it.
                    self._writer.submit(sync.run, done)
                else:
                    done(error, (time.monotonic_ns() - began) // 1_000)
            finally:
                if self._ending is not None and not self._ending.done():
                    self._ending.set_result(None)

        if self._syncs is None or not sync.begin(self._syncs, ended):
            self._writer.submit(sync.run, done)

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        """Call `then` on the loop after `delay_us`, or in its next turn."""
        if delay_us:
            self._loop.call_later(delay_us / 1_000_000, then)
        else:
            self._loop.call_soon(then, context=self._context)

    def sync_mark(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the mark's thread; then `done` on the loop."""
        self._marker.submit(block, done)

    async def end(self) -> None:
        """Return when no block is running and every `done` was called."""
        syncs, self._syncs = self._syncs, None
        if syncs is not None:
            if syncs.is_busy:
                self._ending = self._loop.create_future()
                await self._ending
            self._loop.remove_reader(syncs.event)
            syncs.close()
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._marker.stop)
        await asyncio.sleep(0)
