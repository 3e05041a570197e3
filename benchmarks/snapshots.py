"""How long a snapshot delays commits, and how long a restart takes: `python -m benchmarks.snapshots`.

Runs one node with a machine of KEYS keys in this process, on uvloop. A client writes one command after another; the
benchmark prints the longest commit with and without a snapshot in progress. Then the node restarts from the snapshot.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from quire.cluster.config.serve import ServeConfig
from quire.cluster.node.node import Node
from quire.cluster.node.turn_times import TurnTimes
from quire.cluster.node.views.status import node_status, not_ready_reasons
from quire.cluster.node.writing import FutureWaiter
from quire.cluster.serve.collector import Collector
from quire.log import encode_records, pack, unpack
from quire.replication import Write
from quire.sm import Context

KEYS = 1_000_000
SNAPSHOTS = 5
ROWS_A_PIECE = 10_000
ADDRESS = "127.0.0.1:7999"


class Keys:
    """A map. The command ["fill", n] creates n keys; ["put", key, value] changes one."""

    name = "keys"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        self.values: dict[str, str] = {}

    def check(self, command: Any) -> None:
        """Accept everything; only this benchmark sends commands."""

    def apply(self, command: Any, context: Context) -> Any:
        """Apply the command; return the number of keys."""
        if command[0] == "fill":
            self.values = {f"key-{number:09d}": f"value-{number * 7919:024d}" for number in range(command[1])}
        else:
            self.values[command[1]] = command[2]
        return len(self.values)

    def query(self, request: Any) -> Any:
        """The number of keys."""
        return len(self.values)

    def snapshot(self) -> Iterator[bytes]:
        """Pieces of many keys, each after its length."""
        rows: list[str] = []
        for key, value in self.values.items():
            rows += (key, value)
            if len(rows) == 2 * ROWS_A_PIECE:
                yield from _piece(rows)
                rows = []
        yield from _piece(rows)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Read the pieces."""
        self.values, buffer = {}, bytearray()
        for chunk in chunks:
            buffer += chunk
            while len(buffer) >= 4 and len(buffer) >= 4 + (length := int.from_bytes(buffer[:4], "little")):
                piece: Any = unpack(buffer[4 : 4 + length])
                rows = iter(piece)
                self.values.update(zip(rows, rows, strict=True))
                del buffer[: 4 + length]


def _piece(rows: list[str]) -> Iterator[bytes]:
    packed = pack(rows)
    yield len(packed).to_bytes(4, "little") + packed


def config_of(directory: Path) -> ServeConfig:
    """The configuration of one node that takes snapshots only on request."""
    return ServeConfig(
        node="n1",
        listen=ADDRESS,
        members={"n1": ADDRESS},
        data_dir=directory,
        machine="benchmarks.snapshots:Keys",
        snapshot_records=0,
    )


async def started(directory: Path) -> tuple[Node, float]:
    """A node that is ready and leads, and the seconds this took."""
    began = time.monotonic()
    node = Node(config_of(directory))
    await node.start()
    async with asyncio.timeout(60):
        while not_ready_reasons(node) or node.components.applying.applied_index < (
            node.formed.replica.core.commit_index if node.formed else 1
        ):
            await asyncio.to_thread(time.sleep, 0.001)
    return node, time.monotonic() - began


async def longest_commit(node: Node, until: asyncio.Event) -> tuple[float, int]:
    """Write one command after another until the event; return the longest commit in ms, and their number."""
    longest, count = 0.0, 0
    while not until.is_set():
        began = time.monotonic()
        payload = encode_records([["put", f"key-{count % KEYS:09d}", "changed"]])
        await node.components.writing.write(Write(payload, 1, owner=FutureWaiter(applied=True)))
        longest, count = max(longest, time.monotonic() - began), count + 1
    return longest * 1000, count


async def measure(directory: Path) -> None:
    """Measure and print."""
    collector, turns = Collector(), TurnTimes()
    collector.start()
    turns.start(lambda: True, collector.look)
    node, _ = await started(directory)
    await node.components.writing.write(Write(encode_records([["fill", KEYS]]), 1, owner=FutureWaiter(applied=True)))
    await asyncio.sleep(1)
    for number in range(SNAPSHOTS):
        idle, busy = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(3.0, idle.set)
        without, _ = await longest_commit(node, idle)
        writing = asyncio.create_task(longest_commit(node, busy))
        began = time.monotonic()
        manifest = await node.components.compaction.snapshotting.take()
        took = time.monotonic() - began
        busy.set()
        beside, count = await writing
        pause = node_status(node)["snapshots"]["pause_ms"]
        print(
            f"snapshot {number}: {manifest.size / 1e6:.0f} MB in {took:.2f} s; the fork paused {pause:.1f} ms; longest "
            f"of {count} commits meanwhile {beside:.1f} ms, without a snapshot {without:.1f} ms"
        )
    await node.stop()
    for _ in range(3):
        node, took = await started(directory)
        print(f"restart: ready and applied after {took:.2f} s, {node.components.applying.applied_index} records")
        await node.stop()
    turns.stop()
    collector.stop()


def main() -> None:
    """Measure in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=None, help="parent of the data's directory; default: the system's"
    )
    parent = parser.parse_args().directory
    with (
        tempfile.TemporaryDirectory(dir=parent) as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(Path(directory) / "n1"))
    print(f"{os.cpu_count()} processors")


if __name__ == "__main__":
    main()
