"""Reads on one node: committed records from its log, and the state of its machine.

It reads the log and asks the driver for barriers, and changes neither.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple, TypeVar

from quire.log import Bounds, Frame, FrameCorrupt, IndexExpired, Log, ResourcesExhausted, wall_clock
from quire.replication import Replica
from quire.sm import Applier, ApplyFailed, Refused

from ..errors import (
    CorruptHere,
    Expired,
    MachineFailed,
    NotCommitted,
    OutOfBounds,
    QueryRefused,
    ResourcesExhaustedError,
    StateUnavailable,
)
from .applying import Applying
from .writing import LeaderState, Waiter

T = TypeVar("T")


class Consistency(StrEnum):
    """Which writes a read must have seen (rule 12)."""

    LINEARIZABLE = "linearizable"
    LEADER = "leader"
    LOCAL = "local"


class Staleness(NamedTuple):
    """How stale a local read may be, by the leader's last report: in records, in seconds, or both."""

    records: int | None = None
    seconds: float | None = None


class StateAnswer(NamedTuple):
    """The machine's answer to a query, or its whole state; and its applied_index and digest at that point."""

    state: Any
    applied_index: int
    digest: bytes
    unapplied: int
    """How many records this node knew to be committed but had not applied."""


async def at_once() -> None:
    """No wait: what is read has a small, bounded cost."""


