"""Reads of a log whose files cannot be opened for a while, and of a machine that lags."""

from typing import Any, cast

import pytest

from quire.cluster.errors import ResourcesExhaustedError, StateUnavailable
from quire.cluster.node.applying import Applying
from quire.cluster.node.reading import Consistency, Reading
from quire.log.simulated import Disk
from quire.replication.lag import Lag
from quire.sm import Applier, ArithmeticMachine
from tests.log.histories import open_log


class Committed:
    """What a read asks of the replica."""

    is_lag_known = True

    def __init__(self, commit_index: int, lag: int = 0) -> None:
        self.commit_index = commit_index
        self._lag = lag

    def lag(self, clock: int) -> Lag:
        return Lag(self._lag, 0, 0.0)


def test_a_read_that_finds_no_descriptor_is_refused_for_now() -> None:
    disk = Disk()
    log = open_log(disk)
    for number in range(200):
        log.append([number])
    log.flush()
    assert len(log.segment_bases) > 3
    reading = Reading(log, cast("Any", Committed(log.durable_index)), cast("Any", None), lambda: None)

    disk.exhausted = True
    with pytest.raises(ResourcesExhaustedError):
        reading.read(0)
    with pytest.raises(ResourcesExhaustedError):
        reading.read_frames(0, 1 << 20)

    disk.exhausted = False
    assert reading.read(0).value == 0
    assert reading.read_frames(0, 1 << 20)[1] > 0


async def test_a_read_that_allows_a_lag_is_answered_at_exactly_that_lag_and_refused_above_it() -> None:
    log = open_log(Disk())
    applying = Applying(log, Applier(ArithmeticMachine()), cast("Any", None))
    reading = Reading(log, cast("Any", Committed(0, lag=3)), applying, lambda: None)

    assert await reading.query(None, Consistency.LOCAL, 3, lambda found: found.applied_index) == 0
    with pytest.raises(StateUnavailable, match="lags by 3 records, 2 are allowed"):
        await reading.query(None, Consistency.LOCAL, 2, lambda found: found)
