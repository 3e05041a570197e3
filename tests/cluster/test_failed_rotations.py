"""A leader whose disk fails in a rotation, which is on its event loop: it halts as after any other failure."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from quire.log import files
from tests.cluster.running import running_cluster

DEADLINE_S = 60.0
TIMEOUT_MS = 600_000
JSON = "application/json"


async def test_a_write_whose_rotation_fails_is_answered_at_once_with_the_reason_and_its_node_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(
        tmp_path, 1, request_timeout_ms=TIMEOUT_MS, machine="log", segment_bytes=1 << 20
    ) as cluster:
        intact = files.FileStorage.sync

        def faulty(storage: files.FileStorage) -> None:
            if threading.current_thread() is threading.main_thread():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            intact(storage)

        monkeypatch.setattr(files.FileStorage, "sync", faulty)
        node, body = cluster.nodes["n1"].node, b'"' + b"x" * 400_000 + b'"'
        async with asyncio.timeout(DEADLINE_S):
            writes = (cluster.ask("n1", "POST", "/records", body, JSON) for _ in range(6))
            refused = [reply for reply in await asyncio.gather(*writes) if reply.status != 200]
            await node.health.ended.wait()
        unknown = [reply.document["detail"] for reply in refused if reply.problem == "outcome-unknown"]
        assert unknown
        for detail in unknown:
            assert "rotating to a new segment: [Errno 5] Input/output error" in detail