class Reading:
    """Reads only records that are committed, and durable on this node.

    Implements `ReadEvents` of `quire.replication.ports`.
    """

    def __init__(self, log: Log, replica: Replica[Waiter], applying: Applying, leadership: LeaderState) -> None:
        self._log = log
        self._replica = replica
        self._applying = applying
        self._leadership = leadership
        self._barriers: dict[int, asyncio.Future[int | None]] = {}
        self._read_ids = count(1)

    @property
    def bounds(self) -> Bounds:
        """The visible range, [lowest_index, highest_index)."""
        return Bounds(self._log.bounds.lowest_index, min(self._replica.core.commit_index, self._log.durable_index))

    def frame(self, index: int) -> Frame:
        """The frame that holds the record at `index`.

        Raises:
            OutOfBounds, NotCommitted, Expired, CorruptHere: it cannot be read here.
            ResourcesExhaustedError: no file can be opened now.
        """
        bounds = self.bounds
        if index < bounds.lowest_index:
            raise Expired(index, bounds.lowest_index)
        if index >= self._log.bounds.highest_index:
            raise OutOfBounds(index, bounds.lowest_index, bounds.highest_index)
        if index >= bounds.highest_index:
            raise NotCommitted(index, bounds.highest_index)
        with _from_log(index):
            return self._log.reader.frame(index)

    def read_frames(self, from_index: int, max_bytes: int) -> tuple[bytes, int]:
        """Raw frames from the one that holds `from_index`, at least one if there is any; and the next index.

        Raises:
            Expired: the frame has expired.
            CorruptHere: the frame is corrupt on this node.
            ResourcesExhaustedError: no file can be opened now.
        """
        bounds = self.bounds
        if from_index >= bounds.highest_index:
            return b"", from_index
        with _from_log(from_index):
            boundary = self._log.lookup.boundary_at_or_below(from_index)
            return self._log.read_frames(boundary, max_bytes, to_index=bounds.highest_index)

    def boundary_within(self, from_index: int, to_index: int, max_bytes: int) -> tuple[int, int]:
        """The last frame boundary up to which the frames that hold [from_index, to_index), a range that is visible and
        not empty, have at most `max_bytes`; and their bytes. It is one frame at least.

        Raises as `read_frames`.
        """
        with _from_log(from_index):
            lookup = self._log.lookup
            end = lookup.find(to_index - 1)[4]
            return lookup.boundary_within(lookup.boundary_at_or_below(from_index), end, max_bytes)

    async def query(
        self,
        request: Any,
        consistency: Consistency,
        allowed: Staleness,
        encode: Callable[[StateAnswer], T],
        turn: Callable[[], Awaitable[None]] = at_once,
    ) -> T:
        """The machine's answer to a request, as fresh as `consistency` requires (rule 12); for None, its whole state.

        A leader answers only once its machine has applied everything that was committed before it led. `allowed` is for
        a local read. Either is checked again when the answer is ready: it may have waited for its turn, or a frame.

        The result is what `encode` returns. It is called before the machine can change its answer, in the machine's own
        thread if it has one. `turn` is awaited before the machine is asked; then only the end of a frame that is being
        applied, if one is.

        Raises:
            What `encode` and `turn` raise.
            NotLeader, NoLeader, StateUnavailable: this node cannot answer, or not now.
            QueryRefused, MachineFailed: the machine refused the request, or failed.
        """
        if (halted := self._replica.core.halted) is not None:
            raise StateUnavailable(f"this node has halted: {halted}")
        if consistency is Consistency.LOCAL:
            self._refuse_older_than(allowed, self._applying.applier.applied_index)
        elif (error := self._leadership.not_leader()) is not None:
            raise error
        try:
            if consistency is Consistency.LINEARIZABLE:
                await self.linearize()
            elif consistency is Consistency.LEADER:
                await self.caught_up()
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        applied_index = 0

        def ask(applier: Applier) -> T:
            nonlocal applied_index
            unapplied, applied_index = self._applying.unapplied, applier.applied_index
            try:
                answer = applier.query(request)
            except ApplyFailed as failure:
                raise StateUnavailable(str(failure)) from failure
            except Refused as refusal:
                raise QueryRefused(refusal.code, refusal.text) from None
            except Exception as error:  # The machine may raise anything. A query changes nothing: the node continues.
                raise MachineFailed("query", f"{type(error).__name__}: {error}") from error
            return encode(StateAnswer(answer, applier.applied_index, applier.digest, unapplied))

        await turn()
        encoded = await self._applying.at_boundary(ask)
        self._refuse_outdated(consistency, allowed, applied_index)
        return encoded

    async def caught_up(self) -> None:
        """Return when this leader has applied everything that was committed before it led.

        Raises:
            NotLeader, NoLeader: it no longer leads.
            ApplyFailed: the machine has stopped applying.
        """
        # Repeat if another node led meanwhile: what that one committed counts, too.
        while (
            led_from := self._leadership.leading_from
        ) is not None and self._applying.applier.applied_index <= led_from:
            await self._applying.reached(led_from + 1)
        if (error := self._leadership.not_leader()) is not None:
            raise error

    def _refuse_outdated(self, consistency: Consistency, allowed: Staleness, applied_index: int) -> None:
        """Refuse an answer, given at `applied_index`, that is not as fresh as it was when the read began."""
        if consistency is Consistency.LOCAL:
            self._refuse_older_than(allowed, applied_index)
        elif consistency is Consistency.LEADER:
            if (error := self._leadership.not_leader()) is not None:
                raise error
            led_from = self._leadership.leading_from
            if led_from is not None and applied_index <= led_from:  # It lost its lead meanwhile, and led again.
                raise StateUnavailable("the leadership changed during the read")

    async def linearize(self) -> None:
        """Return when the machine has applied everything that was acknowledged before this call (rule 12).

        Raises:
            NotLeader, NoLeader, StateUnavailable: this node cannot confirm it.
            ApplyFailed: the machine has stopped applying.
        """
        await self._applying.reached(await self.barrier())

    def _refuse_older_than(self, allowed: Staleness, applied_index: int) -> None:
        """Refuse the answer of a machine that has applied everything below `applied_index`, if it is too stale.

        The records that the state lacks were either not received, or received but not applied; both counts are added.
        Of the two times, the longer one counts: the first unapplied record is older than the first one not received.
        """
        if allowed == Staleness():
            return
        if not self._replica.lags.is_known:
            raise StateUnavailable("this node hears no leader, so it does not know how far it lags")
        clock = wall_clock()
        lag, apply_lag = self._replica.lags.own(clock), self._replica.lags.most_unapplied(applied_index, clock)
        records, seconds = lag.records + apply_lag.records, max(lag.seconds, apply_lag.seconds)
        counted = f"{lag.records} records are not received, {apply_lag.records} are not applied"
        if allowed.records is not None and records > allowed.records:
            raise StateUnavailable(f"this node lags by {records} records, {allowed.records} are allowed: {counted}")
        if allowed.seconds is not None and seconds > allowed.seconds:
            raise StateUnavailable(f"this node lags by {seconds:.2f} s, {allowed.seconds:g} s are allowed: {counted}")

    async def barrier(self) -> int:
        """The index that a linearizable read must have seen (rule 12)."""
        read_id = next(self._read_ids)
        barrier: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._barriers[read_id] = barrier
        try:
            self._replica.driver.ask_read(read_id)
            index = await barrier
        finally:
            self._barriers.pop(read_id, None)
        if index is None:
            raise self._leadership.not_leader() or StateUnavailable("the leadership changed during the read")
        return index

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A barrier was passed at `index`; with None, this node cannot pass it."""
        barrier = self._barriers.pop(read_id, None)
        if barrier is not None and not barrier.done():
            barrier.set_result(index)


@contextmanager
def _from_log(index: int) -> Generator[None]:
    """Raise what reading the log at an index raises as the errors of a node."""
    try:
        yield
    except IndexExpired as error:
        raise Expired(index, error.lowest) from error
    except FrameCorrupt as error:
        raise CorruptHere(index, str(error)) from error
    except ResourcesExhausted as error:
        raise ResourcesExhaustedError from error


def late_read(consistency: str, timeout_ms: int, backlog: str) -> str:
    """Why a read was given up: its timeout, and what waits to be applied."""
    return f"no {consistency} read was possible within {timeout_ms} ms" + (f": {backlog}" if backlog else "")
