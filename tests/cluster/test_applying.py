"""Applying from a log that cannot be read for a while."""

import asyncio

import pytest

from quire.cluster.node.applying import Applying
from quire.log import FrameHeader
from quire.log.simulated import Disk
from quire.sm import Applied, Applier, ApplyFailed, ArithmeticMachine
from tests.log.histories import open_log

DEADLINE_S = 60.0


class Told:
    """A node that keeps what applying reports."""

    def __init__(self) -> None:
        self.frames = 0
        self.failures: list[Exception] = []

    def applied(self, applied: Applied) -> None:
        self.frames += 1

    def at_boundary(self, header: FrameHeader) -> None:
        pass

    def apply_failed(self, failure: ApplyFailed) -> None:
        self.failures.append(failure)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


@pytest.mark.asyncio
async def test_what_is_committed_is_applied_once_the_log_can_be_read_again_and_nothing_fails_before() -> None:
    disk = Disk()
    log = open_log(disk)
    for _ in range(200):
        log.append([["add", 1]] * 4)
    log.flush()
    assert len(log.segment_bases) > 3
    node = Told()
    applying = Applying(log, Applier(ArithmeticMachine()), node)
    disk.exhausted = True

    applying.apply_to(log.durable_index)
    reached = asyncio.create_task(applying.reached(log.durable_index))
    for _ in range(10):  # Whatever else is committed meanwhile asks again.
        await asyncio.sleep(0)
        applying.apply_to(log.durable_index)

    assert (node.failures, node.frames, reached.done()) == ([], 0, False)

    disk.exhausted = False
    async with asyncio.timeout(DEADLINE_S):
        await reached
    assert (node.failures, applying.applier.applied_index) == ([], log.durable_index)
