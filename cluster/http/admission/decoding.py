"""When a write's body is decoded and checked: not many of them in one turn of the loop, and none that is refused.

Decoding and checking a batch of some thousand commands takes milliseconds. Of a hundred callers who send one at the
same time, all would be decoded in one turn of the loop, and the heartbeats would be late. So each large body gets a
turn of its own, in the order of arrival. Under more load than the node can take the bodies would wait for ever longer,
until each is decoded, written and applied for a caller who has given up. So a write is refused before it is decoded
once it, or the first of those that wait when it comes, has waited for `WAIT_S`, or once the machine is behind. Those
that come within `WAIT_S` may be many times as many as can be decoded in it: the first of these bounds each one's wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ...errors import ClusterError, Overloaded

LARGE_BYTES = 16 << 10  # A smaller body is decoded in less time than its request took to parse.
WAIT_S = 1.0


class _Waiting(NamedTuple):
    since: float
    turn: asyncio.Future[None]


class DecodingTurns:
    """Gives large bodies their turns of the loop. One event loop."""

    def __init__(self, refusal: Callable[[], ClusterError | None], clock: Callable[[], float] | None = None) -> None:
        """`refusal` is why the node takes no write now, None if it does."""
        self._refusal = refusal
        self._clock = clock or time.monotonic
        self._waiting: deque[_Waiting] = deque()
        self._is_taken = False  # The present turn of the loop is somebody's.

    async def turn(self, size: int) -> None:
        """Return when a body of so many bytes may be decoded; the caller does that without awaiting anything first.

        Raises:
            Overloaded: the node has more to do than it can; the body should not be decoded.
            StateUnavailable: the same, and not for the load.
        """
        if (refusal := self._refusal()) is not None:
            raise refusal
        if size > LARGE_BYTES:
            arrived = self._clock()
            if self._waiting and arrived - self._waiting[0].since > WAIT_S:
                raise Overloaded()
            await self._own_turn()
            if (refusal := self._refusal()) is not None:
                raise refusal
            if self._clock() - arrived > WAIT_S:
                raise Overloaded()

    async def turn_of_stream(self) -> None:
        """`turn` for a large message of a stream. It waits: its client is slowed down, and would only send it again."""
        await self._own_turn()

    async def _own_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on)
            return
        waiting = _Waiting(self._clock(), loop.create_future())
        self._waiting.append(waiting)
        await waiting.turn

    def _pass_on(self) -> None:
        """Give the next turn of the loop to the first that waits, and has not given up."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._is_taken = False
