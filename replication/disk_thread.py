"""One thread for what blocks on the device: flushes and promises, one at a time, off the event loop.

An executor does this, too, at some 15 microseconds more for each hand-over, which is a part of every command's latency.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

Block = Callable[[], None]
Done = Callable[[BaseException | None], None]


class DiskThread:
    """Runs blocks in the order of their submission; tells the loop of each what it raised, or None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._waiting: SimpleQueue[tuple[Block, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, block: Block, done: Done) -> None:
        """Run `block` in the thread, then `done` on the loop."""
        self._waiting.put((block, done))

    def stop(self) -> None:
        """Blocking: return when all that was submitted has run. Nothing may be submitted any more."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (submitted := self._waiting.get()) is not None:
            block, done = submitted
            error: BaseException | None = None
            try:
                block()
            except BaseException as raised:  # noqa: BLE001  # It is told, whatever it is.
                error = raised
            self._loop.call_soon_threadsafe(done, error)
