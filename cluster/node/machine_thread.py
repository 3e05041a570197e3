"""A machine's own thread: for machines that are not `quick`.

The interpreter's lock lets one thread run at a time. A thread that computes gives it up when another one has waited for
the switch interval, so the loop goes on beside the slowest command that is written in Python (ADR 0013).
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

SWITCH_INTERVAL_S = 0.0005
"""How long the loop waits for the lock at most. It gives the lock up at each system call, several times a request."""

Done = Callable[[Any, BaseException | None], None]
"""Gets what a block returned, or what it raised. Called on the loop."""


class MachineThread:
    """Runs blocks in one thread, in order. Made and used on the event loop."""

    def __init__(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._loop = asyncio.get_running_loop()
        self._blocks: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        # A daemon: a command that never ends must not keep this process from ending.
        threading.Thread(target=self._run, name="machine", daemon=True).start()

    def run(self, block: Callable[[], Any], done: Done) -> None:
        """Run the block after those before it; then call `done` on the loop."""
        self._blocks.put((block, done))

    def end(self) -> None:
        """Let the thread end after what it has."""
        self._blocks.put(None)

    def _run(self) -> None:
        while (work := self._blocks.get()) is not None:
            block, done = work
            result, error = None, None
            try:
                result = block()
            except BaseException as raised:  # noqa: BLE001  # It is handed to the loop, whatever it is.
                error = raised
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:  # The loop has ended: nobody waits.
                return
            del work, block, done, result, error  # While it waits it must not hold a frame.
