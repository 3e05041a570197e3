"""Fetches that overlap: a newer one, a stop, an earlier failure. One uses the fetched part at a time."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.cluster.compaction import installing as module
from quire.cluster.compaction.installing import Installing
from quire.log import Tail
from quire.log.simulated import Disk
from quire.replication.core import actions, events
from quire.replication.net.snapshots import SnapshotFetch, SnapshotRefused
from quire.sm import (
    Applier,
    ArithmeticMachine,
    Boundary,
    Manifest,
    Owner,
    Sessions,
    SnapshotStore,
    write_snapshot,
)

OWNER = Owner(bytes(range(16)), ("arithmetic", 1))
VOTER = ["n1", b"1" * 16, "n1:1", "voter"]
INDEX = 500
DEADLINE_S = 10.0


class Gated(Disk):
    """A disk whose syncs wait for the test, if it says so; others see how many wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0

    def step(self, operation: str, name: str, life: int) -> None:
        if operation == "sync":
            self.syncs += 1
            assert self.gate.wait(DEADLINE_S), "nobody opened the gate"
        super().step(operation, name, life)


class Leader:
    """The other end of a fetch: one snapshot, which it may refuse."""

    def __init__(self) -> None:
        boundary = Boundary(Tail(INDEX, 7, 1_800_000_000_000_000, 0xABCD), 0, [VOTER], ((0, 0), (7, 90)), bytes(16))
        self.store = SnapshotStore.open(Disk().directory(), OWNER)
        content = Applier(ArithmeticMachine()).content()
        write_snapshot(self.store.begin(INDEX), self.store.owner, boundary, content, chunk_bytes=2)
        self.complete: Manifest = self.store.complete(INDEX)
        self.dials = 0
        self.refuses = False

    @asynccontextmanager
    async def dialled(self, *_: object) -> AsyncGenerator["Leader"]:
        self.dials += 1
        if self.refuses:
            raise SnapshotRefused("says the test")
        yield self

    async def manifest(self) -> bytes:
        return self.complete.encode()

    async def chunks(self, numbers: Sequence[int]) -> AsyncIterator[tuple[int, bytes]]:
        for number in numbers:
            yield number, self.store.chunk(self.complete, number)


class Told:
    """A driver that keeps what a fetch reports, and what continues from an install."""

    def __init__(self) -> None:
        self.fetched: list[int] = []
        self.failed: list[int] = []

    def step(self, event: events.Event) -> None:
        match event:
            case events.SnapshotFetched(stream_id):
                self.fetched.append(stream_id)
            case events.FetchFailed(stream_id):
                self.failed.append(stream_id)
            case _:
                raise AssertionError(event)


class Follower:
    """Whose fetches these are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk, self.leader, self.told = Gated(), Leader(), Told()
        self.faults: list[Exception] = []
        monkeypatch.setattr(SnapshotFetch, "dialled", self.leader.dialled)
        monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.0)
        store = SnapshotStore.open(self.disk.directory(), OWNER)
        dial = cast("Any", (None, None, None))
        machine, sessions = ArithmeticMachine(), Sessions()
        after = cast("Any", SimpleNamespace(applying=SimpleNamespace(applier=Applier(machine, sessions=sessions))))
        step = self.told.step
        self.installing = Installing(
            store, step, ArithmeticMachine, Sessions, dial, lambda _: "n1:1", after, self.faults.append
        )

    def fetch(self, stream_id: int) -> None:
        self.installing.fetch_snapshot(actions.FetchSnapshot(stream_id, "n1", INDEX))


async def until(is_so: Callable[[], object]) -> None:
    """Until it is so: a thread does it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("syncs", [1, 3])
async def test_a_newer_fetch_begins_when_the_earlier_one_writes_no_more_and_it_alone_reports(
    monkeypatch: pytest.MonkeyPatch, syncs: int
) -> None:
    follower = Follower(monkeypatch)
    follower.disk.gate.clear()
    follower.fetch(1)
    await until(lambda: follower.disk.syncs)
    while follower.disk.syncs < syncs:  # Up to a chunk.
        follower.disk.gate.set()
        follower.disk.gate.clear()
        await asyncio.sleep(0)

    follower.fetch(2)
    follower.fetch(3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert follower.leader.dials == 1
    follower.disk.gate.set()
    await until(lambda: follower.told.fetched)

    assert (follower.told.fetched, follower.told.failed, follower.faults) == ([3], [], [])
    follower.installing.place_snapshot(INDEX)
    assert follower.installing.installed(INDEX).applied_index == INDEX
    await follower.installing.stop()


@pytest.mark.asyncio
async def test_a_stop_waits_for_what_a_fetch_and_the_one_before_it_still_write(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch)
    follower.disk.gate.clear()
    follower.fetch(1)
    await until(lambda: follower.disk.syncs)
    follower.fetch(2)
    stopping = asyncio.create_task(follower.installing.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()

    follower.disk.gate.set()
    async with asyncio.timeout(DEADLINE_S):
        await stopping
    assert (follower.told.fetched, follower.leader.dials) == ([], 1)


@pytest.mark.asyncio
async def test_only_the_snapshot_that_was_fetched_is_placed_and_an_earlier_failure_ends_with_the_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follower = Follower(monkeypatch)
    installing = follower.installing
    follower.leader.refuses = True
    follower.fetch(1)
    await until(lambda: follower.told.failed)
    assert "says the test" in installing.failure
    with pytest.raises(OSError, match="no snapshot at"):
        installing.place_snapshot(INDEX)

    follower.leader.refuses = False
    follower.fetch(2)
    await until(lambda: follower.told.fetched)
    with pytest.raises(OSError, match="no snapshot at"):
        installing.place_snapshot(INDEX - 1)
    installing.place_snapshot(INDEX)
    installing.installed(INDEX)

    assert installing.failure == ""
    assert installing.document()["index"] is None
    await installing.stop()
