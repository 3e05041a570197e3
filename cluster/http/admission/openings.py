"""Openings of sessions: how many names may be open, including those that are being opened.

A named session stays until it is closed or expires, so one client that opens many names fills the table for everybody.
The leader therefore counts before it appends (`Sessions.full`), including openings in progress: otherwise a whole burst
would be admitted before its first record is applied. One token's name has a share of them (`Sessions.share_full`), or
the holder of one token would lock out all others. A newly elected leader first applies what was committed before it
led, so that no name is left out of the count and successive leaders do not exceed the limit together.

This is not checked at apply: records appended by an older version or under another limit must have the same result on
every node.
"""

import asyncio
from collections import Counter
from typing import NamedTuple

from quire.log import wall_clock
from quire.sm import Applier

from ...errors import ClusterError, SessionsFull
from ...node.components import Components
from ...node.writing import FutureWaiter, WriteReply


class _Wanted(NamedTuple):
    """A name to open, and the token's name whose share it is of; None without one, as for an admin."""

    name: str
    owner: str | None


class Opening(FutureWaiter):
    """The waiter of one opening. Its name counts as being opened until its outcome is known, however late."""

    def __init__(self, wanted: _Wanted | None, under_way: "SessionOpenings") -> None:
        super().__init__(applied=True)
        self._wanted = wanted
        self._under_way = under_way
        self._is_counted = False

    def count(self) -> None:
        """Count the name."""
        if self._wanted is not None:
            self._under_way.began(self._wanted)
            self._is_counted = True

    def end(self) -> None:
        """Stop counting the name."""
        if self._is_counted and self._wanted is not None:
            self._is_counted = False
            self._under_way.ended(self._wanted)

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
        self._under_way: Counter[_Wanted] = Counter()
        self._owned: Counter[str | None] = Counter()

    def __len__(self) -> int:
        """How many names are being opened."""
        return len(self._under_way)

    def began(self, wanted: _Wanted) -> None:
        """Count a name that is being opened."""
        if wanted not in self._under_way:
            self._owned[wanted.owner] += 1
        self._under_way[wanted] += 1

    def ended(self, wanted: _Wanted) -> None:
        """Stop counting one of its openings."""
        self._under_way[wanted] -= 1
        if not self._under_way[wanted]:
            del self._under_way[wanted]
            self._owned[wanted.owner] -= 1
            if not self._owned[wanted.owner]:
                del self._owned[wanted.owner]

    async def admit(
        self, components: Components, timeout_ms: int, name: str | None, owner: str | None = None
    ) -> Opening:
        """The waiter for the record that opens this name, or a session without one. Call `end` if it is not appended.

        `components` are those of this node. `owner` is the token's name whose share of the names it is of; None without
        one, and for an admin. It takes at most `timeout_ms`.

        Raises:
            SessionsFull: no more such sessions can be opened; nothing was written.
            NotLeader, NoLeader, StateUnavailable, Overloaded: this node cannot do it, or not now; nothing was written.
        """
        if (error := components.writing.not_now) is not None:
            raise error
        wanted = None if name is None else _Wanted(name, owner)
        opening = Opening(wanted, self)

        def take(applier: Applier) -> None:
            if wanted is None or wanted not in self._under_way:
                self._refuse(applier, wanted, _time_of(components))
            opening.count()

        try:
            await components.reads.before_append(take, timeout_ms)
        except (ClusterError, asyncio.CancelledError):
            opening.end()
            raise
        return opening

    def _refuse(self, applier: Applier, wanted: _Wanted | None, timestamp: int) -> None:
        """Return if there is room for another name, or another session without one. Raises SessionsFull."""
        table = applier.sessions
        full = table.full(None if wanted is None else wanted.name, len(self), timestamp)
        if full is None and wanted is not None and wanted.owner is not None:
            full = table.share_full(wanted.name, wanted.owner, self._owned[wanted.owner], timestamp)
        if full is not None:
            raise SessionsFull(full.text)


def _time_of(components: Components) -> int:
    """The lowest timestamp that this leader's next frame can have, in microseconds (rule 5)."""
    newest = components.log.tail.timestamp
    status = components.replica.core.status()
    ahead_us = None if status.leader is None else status.leader.clock_offsets_us.get(status.me.node_id)
    return newest if ahead_us is None else max(newest, wall_clock() - ahead_us)
