"""Expiry on a replica: which thread removes files, and what goes on meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import pytest

from quire.log import Expiry, Log, LogOptions, Tail, wall_clock
from quire.log.simulated import faulty
from quire.replication.core import actions, events
from quire.replication.core.messages import Snapshot
from quire.replication.ports import Device
from tests.replication import running
from tests.replication.installing import deep
from tests.replication.loopback import DEADLINE_S, until
from tests.replication.running import Running, alone, connected
from tests.replication.test_exhausted import Closing, Installer, Reminders
from tests.replication.world import CLUSTER_ID, SimNode, World

REMOVED = 6


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment takes a few writes."""
    monkeypatch.setattr(running, "LOG_OPTIONS", LogOptions(segment_bytes=1 << 12, max_frame_bytes=1 << 11))


async def fill(node: Running) -> None:
    """Write more than `REMOVED` segments."""
    while len(node.log.segments.bases) < REMOVED + 3:
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
        node.replica.driver.expire(expiring.begin)
        await until(lambda: expiring.is_over)

        assert len(expiring.begun) == REMOVED
        assert threads == {"quire-writer"}
        assert not {f"{base:020d}.store" for base in expiring.begun} & set(node.device.names("log"))


async def test_a_segment_of_zeros_is_written_in_the_writer_s_thread_and_not_on_the_loop() -> None:
    device = faulty.Disk()
    device.writes_zeros = True
    async with alone(device) as node:
        threads: list[str] = []

        def record(operation: str, name: str) -> bool:
            if operation == "allocate" and name.startswith("9999"):
                threads.append(threading.current_thread().name)
            return False

        device.failing = record
        await fill(node)

        assert set(threads) == {"quire-writer"}
        assert len(threads) >= REMOVED


async def test_what_was_written_meanwhile_is_flushed_before_the_next_segment_goes() -> None:
    async with alone() as node:
        await fill(node)
        before = len(node.device.journal)
        expiring = Expiring(node)
        node.replica.driver.expire(expiring.begin)
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
        node.replica.driver.expire(expiring.begin)
        assert node.log.bounds.lowest_index > lowest
        assert node.replica.core.state.log.lowest_index == node.log.bounds.lowest_index
        node.device.holding_syncs.set()
        await until(lambda: expiring.is_over)


async def test_a_removal_that_fails_halts_the_node_and_loses_nothing_above() -> None:
    async with alone() as node:
        await fill(node)
        node.device.failing = lambda operation, _: operation == "remove"
        node.replica.driver.expire(Expiring(node).begin)
        await until(lambda: node.owner.halts)

        assert node.log.failure is not None
        assert len(node.owner.halts) == 1


async def test_a_stop_amid_an_expiry_leaves_a_log_that_opens_above_what_went() -> None:
    device, stopping = faulty.Disk(), threading.Event()
    async with alone(device) as node:
        await fill(node)
        expiring = Expiring(node)

        def hold(operation: str, _: str) -> bool:
            if operation == "remove" and len(expiring.begun) > 1:
                stopping.wait(DEADLINE_S)
            return False

        device.failing = hold
        node.replica.driver.expire(expiring.begin)
        await until(lambda: len(expiring.begun) > 1)
        asyncio.get_running_loop().call_soon(stopping.set)  # Once the stop below waits for the thread.
    node.log.close()
    assert (len(expiring.begun), expiring.is_over) == (2, False)
    again = Log.open(device.directory(), running.LOG_OPTIONS, cluster_id=CLUSTER_ID, clock=wall_clock, standalone=False)
    assert again.bounds == node.log.bounds


class Deaf(Closing):
    """Links and streams on which nobody hears anything."""

    def send(self, node_id: str, message: object) -> None:
        """It is lost."""

    def send_up(self, stream_id: int, message: object) -> None:
        """It is lost."""


class InBlocks(Reminders):
    """A device that knows whether a block of the writer's thread runs, and lets a tick pass before each."""

    def __init__(self, world: World, tick: Callable[[], None]) -> None:
        super().__init__(world)
        self.tick = tick
        self.runs = False

    def write(self, block: Callable[[], None], done: Callable[[BaseException | None, int], None]) -> None:
        self.tick()

        def run() -> None:
            self.runs = True
            block()
            self.runs = False

        super().write(run, done)


def installing(applied: int) -> tuple[SimNode, list[tuple[str, bool]], list[bool]]:
    """Install a snapshot above a log of many segments, of which the machine has applied so much.

    Return the node; each removal of a store, and whether it was in the writer's thread; whether the disk answered then.
    """
    world = deep()
    node = world["n2"]
    removed: list[tuple[str, bool]] = []
    answers: list[bool] = []
    owner = Installer()
    core = node.core
    assert core is not None

    def tick() -> None:
        world.now += core.state.options.election_timeout_us - 1
        driver.step(events.Tick())
        answers.append(core.disk_answers)

    device = InBlocks(world, tick)
    driver = connected(core, node.running, owner.ports, Deaf(), cast("Device", device))
    core.writer.begin_exclusive(core.state.awake)
    owner.applied_index = applied

    def record(operation: str, name: str) -> bool:
        if operation == "remove" and name.endswith(".store"):
            removed.append((name, device.runs))
        return False

    node.storage.failing = record
    tail = Tail(1_000, 1, world.clock(), 7)
    driver.carry_out_step(events.Tick(), [actions.Install(1, Snapshot(*tail, 0, ((0, 0),)))])
    assert (owner.halts, node.log.tail) == ([], tail)
    return node, removed, answers


def test_an_install_removes_what_the_machine_has_applied_in_the_writer_s_thread() -> None:
    segments = len(deep()["n2"].log.segments.bases)
    _, removed, answers = installing(10_000)
    assert [beside for _, beside in removed] == [True] * (segments - 1) + [False]
    assert all(answers)


def test_an_install_leaves_what_the_machine_applies_now_to_the_reset() -> None:
    bases = list(deep()["n2"].log.segments.bases)
    _, removed, _ = installing(bases[2] + 1)
    assert [name for name, beside in removed if beside] == [f"{base:020d}.store" for base in bases[:2]]
    assert len(removed) == len(bases)
