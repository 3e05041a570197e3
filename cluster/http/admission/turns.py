"""Work that grows with the data: so much of it in one turn of the event loop, for all callers and routes together.

A page of cursors takes milliseconds. If hundreds of callers asked for one at the same time, all pages would be made in
one turn of the loop, and the heartbeats would be late. So each piece of such work takes a part of a turn's budget, as
many rows and bytes as it has. What does not fit waits for a later turn. A piece that is larger than the budget goes
alone. After a turn that took long, as with such a piece, the loop has as much time for everything else.

Shares take turns: a token's name is one, or else an address, or a member that forwards. Within a share, the oldest
request goes first. So many requests of a route may wait, and for so long, before they begin; one that has begun is
never refused.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from ...errors import Overloaded
from .addresses import full, share_of

ROWS_IN_TURN = 512
BYTES_IN_TURN = 256 << 10
"""Either takes some 6 ms on a slow core; of both together, a part of each."""
ROW_BYTES = BYTES_IN_TURN // ROWS_IN_TURN
"""So many bytes cost as much as a row."""
PIECE_ROWS = 128
"""Of a long answer: other shares have their part of a turn, too."""
WAITING_LIMIT = 512
WAIT_S = 5.0
LATE = f"the request waited for more than {WAIT_S:g} s for its turn"
LONG_TURN_MS = 20
"""Of processor time: a turn during which the process waited for a processor, or was stopped, is none."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A piece of work that waits for a turn."""

    work: "Work"
    cost: int
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Gives pieces of work their turns of the loop. One event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        """`clock` gives monotonic seconds, `cpu` the CPU time of the loop's thread in seconds."""
        self.clock = clock
        self._cpu = cpu
        self._queues: dict[str, list[tuple[int, int, _Waiting]]] = {}  # By share: the first one is served next.
        self._of_route: Counter[str] = Counter()
        self._of_share: Counter[tuple[str, str]] = Counter()
        self._numbers = count()
        self._left = BYTES_IN_TURN
        self._used = 0.0
        self._is_counting = False  # A part of the present turn is taken.

    def __len__(self) -> int:
        """How many pieces wait."""
        return self._of_route.total()

    def work(self, route: str, share: str, is_gone: Callable[[], bool]) -> "Work":
        """The work of one request of a route; `is_gone` tells whether its caller has gone."""
        return Work(self, next(self._numbers), route, share, is_gone)

    def take(self, cost: int) -> bool:
        """Take a part of this turn, unless others wait or it has not so much left."""
        if self._queues or not self._fits(cost):
            return False
        self.charge(cost)
        return True

    def charge(self, cost: int) -> None:
        """Count work that is done in this turn."""
        self._left -= cost
        if not self._is_counting:
            self._is_counting, self._used = True, self._cpu()
            asyncio.get_running_loop().call_soon(self._next)

    async def wait(self, work: "Work", cost: int) -> None:
        """Wait for a turn. Raises as `Work.turn`."""
        route, of_share = work.route, (work.route, work.share)
        is_whole = self._of_route[route] >= WAITING_LIMIT
        if (is_whole or self._of_share[of_share] >= share_of(WAITING_LIMIT)) and not work.has_begun:
            raise full(WAITING_LIMIT, f"requests of {route} wait", is_whole=is_whole)
        waiting = _Waiting(work, cost)
        # By the request's age alone: requests that have begun may be new, and keep coming. Its own pieces are in order.
        heappush(self._queues.setdefault(work.share, []), (work.number, next(self._numbers), waiting))
        self._of_route[route] += 1
        self._of_share[of_share] += 1
        try:
            await waiting.granted
        finally:
            self._of_route[route] -= 1
            self._of_share[of_share] -= 1
            if not self._of_share[of_share]:
                del self._of_share[of_share]

    def _fits(self, cost: int) -> bool:
        return cost <= self._left or self._left == BYTES_IN_TURN

    def _next(self) -> None:
        """The next turn of the loop has come: serve those who wait, after a long turn not before as much time again."""
        took_s = self._cpu() - self._used
        if 1000 * took_s > LONG_TURN_MS:
            asyncio.get_running_loop().call_later(took_s, self._serve)
        else:
            self._serve()

    def _serve(self) -> None:
        """Let as many continue as fit into one turn, of each share one after the other."""
        self._left = BYTES_IN_TURN
        while self._queues:
            share, queue = next(iter(self._queues.items()))
            _, _, waiting = queue[0]
            if not waiting.granted.done() and (error := waiting.work.refusal()) is not None:
                waiting.granted.set_exception(error)
            if not waiting.granted.done():
                if not self._fits(waiting.cost):
                    break
                self._left -= waiting.cost
                waiting.granted.set_result(None)
                del self._queues[share]  # It comes again after the others.
                self._queues[share] = queue
            heappop(queue)
            if not queue:
                del self._queues[share]
        self._is_counting = self._left < BYTES_IN_TURN
        if self._is_counting:  # After those who were served, which run in the next turn of the loop.
            self._used = self._cpu()
            asyncio.get_running_loop().call_soon(self._next)


@dataclass(eq=False, slots=True)
class Work:
    """The work of one request."""

    _turns: Turns
    number: int
    route: str
    share: str
    _is_gone: Callable[[], bool]
    has_begun: bool = False
    """Then it is not refused any more; so it is that of a write which has been executed."""
    _since: float | None = None

    async def turn(self, rows: int = 1, size: int = 0, *, alone: bool = False) -> None:
        """Return when a piece of work may be done: so many rows and bytes. Do it then, with nothing awaited first.

        Reads of the machine and its tables await the end of the frame that is being applied, if one is. They are done
        then, in a turn in which they are not counted; that is so for all that wait for one frame.

        If more than that may turn out, ask for the least, `alone`: if it has to wait, it gets a turn of its own. Then
        `charge` the rest.

        Raises:
            Overloaded: too many requests of the route wait, or too many of the share, or this one waited too long.
            ConnectionResetError: the caller has gone.
        """
        cost = size + rows * ROW_BYTES
        if not self._turns.take(cost):
            if self._since is None:
                self._since = self._turns.clock()
            await self._turns.wait(self, max(cost, BYTES_IN_TURN) if alone else cost)
        self.has_begun = True

    def charge(self, rows: int = 0, size: int = 0) -> None:
        """Count what a piece had beyond what was asked for. Call it in the turn in which it was done."""
        self._turns.charge(size + rows * ROW_BYTES)

    def refusal(self) -> Exception | None:
        """Why this work, which waits, is not done."""
        if self._is_gone():
            return ConnectionResetError("the caller has gone")
        waited_s = 0.0 if self._since is None else self._turns.clock() - self._since
        return Overloaded(LATE) if waited_s > WAIT_S and not self.has_begun else None
