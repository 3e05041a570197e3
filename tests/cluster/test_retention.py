"""Expiry of running nodes: each by its own limits, below its own floor, and what holds the rest is told."""

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from quire.cluster.compaction import compaction, snapshotting
from quire.cluster.compaction.retention import Limits
from quire.cluster.errors import Expired
from quire.cluster.node.views.status import node_status, visible_bounds
from quire.log import Expirable
from quire.log.files import ReadOnlyDirectory
from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, applied_index, free_addresses, running_cluster

SEGMENT_BYTES = 64 * 1024
HELD_BYTES = 3 * SEGMENT_BYTES
DEADLINE_S = 60.0
JSON = "application/json"
SETTINGS: dict[str, Any] = {
    "machine": "log",
    "segment_bytes": SEGMENT_BYTES,
    "snapshot_records": 0,
    "snapshot_log_bytes": 2 * SEGMENT_BYTES,
}


def expiry(cluster: RunningCluster, node_id: str = "n1") -> Any:
    """What a node says of its expiry."""
    return node_status(cluster.nodes[node_id].node)["expiry"]


async def written(cluster: RunningCluster, segments: int) -> None:
    """So many segments' worth of records."""
    for _ in range(segments * 2):
        reply = await cluster.ask("n1", "POST", "/records", b"x" * (SEGMENT_BYTES // 2), "application/octet-stream")
        assert reply.status == 200, reply


@pytest.mark.asyncio
async def test_reads_of_old_records_leave_the_index_cache_of_a_node_as_it_is(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, **settings) as cluster:
        await written(cluster, 4)
        log = cluster.nodes["n1"].node.components.log
        assert list(log.segments.cached_indexes) == list(log.segments.bases[:-1])
        await cluster.restart("n1")
        await cluster.ready()
        assert (await cluster.ask("n1", "GET", "/records/1")).status == 200
        assert (
            0 not in cluster.nodes["n1"].node.components.log.segments.cached_indexes
        )  # The record's segment begins at 0.


async def snapshot(cluster: RunningCluster, node_id: str = "n1") -> int:
    reply = await cluster.ask(node_id, "POST", "/admin/snapshot")
    assert reply.status == 200, reply
    return int(reply.document["index"])


async def expire(cluster: RunningCluster, node_id: str = "n1", *, dry_run: bool = False) -> Any:
    body = b'{"dry_run": true}' if dry_run else b"{}"
    return (await cluster.ask(node_id, "POST", "/admin/expire", body, JSON)).document


@pytest.mark.asyncio
async def test_a_node_s_log_stays_within_its_bytes_while_it_is_written(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=HELD_BYTES, **SETTINGS) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            while expiry(cluster)["expired_segments"] < 20:
                await written(cluster, 2)
                await expire(cluster)
        for _ in range(2):
            await written(cluster, 1)
            await snapshot(cluster)
        await expire(cluster)
        node = cluster.nodes["n1"].node
        # The floor is the older of two snapshots, which are a segment apart here, and a segment goes as a whole.
        assert node_status(node)["log_bytes"] <= HELD_BYTES + SEGMENT_BYTES
        lowest = visible_bounds(node).lowest_index
        assert lowest > 0
        reply = await cluster.ask("n1", "GET", "/records/1")
        assert (reply.status, reply.problem, reply.document["lowest_index"]) == (410, "expired", lowest)
        assert (await cluster.ask("n1", "GET", f"/records/{lowest}")).status == 200
        for path in ("/records?from=1", "/records?from=1&to=2", "/records?from=0&kinds=all"):
            reply = await cluster.ask("n1", "GET", path)
            assert (reply.status, reply.problem) == (410, "expired"), path
        with pytest.raises(Expired):  # Whoever has asked for the bounds, and reads when they have moved.
            node.components.reading.read_frames(1, SEGMENT_BYTES)
        assert (await cluster.ask("n1", "GET", f"/records?from={lowest}")).status == 200
        await cluster.restart("n1")
        await cluster.ready()
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index == lowest


@pytest.mark.asyncio
async def test_without_two_snapshots_nothing_expires_and_the_status_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXPIRY_PAUSE_S", 3_600.0)  # Nothing expires but by the calls of this test.
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        await written(cluster, 5)
        for kept in range(2):
            assert (await expire(cluster))["segments"] == 0
            told = expiry(cluster)
            assert told["holds"][0]["what"] == "snapshots"
            assert f"{kept} of 2 snapshots" in told["holds"][0]["why"]
            assert told["held"]["segments"] > 0
            await snapshot(cluster)
            await written(cluster, 1)
        older = older_snapshot(cluster)
        due = await expire(cluster, dry_run=True)
        assert due["segments"] > 0
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index == 0  # A dry run removes nothing.
        assert (await expire(cluster)) == due
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index == due["to_index"] <= older


def older_snapshot(cluster: RunningCluster) -> int:
    kept = node_status(cluster.nodes["n1"].node)["snapshots"]["kept"]
    return int(kept[0]["index"])


@pytest.mark.asyncio
async def test_a_restart_behind_the_older_snapshot_has_all_of_the_log_that_it_needs(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        for _ in range(2):
            await written(cluster, 3)
            await snapshot(cluster)
        await written(cluster, 3)
        newest = await snapshot(cluster)
        await expire(cluster)
        before = cluster.nodes["n1"].node.components.applying.digest
        folder = tmp_path / "n1" / "snapshots" / f"{newest:020d}"
        (folder / "manifest").unlink()
        await cluster.restart("n1")
        await cluster.ready()
        assert cluster.nodes["n1"].node.components.applying.digest == before


@pytest.mark.asyncio
async def test_segments_go_by_age(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_ms=1, **settings) as cluster:
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        async with asyncio.timeout(DEADLINE_S):
            while not expiry(cluster)["expired_segments"]:
                await cluster.ask("n1", "GET", "/healthz")


@pytest.mark.asyncio
@pytest.mark.parametrize("voters", [1, 3])
async def test_clocks_ten_years_ahead_expire_nothing_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voters: int
) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, voters, retention_ms=3_600_000, **settings) as cluster:
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        shown = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: shown() + 10 * 365 * 86_400 * 10**9)
        async with asyncio.timeout(DEADLINE_S):  # A leader learns of the others' clocks from their next echoes.
            while cluster.nodes["n1"].node.components.log.tail.timestamp < shown() // 1_000 + 10**12:
                await written(cluster, 1)
        assert (await expire(cluster))["segments"] == 0
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index == 0


