"""Reads of a log whose files cannot be opened for a while, and of a machine that lags."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from quire.cluster.errors import NoLeader, ResourcesExhaustedError, StateUnavailable
from quire.cluster.node.applying import Applying, Visibility
from quire.cluster.node.reading import Consistency, Reading, Staleness
from quire.log import Log
from quire.log.payload import stored_record
from quire.log.simulated import Disk
from quire.replication.lag import NO_APPLY_LAG, NO_LAG, ApplyLag, Lag
from quire.sm import Applier, ArithmeticMachine
from tests.log.histories import open_log

T = TypeVar("T")


class Committed:
    """What a read asks of the replica, and of the leadership."""

    is_known = True
    halted = None

    def __init__(self, commit_index: int, lag: Lag = NO_LAG, apply_lag: ApplyLag = NO_APPLY_LAG) -> None:
        self.commit_index = commit_index
        self.leading_from: int | None = None
        self.other_code = ""
        self.refusals: list[NoLeader | None] = []
        self._lag = lag
        self.unapplied = apply_lag

    @property
    def core(self) -> "Committed":
        return self

    @property
    def lags(self) -> "Committed":
        return self

    def not_leader(self) -> NoLeader | None:
        return self.refusals.pop(0) if self.refusals else None

    def own(self, clock: int) -> Lag:
        return self._lag

    def most_unapplied(self, applied_index: int, clock: int) -> ApplyLag:
        return self.unapplied


def test_a_read_that_finds_no_descriptor_is_refused_for_now() -> None:
    disk = Disk()
    log = open_log(disk)
    for number in range(200):
        log.append([number])
    log.flush()
    assert len(log.segments.bases) > 3
    committed = Committed(log.durable_index)
    reading = Reading(log, cast("Any", committed), cast("Any", None), committed)

    disk.exhausted = True
    with pytest.raises(ResourcesExhaustedError):
        reading.frame(0)
    with pytest.raises(ResourcesExhaustedError):
        reading.read_frames(0, 1 << 20)

    disk.exhausted = False
    assert stored_record(reading.frame(0), 0).value == 0
    assert reading.read_frames(0, 1 << 20)[1] > 0


def reading_of(replica: Committed) -> tuple[Reading, Applying]:
    log = open_log(Disk())
    applying = Applying(log, Applier(ArithmeticMachine()), Visibility())
    return Reading(log, cast("Any", replica), applying, replica), applying


async def ask(reading: Reading, allowed: Staleness) -> int:
    return await reading.query(None, Consistency.LOCAL, allowed, lambda found: found.applied_index)


async def test_a_read_that_allows_a_lag_is_answered_at_exactly_that_lag_and_refused_above_it() -> None:
    reading, _ = reading_of(Committed(0, lag=Lag(3, 100, 2.0)))

    assert await ask(reading, Staleness(records=3)) == 0
    with pytest.raises(StateUnavailable, match="lags by 3 records, 2 are allowed"):
        await ask(reading, Staleness(records=2))
    assert await ask(reading, Staleness(seconds=2.0)) == 0
    with pytest.raises(StateUnavailable, match=r"lags by 2.00 s, 1.9 s are allowed"):
        await ask(reading, Staleness(seconds=1.9))


async def test_records_that_were_received_and_are_not_applied_count_towards_what_a_read_allows() -> None:
    reading, _ = reading_of(Committed(0, Lag(3, 100, 2.0), ApplyLag(12_981, 40.0)))

    assert await ask(reading, Staleness(records=12_984, seconds=40.0)) == 0
    with pytest.raises(StateUnavailable, match="3 records are not received, 12981 are not applied"):
        await ask(reading, Staleness(records=12_983))
    with pytest.raises(StateUnavailable, match=r"lags by 40.00 s"):
        await ask(reading, Staleness(seconds=39.0))


class Busy(Applying):
    """A machine in the middle of a frame, until it is told to go on."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, Applier(ArithmeticMachine()), Visibility())
        self.ends = asyncio.Event()

    async def at_boundary(self, read: Callable[[Applier], T], *, on_loop: bool = False) -> T:
        await self.ends.wait()
        return read(self.applier)


async def test_a_read_that_waited_until_it_was_too_old_is_refused() -> None:
    replica, log = Committed(0), open_log(Disk())
    applying = Busy(log)
    reading = Reading(log, cast("Any", replica), applying, replica)
    waiting = asyncio.create_task(ask(reading, Staleness(records=5)))
    await asyncio.sleep(0)
    assert not waiting.done()

    replica.unapplied = ApplyLag(6, 1.0)
    applying.ends.set()

    with pytest.raises(StateUnavailable, match="lags by 6 records"):
        await waiting


async def test_a_leader_s_read_waits_until_what_was_committed_before_it_led_is_applied() -> None:
    replica = Committed(7)
    replica.leading_from = 6
    reading, applying = reading_of(replica)
    waiting = asyncio.create_task(
        reading.query(None, Consistency.LEADER, Staleness(), lambda found: found.applied_index)
    )
    await asyncio.sleep(0)
    assert not waiting.done()

    applying.applier.applied_index = 7
    applying.apply_to(0)  # It wakes who waits.

    assert await waiting == 7


async def test_a_leader_s_read_that_waited_through_another_s_leadership_waits_for_what_that_one_committed() -> None:
    replica = Committed(7)
    replica.leading_from = 6
    reading, applying = reading_of(replica)
    waiting = asyncio.create_task(
        reading.query(None, Consistency.LEADER, Staleness(), lambda found: found.applied_index)
    )
    await asyncio.sleep(0)

    replica.leading_from = 9  # Another led, and this node leads again.
    for applied_index in 7, 10:
        assert not waiting.done()
        applying.applier.applied_index = applied_index
        applying.apply_to(0)  # It wakes who waits.
        await asyncio.sleep(0)

    assert await waiting == 10


async def test_a_leader_s_read_that_waited_beyond_its_leadership_is_refused() -> None:
    replica = Committed(7)
    replica.leading_from = 6
    _, applying = reading_of(replica)
    replica.refusals = [None, NoLeader()]
    reading = Reading(open_log(Disk()), cast("Any", replica), applying, replica)
    waiting = asyncio.create_task(reading.query(None, Consistency.LEADER, Staleness(), lambda found: found))
    await asyncio.sleep(0)

    applying.applier.applied_index = 7
    applying.apply_to(0)  # It wakes who waits.

    with pytest.raises(NoLeader):
        await waiting


@pytest.mark.parametrize("led_from", [None, 9], ids=["deposed", "led again"])
async def test_a_leader_s_read_is_refused_if_another_led_while_it_waited_for_its_turn(led_from: int | None) -> None:
    replica = Committed(7)
    replica.leading_from = 6
    reading, applying = reading_of(replica)
    applying.applier.applied_index = 7

    async def turn() -> None:
        replica.leading_from = led_from
        replica.refusals = [NoLeader()] if led_from is None else []

    with pytest.raises(NoLeader if led_from is None else StateUnavailable):
        await reading.query(None, Consistency.LEADER, Staleness(), lambda found: found, turn)
