"""When the body of a write is decoded and checked: one large body per turn of the loop, and none that is refused.

Decoding and checking a batch of thousands of commands takes milliseconds. If a hundred callers sent one at the same
time, all would be decoded in one turn of the loop, and the heartbeats would be late. So each large body gets a turn of
its own, in the order of arrival. Under overload the bodies would wait longer and longer, until each is decoded, written
and applied for a caller that has given up. So a write is refused before it is decoded if it has waited for `WAIT_S`, if
the oldest waiting body had done so when it arrived, or if the machine is behind. (Within `WAIT_S` many times as many
bodies may arrive as can be decoded in that time, so the wait of each body has to be bounded, too.)
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ...errors import ClusterError, Overloaded

LARGE_BYTES = 16 << 10  # A smaller body is decoded in less time than its request took to parse.
WAIT_S = 1.0
LATE = f"a write waits for at most {WAIT_S:g} s to be decoded"


class _Waiting(NamedTuple):
    since: float
    turn: asyncio.Future[None]


class DecodingTurns:
    """Gives large bodies their turns of the loop. One event loop."""

    def __init__(self, refusal: Callable[[], ClusterError | None], clock: Callable[[], float] | None = None) -> None:
        """`refusal` gives the reason why the node accepts no writes now, None if it does."""
        self._refusal = refusal
        self._clock = clock or time.monotonic
        self._waiting: deque[_Waiting] = deque()
        self._is_taken = False  # The current turn of the loop is taken.

    async def turn(self, size: int) -> None:
        """Return when a body of `size` bytes may be decoded. The caller must do so without awaiting anything first.

        Raises:
            Overloaded: the node is overloaded; the body must not be decoded.
            StateUnavailable: the node accepts no writes for another reason.
        """
        if (refusal := self._refusal()) is not None:
            raise refusal
        if size > LARGE_BYTES:
            arrived = self._clock()
            if self._waiting and arrived - self._waiting[0].since > WAIT_S:
                raise Overloaded(LATE)
            await self._own_turn()
            if (refusal := self._refusal()) is not None:
                raise refusal
            if self._clock() - arrived > WAIT_S:
                raise Overloaded(LATE)

    async def turn_of_stream(self) -> None:
        """`turn` for a large message of a stream, but without refusals: waiting slows the client down."""
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
        """Give the next turn of the loop to the first waiter that has not given up."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._is_taken = False
