"""Nodes whose files somebody takes away: they acknowledge nothing, others go on, and the process stays."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from quire.log import LogOptions
from quire.replication import replica
from tests.cluster.running import RunningCluster, running_cluster, started

SETTINGS: dict[str, Any] = {"election_timeout_ms": 2_000, "heartbeat_ms": 200}
DEADLINE_S = 60.0
COMMAND, JSON = b'{"commands": [["add", 1]]}', "application/json"

DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "without its promise": lambda folder: (folder / "promise").unlink(),
    "without its lock": lambda folder: (folder / "lock").unlink(),
}


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask("n2", "GET", "/metrics")


@pytest.mark.full
@pytest.mark.parametrize("damage", ["removed", "without its promise"])
async def test_a_leader_whose_files_are_taken_away_acknowledges_nothing_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(replica, "MARK_SYNC_S", 0.05)
    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        await cluster.commands("n1", ["add", 1])
        n1 = cluster.nodes["n1"].node
        DAMAGES[damage](tmp_path / "n1")
        await until(cluster, lambda: n1.health.failure is not None)
        health = await cluster.ask("n1", "GET", "/healthz")
        assert (health.status, health.problem) == (503, "not-ready")
        assert f"cp /proc/{os.getpid()}/fd/N" in health.document["detail"]
        assert (await cluster.ask("n1", "GET", "/readyz")).document["detail"] == health.document["detail"]
        assert (await cluster.ask("n1", "GET", "/state?consistency=local")).status == 503
        assert not n1.health.ended.is_set()
        async with asyncio.timeout(DEADLINE_S):
            while (await cluster.ask("n2", "POST", "/commands", COMMAND, JSON)).status != 200:
                pass
        assert not n1.leadership.is_leader


@pytest.mark.full
async def test_a_cluster_whose_directories_are_all_removed_acknowledges_nothing_more(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        await cluster.commands("n1", ["add", 1])
        for node_id in cluster.nodes:
            shutil.rmtree(tmp_path / node_id)
        for _ in range(10):
            assert (await cluster.ask("n1", "POST", "/commands", COMMAND, JSON)).status != 200
        await until(cluster, lambda: all(running.node.health.stranded for running in cluster.nodes.values()))
        for node_id in cluster.nodes:
            assert (await cluster.ask(node_id, "GET", "/readyz")).status == 503


@pytest.mark.full
async def test_no_node_is_accused_through_rotation_snapshots_expiry_and_an_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "MARK_SYNC_S", 0.005)
    settings: dict[str, Any] = {
        "segment_bytes": 1 << 16,
        "retention_bytes": 1 << 17,
        "retention_follower_bytes": 0,
        **SETTINGS,
    }
    large = b'{"commands": [%s]}' % b", ".join([b'["add", 1]'] * 2_000)
    async with running_cluster(tmp_path, snapshot_records=8_000, **settings) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        async with asyncio.timeout(DEADLINE_S):
            while cluster.nodes["n1"].node.components.log.bounds.lowest_index < 10_000:
                await cluster.ask("n1", "POST", "/commands", large, JSON)
        cluster.nodes["n3"] = await started(config)
        await cluster.ready()
        assert cluster.nodes["n3"].node.components.log.bounds.lowest_index > 0  # It installed a snapshot.
        assert [running.node.health.failure for running in cluster.nodes.values()] == [None] * 3


@pytest.mark.parametrize("damage", ["removed", "moved", "without its promise", "without its lock"])
def test_a_cluster_is_not_formed_in_a_directory_that_was_taken_away(tmp_path: Path, damage: str) -> None:
    data_dir = DataDir.open(tmp_path / "n1", "n1", LogOptions())
    try:
        DAMAGES[damage](tmp_path / "n1")
        with pytest.raises(DataDirRefused, match="restart this node"):
            data_dir.format("n1", b"")
    finally:
        data_dir.close()
