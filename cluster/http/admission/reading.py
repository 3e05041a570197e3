"""Limits how many connections start or resume reading in one turn of the loop.

A connection is paused while its buffer is full, and resumes when its handler has read. A long body is read in many such
steps, even after it was refused, because the caller reads no answer before it has sent everything. If hundreds of
callers sent long bodies at once, every turn would read from all of them and take tenths of a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable

RESUMED_IN_TURN = 16
"""Each then reads some 256 KiB, until its buffer is full again."""


class ReadingTurns:
    """Lets a limited number of connections start or resume per turn, in order of arrival. One event loop."""

    def __init__(self, in_turn: int = RESUMED_IN_TURN) -> None:
        self._in_turn = in_turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = in_turn
        self._is_counting = False

    def resume(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in this turn or in a later one."""
        if self._left:
            self._left -= 1
            go_on()
        else:
            self._waiting.append(go_on)
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left = self._in_turn
        if not self._waiting:
            self._is_counting = False
            return
        asyncio.get_running_loop().call_soon(self._next_turn)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
