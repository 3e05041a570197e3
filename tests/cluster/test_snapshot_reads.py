"""A snapshot that a backup reads is kept for a while after each request, and a damaged chunk is not given."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from quire.cluster.client import NotFound, connect
from quire.cluster.compaction.serving import PINNED_S, PINS_LIMIT, SnapshotReads
from quire.cluster.errors import CorruptHere, Malformed, SnapshotUnknown
from quire.log.simulated import Disk
from quire.sm import Applier, ArithmeticMachine, Owner, SnapshotStore, snapshot_name, write_snapshot
from quire.sm.snapshots.manifest import decode_manifest
from quire.sm.snapshots.store import KEPT_SNAPSHOTS, chunk_name
from tests.cluster.running import RunningCluster, running_cluster
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


async def taken(cluster: RunningCluster, node_id: str) -> int:
    """The index of a snapshot that a node has just taken, after one more command."""
    await cluster.commands("n1", ["add", 1])
    reply = await cluster.ask(node_id, "POST", "/admin/snapshot")
    assert reply.status == 200, reply
    return int(reply.document["index"])


@pytest.mark.asyncio
async def test_any_node_gives_the_genesis_and_its_snapshot_whole(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        for node_id in cluster.nodes:
            server = cluster.address(node_id)
            index = await taken(cluster, node_id)
            async with connect(server) as client:
                files, status = client.files, await client.status(server)
                raw = await files.snapshot_manifest(index, server)
                manifest = decode_manifest(raw, node_id)
                numbers = range(len(manifest.chunks))
                chunks = [await files.snapshot_chunk(index, number, server) for number in numbers]

                assert await files.genesis(server) == await files.frames(0, 1, status["history"], server, 1)
            assert raw == (tmp_path / node_id / "snapshots" / snapshot_name(index) / "manifest").read_bytes()
            assert sha256(b"".join(chunks)).hexdigest() == status["snapshots"]["kept"][-1]["sha256"]


@pytest.mark.asyncio
async def test_a_node_keeps_the_snapshot_that_is_read_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        compaction, clock = cluster.nodes["n1"].node.components.compaction, Clock()
        monkeypatch.setattr(compaction.reads, "_now", clock)
        server = cluster.address("n1")
        async with connect(server) as client:
            read = await taken(cluster, "n1")
            await client.files.snapshot_manifest(read, server)
            later = [await taken(cluster, "n1") for _ in range(KEPT_SNAPSHOTS + 1)]
            assert compaction.store.indices == [read, *later[-KEPT_SNAPSHOTS:]]

            clock.now += PINNED_S - 1
            assert await client.files.snapshot_chunk(read, 0, server)
            clock.now += PINNED_S - 1
            await taken(cluster, "n1")
            assert await client.files.snapshot_chunk(read, 0, server)
            clock.now += PINNED_S
            await taken(cluster, "n1")

            with pytest.raises(NotFound, match=f"there is no snapshot at {read} on this node, which has those at"):
                await client.files.snapshot_chunk(read, 0, server)


@pytest.mark.asyncio
async def test_a_node_refuses_what_is_no_index_and_gives_no_damaged_chunk(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        index = await taken(cluster, "n1")
        for path in ("x", "-1", str(2**64), f"{index}/x", f"{index}/-1", f"{index}/1", f"{index}/0?from=1"):
            reply = await cluster.ask("n1", "GET", f"/admin/snapshots/{path}")
            assert (reply.status, reply.problem) == (400, "malformed"), path

        (tmp_path / "n1" / "snapshots" / snapshot_name(index) / chunk_name(0)).write_bytes(b"rot")

        reply = await cluster.ask("n1", "GET", f"/admin/snapshots/{index}/0")
        assert (reply.status, reply.problem) == (503, "corrupt-here")
        reply = await cluster.ask("n1", "GET", f"/admin/snapshots/{index}/0")
        assert (reply.status, reply.problem) == (404, "snapshot-unknown")
