"""A process that can start no thread: what needs one is refused, and tried again."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.compaction.forked import Child, in_thread
from quire.log import GroupFlusher
from quire.log.simulated import Disk
from tests.cluster.running import running_cluster
from tests.log.histories import open_log


def _no_thread(_: threading.Thread) -> Any:
    raise RuntimeError("can't start new thread")


@pytest.mark.asyncio
async def test_a_snapshot_that_finds_no_thread_is_refused_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        await cluster.commands("n1", ["add", 1])
        with monkeypatch.context() as without:
            without.setattr(threading.Thread, "start", _no_thread)
            refused = await cluster.ask("n1", "POST", "/admin/snapshot")
        node = cluster.nodes["n1"].node
        assert (refused.status, refused.problem) == (503, "snapshot-failed")
        assert node.formed is not None
        assert "can't start new thread" in node.formed.compaction.snapshotting.failure
        assert node.health.failure is None
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200
        assert node.formed.compaction.snapshotting.failure == ""


@pytest.mark.asyncio
async def test_without_a_thread_no_child_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    monkeypatch.setattr("os.fork", lambda: pytest.fail("nobody would reap it"))
    with pytest.raises(OSError, match="can't start new thread"):
        Child(lambda _: b"")


@pytest.mark.asyncio
async def test_a_pool_that_can_start_no_thread_is_as_a_device_that_refuses_and_other_errors_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise RuntimeError("a fault")

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(OSError, match="can't start new thread"):
            await in_thread(len, "ab")
    assert await in_thread(len, "ab") == 2
    with pytest.raises(RuntimeError, match="a fault"):
        await in_thread(fails)


@pytest.mark.asyncio
async def test_the_thread_that_flushes_a_standalone_log_is_there_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(Disk())
    flusher = GroupFlusher(log)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", _no_thread)
        log.append(["a"])
        await flusher.flushed(1)
    assert log.durable_index == 1
    await flusher.close()
