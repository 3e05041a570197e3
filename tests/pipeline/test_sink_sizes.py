"""The sink's commit with a real client and real nodes whose `max_request_bytes` is raised."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.client import Client
from quire.cluster.client.pipeline import WINDOW_BYTES
from quire.log import FileDirectory, pack
from quire.pipeline.sink.commit import Target, TaskResult, commit
from quire.pipeline.sink.errors import RowsRefused
from quire.pipeline.sink.spool import SpoolWriter
from quire.pipeline.sink.state import SPOOL, SinkState
from tests.cluster.running import running_cluster

LIMIT = WINDOW_BYTES + (1 << 20)
HEADS_BYTES = 10
"""Of the message's array, and of the text."""


def spooled(folder: FileDirectory, name: str, commands: list[Any]) -> TaskResult:
    """What a task makes of one partition."""
    writer = SpoolWriter(folder, f"{SPOOL}{name}", 0)
    packed = [pack(command) for command in commands]
    for each in packed:
        writer.add(each)
    sizes = [len(each) for each in packed]
    return TaskResult(0, writer.finished(), max(sizes), sizes.index(max(sizes)))


async def test_a_batch_with_commands_of_any_legal_size_is_written_and_a_larger_one_leaves_no_plan(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    folder = FileDirectory(str(spool))
    state = SinkState(folder)
    settings: dict[str, Any] = {"max_request_bytes": LIMIT, "check_invariants": False}
    async with running_cluster(tmp_path, machine="log", **settings) as cluster:
        connect = partial(Client, cluster.address("n3"), session="sink", timeout_s=60.0, halt_on_failure=True)

        async def write(batch: int, name: str, commands: list[Any]) -> int:
            results = [spooled(folder, name, commands)]
            return (await commit(state, Target("c" * 32, "sink"), connect, results, batch, fails=True)).commands

        largest = "x" * (LIMIT - HEADS_BYTES)
        with pytest.raises(RowsRefused, match=f"partition 0, row 1: TOO_LARGE: .* {LIMIT - 4} .* {LIMIT - 5} "):
            await write(0, "too large", ["first", largest + "x", "last"])
        assert state.plan() is None
        assert await write(0, "fixed", ["first", largest, "last", largest]) == 4
        assert await write(1, "next", ["next"]) == 1
