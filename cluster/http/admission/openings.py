"""Openings of sessions: how many names may be open, including those that are being opened.

A named session stays until it is closed or expires, so one client that opens many names fills the table for everybody.
The leader therefore counts before it appends (`Sessions.full`), including openings in progress: otherwise a whole burst
would be admitted before its first record is applied. A newly elected leader first applies what was committed before it
led, so that no name is left out of the count and successive leaders do not exceed the limit together.

This is not checked at apply: records appended by an older version or under another limit must have the same result on
every node.
"""

import asyncio
from collections import Counter

from quire.log import wall_clock
from quire.sm import Applier, ApplyFailed

from ...errors import ClusterError, SessionsFull, StateUnavailable
from ...node.components import Components
from ...node.reading import late_read
from ...node.writing import FutureWaiter, WriteReply


class Opening(FutureWaiter):
    """The waiter of one opening. Its name counts as being opened until its outcome is known, however late."""

    def __init__(self, name: str | None, under_way: Counter[str]) -> None:
        super().__init__(applied=True)
        self._name = name
        self._under_way = under_way
        self._is_counted = False

    def count(self) -> None:
        """Count the name."""
        if self._name is not None:
            self._under_way[self._name] += 1
            self._is_counted = True

    def end(self) -> None:
        """Stop counting the name."""
        if self._is_counted and self._name is not None:
            self._is_counted = False
            self._under_way[self._name] -= 1
            if not self._under_way[self._name]:
                del self._under_way[self._name]

    def answer(self, reply: WriteReply) -> None:
        """The opening was applied."""
        self.end()
        super().answer(reply)

    def fail(self, error: ClusterError) -> None:
        """It was not appended, or this node no longer leads."""
        self.end()
        super().fail(error)


class SessionOpenings:
    """The openings in progress on this leader. One event loop."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many names are being opened."""
        return len(self._under_way)

    async def admit(self, components: Components, timeout_ms: int, name: str | None) -> Opening:
        """The waiter for the record that opens this name, or a session without one. Call `end` if it is not appended.

        `components` are those of this node. It takes at most `timeout_ms`.

        Raises:
            SessionsFull: no more such sessions can be opened; nothing was written.
            NotLeader, NoLeader, StateUnavailable, Overloaded: this node cannot do it, or not now; nothing was written.
        """
        if (error := components.writing.not_now) is not None:
            raise error
        opening = Opening(name, self._under_way)

        def take(applier: Applier) -> None:
            if name is None or name not in self._under_way:
                full = applier.sessions.full(name, len(self), _time_of(components))
                if full is not None:
                    raise SessionsFull(full.text)
            opening.count()

        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await components.reading.caught_up()
                await components.applying.at_boundary(take, on_loop=True)
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        except TimeoutError:
            opening.end()
            raise StateUnavailable(late_read("linearizable", timeout_ms, components.writing.backlog)) from None
        except asyncio.CancelledError:
            opening.end()
            raise
        return opening


def _time_of(components: Components) -> int:
    """The lowest timestamp that this leader's next frame can have, in microseconds (rule 5)."""
    newest = components.log.tail.timestamp
    status = components.replica.core.status()
    ahead_us = None if status.leader is None else status.leader.clock_offsets_us.get(status.me.node_id)
    return newest if ahead_us is None else max(newest, wall_clock() - ahead_us)
