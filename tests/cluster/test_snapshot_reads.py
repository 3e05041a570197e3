"""A snapshot that a backup reads is kept for a while after each request, and a damaged chunk is not given."""

import asyncio

import pytest

from quire.cluster.compaction.serving import PINNED_S, PINS_LIMIT, SnapshotReads
from quire.cluster.errors import CorruptHere, Malformed, SnapshotUnknown
from quire.log.simulated import Disk
from quire.sm import Applier, ArithmeticMachine, Owner, SnapshotStore, write_snapshot
from quire.sm.snapshots.store import KEPT_SNAPSHOTS
from tests.sm.frames import Frames

OWNER = Owner(bytes(range(16)), ("arithmetic", 1))


class Clock:
    """Monotonic seconds that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """A store that keeps the two newest snapshots and those that are read, as a node does."""

    def __init__(self) -> None:
        self.directory = Disk().directory()
        self.clock = Clock()
        self.store = SnapshotStore.open(self.directory, OWNER)
        self.reads = SnapshotReads(self.store, self.clock)
        self._frames, self._applier = Frames(), Applier(ArithmeticMachine())

    def take(self) -> int:
        """Apply a command, take a snapshot, and remove those that nobody needs."""
        self._applier.apply(self._frames.records([["add", 1]]))
        index = self._applier.applied_index
        write_snapshot(self.store.begin(index), OWNER, self._applier.boundary, self._applier.content())
        self.store.complete(index)
        self.store.retain(self.reads.pinned)
        return index

    def manifest(self, index: int) -> bytes:
        return asyncio.run(self.reads.manifest(index))

    def chunk(self, index: int, number: int) -> bytes:
        return asyncio.run(self.reads.chunk(index, number))


def test_a_snapshot_that_is_read_outlives_newer_ones_until_nobody_reads_it_for_a_minute() -> None:
    kept = Kept()
    index = kept.take()
    raw = kept.manifest(index)
    for _ in range(3):
        kept.clock.now += PINNED_S - 1
        kept.take()
        kept.take()
        assert kept.chunk(index, 0)
    assert kept.manifest(index) == raw

    kept.clock.now += PINNED_S
    kept.take()

    assert index not in kept.store.indices
    assert len(kept.store.indices) == KEPT_SNAPSHOTS
    with pytest.raises(SnapshotUnknown, match=f"there is no snapshot at {index} on this node, which has those at"):
        kept.manifest(index)


def test_of_many_that_are_read_the_one_read_last_the_longest_ago_is_given_up() -> None:
    kept = Kept()
    indices = []
    for _ in range(PINS_LIMIT + 1):
        indices.append(kept.take())
        kept.manifest(indices[-1])
        kept.chunk(indices[0], 0)

    kept.take()
    kept.take()

    assert indices[0] in kept.store.indices
    assert indices[1] not in kept.store.indices
    assert len(kept.reads.pinned) == PINS_LIMIT


def test_a_chunk_that_the_snapshot_does_not_have_is_refused() -> None:
    kept = Kept()
    index = kept.take()

    with pytest.raises(Malformed, match=f"the snapshot at {index} has 1 chunks, numbered from 0"):
        kept.chunk(index, 1)
    with pytest.raises(SnapshotUnknown, match="which has those at"):
        kept.chunk(index + 1, 0)


def test_a_damaged_chunk_is_not_given_and_the_snapshot_no_longer_counts() -> None:
    kept = Kept()
    index = kept.take()
    folder = kept.directory.existing("snapshots").existing(f"{index:020d}")
    chunk = folder.open("00000000.chunk")
    chunk.write_at(0, b"rot")
    chunk.close()

    with pytest.raises(CorruptHere, match="fails its crc32c"):
        kept.chunk(index, 0)

    assert index not in kept.store.indices
