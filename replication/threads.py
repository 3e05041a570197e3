"""The threads in which a process waits for its disk: the writer's runs flushes and promises, another the mark's syncs.

They run the blocks that the driver hands them, in order, and know neither the log nor the core.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from quire.log import time_since_boot, wall_clock

from .ports import Done


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

    def write(self, block: Callable[[], None], done: Done) -> None:
        """Run `block` in the writer's thread, in order; then `done` on the loop."""
        self._writer.submit(block, done)

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
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._marker.stop)
        await asyncio.sleep(0)
