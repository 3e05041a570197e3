"""Expiry on a replica: which thread removes files, and what goes on meanwhile."""

import threading

import pytest

from quire.log import Expiry, Log, LogOptions, wall_clock
from quire.log.simulated import faulty
from tests.replication import running
from tests.replication.loopback import until
from tests.replication.running import Running, alone
from tests.replication.world import CLUSTER_ID

REMOVED = 6


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment takes a few writes."""
    monkeypatch.setattr(running, "LOG_OPTIONS", LogOptions(segment_bytes=1 << 12, max_frame_bytes=1 << 11))


async def fill(node: Running) -> None:
    """Write more than `REMOVED` segments."""
    while len(node.log.segment_bases) < REMOVED + 3:
        node.owner.placements.clear()
        node.write("x" * 1_500)
        await until(lambda: bool(node.owner.placements))
    await until(lambda: node.owner.applied_index == node.log.tail.index)


class Expiring:
    """Begins removals, so many, and writes a record during each."""

    def __init__(self, node: Running, removals: int = REMOVED) -> None:
        self.node = node
        self.removals = removals
        self.begun: list[int] = []
        self.is_over = False

    def begin(self) -> Expiry | None:
        expiry = None
        if len(self.begun) < self.removals:
            expiry = self.node.disk.begin_expiry(max_bytes=0, floor=self.node.log.durable_index)
        if expiry is None:
            self.is_over = True
        else:
            self.begun.append(expiry.base_index)
            self.node.write("meanwhile")
        return expiry


async def test_segments_go_in_the_writer_s_thread_and_not_on_the_loop() -> None:
    async with alone() as node:
        await fill(node)
        threads: set[str] = set()

        def record(operation: str, name: str) -> bool:
            if operation == "remove" or (operation, name) == ("sync folder", "disk/log"):
                threads.add(threading.current_thread().name)
            return False

        node.device.failing = record
        expiring = Expiring(node)
        node.replica.expire(expiring.begin)
        await until(lambda: expiring.is_over)

        assert len(expiring.begun) == REMOVED
        assert threads == {"quire-writer"}
        assert not {f"{base:020d}.store" for base in expiring.begun} & set(node.device.names("log"))


async def test_what_was_written_meanwhile_is_flushed_before_the_next_segment_goes() -> None:
    async with alone() as node:
        await fill(node)
        before = len(node.device.journal)
        expiring = Expiring(node)
        node.replica.expire(expiring.begin)
        await until(lambda: expiring.is_over)

        stores = [what for what, name in node.device.journal[before:] if name.endswith(".store")]
        kinds = [what for what in stores if what in ("remove", "sync")]
        assert kinds[: 2 * REMOVED] == ["remove", "sync"] * REMOVED


async def test_no_segment_is_looked_for_once_its_removal_has_begun() -> None:
    async with alone() as node:
        await fill(node)
        node.device.holding_syncs = threading.Event()
        lowest = node.log.bounds.lowest_index
        expiring = Expiring(node, 1)
        node.replica.expire(expiring.begin)
        assert node.log.bounds.lowest_index > lowest
        assert node.replica.core.state.log.lowest_index == node.log.bounds.lowest_index
        node.device.holding_syncs.set()
        await until(lambda: expiring.is_over)


async def test_a_removal_that_fails_halts_the_node_and_loses_nothing_above() -> None:
    async with alone() as node:
        await fill(node)
        node.device.failing = lambda operation, _: operation == "remove"
        node.replica.expire(Expiring(node).begin)
        await until(lambda: node.owner.halts)

        assert node.log.failure is not None
        assert len(node.owner.halts) == 1


async def test_a_stop_amid_an_expiry_leaves_a_log_that_opens_above_what_went() -> None:
    device = faulty.Disk()
    async with alone(device) as node:
        await fill(node)
        expiring = Expiring(node)
        node.replica.expire(expiring.begin)
        await until(lambda: len(expiring.begun) > 1)
    node.log.close()
    assert not expiring.is_over
    again = Log.open(device.directory(), running.LOG_OPTIONS, cluster_id=CLUSTER_ID, clock=wall_clock, standalone=False)
    assert again.bounds == node.log.bounds
