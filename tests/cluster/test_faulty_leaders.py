"""A leader with a permanent fault loses the lead, and the healthy majority continues; a faulty follower reports it."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.node.views.status import node_status, not_ready_reasons
from quire.replication.core.fitness import Level
from tests.cluster.running import RunningCluster, applied_index, running_cluster

SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 16, "election_timeout_ms": 2_000, "heartbeat_ms": 200}
DEADLINE_S = 30.0
LARGE = b'{"commands": [%s]}' % b", ".join([b'["add", 0]'] * 1_000)
JSON = "application/json"


def without_room(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on no file in this folder grows; the other nodes' disks are as they were."""
    allocate = os.posix_fallocate

    def full(descriptor: int, begin: int, length: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, begin, length)

    monkeypatch.setattr(os, "posix_fallocate", full)


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask("n2", "GET", "/healthz")


async def written_through(cluster: RunningCluster, node_id: str) -> None:
    """A write is acknowledged through a node; it may be refused before."""
    async with asyncio.timeout(DEADLINE_S):
        while (await cluster.ask(node_id, "POST", "/commands", LARGE, JSON)).status != 200:
            pass


def level(cluster: RunningCluster, node_id: str) -> int:
    return int(node_status(cluster.nodes[node_id].node)["fitness"]["level"])


def leader_of(cluster: RunningCluster) -> str | None:
    return next((node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader), None)


@pytest.mark.soak
@pytest.mark.asyncio
async def test_a_leader_whose_disk_stays_full_hands_over_and_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        without_room(monkeypatch, tmp_path / "n1")
        async with asyncio.timeout(DEADLINE_S):
            while leader_of(cluster) in ("n1", None) or level(cluster, "n1") != Level.NO_ROOM:
                await cluster.ask("n2", "POST", "/commands", LARGE, JSON)
        for _ in range(3):
            await written_through(cluster, "n2")
        assert leader_of(cluster) in ("n2", "n3")
        monkeypatch.undo()
        await until(cluster, lambda: level(cluster, "n1") < Level.NO_ROOM)


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_leader_whose_machine_alone_fails_hands_over_and_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("says the test")

    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        applying = cluster.nodes["n1"].node.components.applying
        monkeypatch.setattr(applying.applier, "_apply_batch", no_memory)
        await cluster.ask("n2", "POST", "/commands", LARGE, JSON)
        await until(cluster, lambda: leader_of(cluster) in ("n2", "n3"))
        for _ in range(3):
            await written_through(cluster, "n2")
        await until(cluster, lambda: level(cluster, "n1") == Level.MACHINE_FAILED)
        assert "MemoryError: says the test" in not_ready_reasons(cluster.nodes["n1"].node)[0]


@pytest.mark.soak
@pytest.mark.asyncio
async def test_a_follower_that_cannot_append_says_so_and_the_leader_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        without_room(monkeypatch, tmp_path / "n3")
        async with asyncio.timeout(DEADLINE_S):
            while level(cluster, "n3") != Level.NO_ROOM:
                await written_through(cluster, "n1")
        node = cluster.nodes["n3"].node
        told = f"free space on the volume of {tmp_path / 'n3'}"
        assert any(told in alarm for alarm in node_status(node)["alarms"])
        assert (await cluster.ask("n3", "GET", "/state?consistency=local")).status == 200
        await written_through(cluster, "n3")
        assert leader_of(cluster) != "n3"
        monkeypatch.undo()
        await until(cluster, lambda: level(cluster, "n3") < Level.NO_ROOM)
        other = cluster.nodes["n1"].node
        await until(
            cluster,
            lambda: (
                (applied_index(node), node.components.applying.digest)
                == (applied_index(other), other.components.applying.digest)
            ),
        )