@pytest.mark.asyncio
async def test_what_a_follower_lacks_is_held_and_each_node_has_its_own_floor(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0, "retention_follower_bytes": 1 << 30}
    async with running_cluster(tmp_path, 3, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        await written(cluster, 1)
        await cluster.stop("n3")
        await written(cluster, 3)
        for node_id in ("n1", "n2"):
            await snapshot(cluster, node_id)
        await written(cluster, 2)
        for node_id in ("n1", "n2"):
            await snapshot(cluster, node_id)
        lacked = next(hold for hold in expiry(cluster)["holds"] if hold["what"] == "follower" and "n3" in hold["why"])
        await expire(cluster)
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index <= lacked["index"]
        assert expiry(cluster)["held"]["segments"] > 0
        # What the follower does not know of does not hold it.
        assert [hold["what"] for hold in expiry(cluster, "n2")["holds"]] == ["snapshots"]
        assert (await expire(cluster, "n2"))["segments"] > 0
        floor = visible_bounds(cluster.nodes["n2"].node).lowest_index
        assert visible_bounds(cluster.nodes["n1"].node).lowest_index < floor


class Gate:
    """The way to a node; while it is shut, the streams that it carries stand still."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.opened = asyncio.Event()
        self.opened.set()
        self._back: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1 << 16)
        from_node, to_node = await asyncio.open_connection(*host_and_port(self.target))
        back = asyncio.create_task(self._carry(from_node, writer, held=b"/stream" in first))
        self._back.add(back)
        to_node.write(first)
        await self._carry(reader, to_node, held=False)
        back.cancel()
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(1 << 16):
                if held:
                    await self.opened.wait()
                writer.write(chunk)
                await writer.drain()
        writer.close()


@pytest.mark.asyncio
async def test_a_stream_holds_the_log_up_to_a_limit_and_a_slower_follower_gets_a_snapshot(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    gate = Gate(addresses[0])
    server = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
    relayed = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0, "stream_window_bytes": SEGMENT_BYTES}
    settings |= {"retention_bytes": SEGMENT_BYTES, "retention_follower_bytes": 4 * SEGMENT_BYTES}
    settings["addresses"] = addresses
    async with running_cluster(tmp_path, 3, {"n3": {"n1": relayed}}, **settings) as cluster:
        leader = cluster.nodes["n1"].node
        gate.opened.clear()
        await written(cluster, 3)
        await snapshot(cluster)
        await written(cluster, 1)
        await snapshot(cluster)
        [held] = [hold for hold in expiry(cluster)["holds"] if hold["what"] == "stream" and "n3" in hold["why"]]
        await expire(cluster)
        assert visible_bounds(leader).lowest_index <= held["index"]

        await written(cluster, 3)
        await snapshot(cluster)
        await snapshot(cluster)
        assert not [hold for hold in expiry(cluster)["holds"] if "n3" in hold["why"]]
        await expire(cluster)
        assert visible_bounds(leader).lowest_index > held["index"]

        gate.opened.set()
        async with asyncio.timeout(DEADLINE_S):
            while visible_bounds(cluster.nodes["n3"].node).lowest_index <= held["index"]:
                await cluster.ask("n1", "GET", "/healthz")
            while cluster.nodes["n3"].node.components.applying.digest != leader.components.applying.digest:
                await cluster.ask("n1", "GET", "/healthz")
    server.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"[]", b'{"dry": true}', b'{"dry_run": 1}', b"{"])
async def test_another_body_than_dry_run_is_malformed(tmp_path: Path, body: bytes) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        reply = await cluster.ask("n1", "POST", "/admin/expire", body, JSON)
        assert (reply.status, reply.problem) == (400, "malformed")


def folder_is_removed(snapshots: Path) -> None:
    shutil.rmtree(snapshots)


def newest_lacks_a_chunk(snapshots: Path) -> None:
    (max(snapshots.iterdir()) / "00000000.chunk").unlink()


def older_has_a_truncated_chunk(snapshots: Path) -> None:
    os.truncate(min(snapshots.iterdir()) / "00000000.chunk", 1)


def newest_lacks_its_manifest(snapshots: Path) -> None:
    (max(snapshots.iterdir()) / "manifest").unlink()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "harm",
    [
        folder_is_removed,
        pytest.param(newest_lacks_a_chunk, marks=pytest.mark.full),
        older_has_a_truncated_chunk,
        pytest.param(newest_lacks_its_manifest, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("asked", [True, False])
async def test_nothing_expires_for_a_snapshot_whose_files_are_gone_until_another_stands_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], *, asked: bool
) -> None:
    if asked:
        monkeypatch.setattr(compaction, "EXPIRY_PAUSE_S", 3_600.0)
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=1 << 40, **settings) as cluster:
        node = cluster.nodes["n1"].node
        retention = node.components.compaction.retention
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        await written(cluster, 1)
        with capture_logs() as journal:
            harm(tmp_path / "n1" / "snapshots")
            monkeypatch.setattr(retention, "_limits", Limits(SEGMENT_BYTES, 0, 0))
            async with asyncio.timeout(DEADLINE_S):
                while not any(line["event"] == "snapshot damaged or lost" for line in journal):
                    assert expiry(cluster)["expired_segments"] == 0
                    await (expire(cluster) if asked else cluster.ask("n1", "GET", "/healthz"))
            for _ in range(3):
                assert (await expire(cluster))["segments"] == 0
        lost = node_status(node)["snapshots"]["damaged"]
        assert len(lost) == (2 if harm is folder_is_removed else 1)
        assert len([line for line in journal if line["event"] == "snapshot damaged or lost"]) == len(lost)
        [alarm] = node_status(node)["alarms"]
        assert all(text in alarm for text in (*lost, "so the log cannot expire", "`quire snapshot`"))
        assert visible_bounds(node).lowest_index == 0

        monkeypatch.setattr(snapshotting, "AGAIN_AFTER_S", 0.0)  # No bound of records, bytes or time makes one due.
        async with asyncio.timeout(DEADLINE_S):
            while not expiry(cluster)["expired_segments"]:
                await written(cluster, 1)
                await expire(cluster)
            while node_status(node)["alarms"]:
                await written(cluster, 1)
        assert len(node_status(node)["snapshots"]["kept"]) == 2
        lowest = visible_bounds(node).lowest_index
        assert lowest > 0
        digest = node.components.applying.digest
        await cluster.restart("n1")
        await cluster.ready()
        assert cluster.nodes["n1"].node.components.applying.digest == digest
        assert not node_status(cluster.nodes["n1"].node)["alarms"]


@pytest.mark.asyncio
async def test_a_lost_snapshot_is_replaced_though_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotting, "AGAIN_AFTER_S", 0.0)
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=1 << 40, **settings) as cluster:
        node = cluster.nodes["n1"].node
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        await written(cluster, 1)
        shutil.rmtree(tmp_path / "n1" / "snapshots")
        monkeypatch.setattr(node.components.compaction.retention, "_limits", Limits(SEGMENT_BYTES, 0, 0))
        async with asyncio.timeout(DEADLINE_S):
            while [kept["index"] for kept in node_status(node)["snapshots"]["kept"]] != [applied_index(node)]:
                await cluster.ask("n1", "GET", "/healthz")
        assert node_status(node)["alarms"]  # One of two is there.
        await written(cluster, 1)
        async with asyncio.timeout(DEADLINE_S):
            while node_status(node)["alarms"]:
                await cluster.ask("n1", "GET", "/healthz")


@pytest.mark.asyncio
async def test_without_descriptors_to_look_at_the_snapshots_nothing_expires_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXPIRY_PAUSE_S", 3_600.0)
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        node = cluster.nodes["n1"].node
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        await written(cluster, 1)

        def no_descriptor(path: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files", path)

        with monkeypatch.context() as exhausted, capture_logs() as journal:
            exhausted.setattr(ReadOnlyDirectory, "open", lambda _folder, name: no_descriptor(name))
            for _ in range(3):
                reply = await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)
                assert (reply.status, reply.problem) == (503, "state-unavailable")
            assert "the snapshots cannot be checked" in node_status(node)["alarms"][0]
            assert len([line for line in journal if "cannot be checked" in line["event"]]) == 1
        assert (visible_bounds(node).lowest_index, node.health.failure) == (0, None)
        assert node_status(node)["snapshots"]["damaged"] == []
        assert (await expire(cluster))["segments"] > 0
        assert node_status(node)["alarms"] == []


@pytest.mark.asyncio
async def test_what_becomes_due_after_a_look_at_nothing_stays_until_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXPIRY_PAUSE_S", 3_600.0)
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": 0}
    async with running_cluster(tmp_path, 1, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        for _ in range(2):
            await written(cluster, 2)
            await snapshot(cluster)
        retention = cluster.nodes["n1"].node.components.compaction.retention
        due = retention.due().segments
        assert due > 0
        for checked in (False, True, False):
            ended: asyncio.Future[Expirable] = asyncio.get_running_loop().create_future()
            retention.expire(ended.set_result, checked=checked)
            assert (await asyncio.wait_for(ended, DEADLINE_S)).segments == (due if checked else 0)


@pytest.mark.asyncio
async def test_snapshots_and_expiry_under_load_find_nothing_lost(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"snapshot_log_bytes": SEGMENT_BYTES}
    async with running_cluster(tmp_path, 1, retention_bytes=SEGMENT_BYTES, **settings) as cluster:
        node = cluster.nodes["n1"].node
        async with asyncio.timeout(DEADLINE_S):
            while expiry(cluster)["expired_segments"] < 10:
                await asyncio.gather(written(cluster, 1), expire(cluster), expire(cluster))
        assert node_status(node)["snapshots"]["damaged"] == []
        assert node_status(node)["alarms"] == []
