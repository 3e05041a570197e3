"""Reads of the applier's tables, for the leader: linearizable ones, and those before it appends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire.sm import Applier, ApplyFailed

from ...errors import StateUnavailable
from ..applying import Applying
from ..reading import Reading, at_once, late_read
from ..writing import LeaderState, Writing

T = TypeVar("T")


class TableReads:
    """Reads sessions and cursors on a leader, each read at a frame boundary."""

    def __init__(
        self, leadership: LeaderState, reading: Reading, applying: Applying, writing: Writing, timeout_ms: int
    ) -> None:
        """A read takes at most `timeout_ms`."""
        self._leadership = leadership
        self._reading = reading
        self._applying = applying
        self._writing = writing
        self._timeout_ms = timeout_ms

    @property
    def applier(self) -> Applier:
        """The applier as it is, perhaps in the middle of a frame."""
        return self._applying.applier

    def refuse_follower(self) -> None:
        """Return if this node leads. Raises NotLeader, NoLeader."""
        if (error := self._leadership.not_leader()) is not None:
            raise error

    async def read(self, read: Callable[[Applier], T], turn: Callable[[], Awaitable[None]] = at_once) -> T:
        """The result of `read`, which sees everything that was acknowledged before.

        `turn` is awaited before it; then only the end of a frame that is being applied, if one is.

        Raises:
            What `turn` raises.
            NotLeader, NoLeader: this node does not lead.
            StateUnavailable: this node cannot answer, or no majority confirmed its leadership in time.
        """
        self.refuse_follower()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._reading.linearize()
                await turn()
                return await self._applying.at_boundary(read, on_loop=True)
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        except TimeoutError:
            raise StateUnavailable(late_read("linearizable", self._timeout_ms, self._writing.backlog)) from None

    async def before_append(self, judge: Callable[[Applier], T], timeout_ms: int | None = None) -> T:
        """The result of `judge`, which says whether this leader may append a record, and may propose it.

        It sees everything that was committed before this node led, and so, with what `judge` knows to be under way, all
        that may be in the log before the record. It takes at most `timeout_ms`, however long without one.

        Raises:
            What `judge` raises.
            NotLeader, NoLeader: this node does not lead.
            StateUnavailable: this node cannot answer, or not in time.
        """

        def judged(applier: Applier) -> T:
            self.refuse_follower()
            led_from = self._leadership.leading_from
            if led_from is not None and applier.applied_index <= led_from:  # It lost its lead meanwhile, and led again.
                raise StateUnavailable("the leadership changed before anything was written")
            return judge(applier)

        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._reading.caught_up()
                return await self._applying.at_boundary(judged, on_loop=True)
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        except TimeoutError:
            raise StateUnavailable(late_read("linearizable", timeout_ms or 0, self._writing.backlog)) from None
