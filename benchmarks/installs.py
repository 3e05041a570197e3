"""The speed of installing a snapshot, compared with a bare copy: `python -m benchmarks.installs`.

Uses two processes on one machine. The bare copy receives messages of 1 MiB from an aiohttp WebSocket and writes each to
a file with fdatasync. The install does what a node does: it requests chunks, verifies, writes and syncs each one, and
then reads and verifies all of them again, for a machine that keeps nothing. Both move the same number of bytes, in
turn.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import ClientSession, WSMsgType, web

from quire.cluster.compaction.installing import put_all
from quire.cluster.compaction.serving import StoreSource
from quire.log import FileDirectory, Tail
from quire.replication.net.hello import SNAPSHOT_PATH, PeerInfo
from quire.replication.net.snapshots import SnapshotFetch, SnapshotServer
from quire.replication.net.trust import Trust
from quire.sm import Applier, Boundary, Owner, Sessions, SnapshotPart, SnapshotStore, write_snapshot

MIB = 1 << 20
SIZE_MIB = 512
ROUNDS = 5
HOST = "127.0.0.1"
INDEX = 1_000
CLUSTER = bytes(range(16))
OWNER = Owner(CLUSTER, ("bytes", 1))
BARE_PATH = "/bare"


class Bytes:
    """A machine whose snapshot is a number of random mebibytes, and which keeps no state."""

    name = "bytes"
    version = 1

    def __init__(self, initial: Any = 0) -> None:
        self._mebibytes = int(initial)

    def check(self, command: Any) -> None:
        """Not used."""

    def apply(self, command: Any, context: Any) -> Any:
        """Not used."""

    def query(self, request: Any) -> Any:
        """Not used."""

    def snapshot(self) -> Iterator[bytes]:
        """The random bytes."""
        return (os.urandom(MIB) for _ in range(self._mebibytes))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Read everything and keep nothing."""
        for _ in chunks:
            pass


def store_in(directory: Path) -> SnapshotStore:
    """The snapshot store in a directory."""
    return SnapshotStore.open(FileDirectory(directory), OWNER)


def who(node_id: str) -> PeerInfo:
    """The identity of a node in this benchmark."""
    return PeerInfo(CLUSTER, node_id, node_id.encode().ljust(16, b"."), 1, f"{HOST}:1")


async def serve(directory: Path, mebibytes: int, ready: Connection) -> None:
    """Write a snapshot, report the port, and serve both copies until the process is killed."""
    store = store_in(directory)
    boundary = Boundary(tail=Tail(INDEX, 1, 1, 1))
    write_snapshot(store.begin(INDEX), OWNER, boundary, Applier(Bytes(mebibytes)).content())
    store.complete(INDEX)
    app = web.Application()
    app.router.add_get(
        SNAPSHOT_PATH, SnapshotServer(lambda: who("n1"), StoreSource(store), Trust((), lambda _: True)).serve
    )
    app.router.add_get(BARE_PATH, bare_server(mebibytes))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    ready.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def bare_server(mebibytes: int) -> Any:
    """A handler that sends a number of mebibytes."""
    piece = os.urandom(MIB)

    async def give(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for _ in range(mebibytes):
            await socket.send_bytes(piece)
        await socket.close()
        return socket

    return give


async def bare(session: ClientSession, address: str, directory: Path) -> float:
    """The seconds of a bare copy."""
    began = time.perf_counter()
    with (directory / "bare").open("wb", buffering=0) as file:
        async with session.ws_connect(f"http://{address}{BARE_PATH}", max_msg_size=2 * MIB) as socket:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    await asyncio.to_thread(write_through, file.fileno(), message.data)
    seconds = time.perf_counter() - began
    (directory / "bare").unlink()
    return seconds


def write_through(descriptor: int, data: bytes) -> None:
    """Write and sync."""
    os.write(descriptor, data)
    os.fdatasync(descriptor)


async def install(session: ClientSession, address: str, directory: Path) -> tuple[float, float]:
    """The seconds until a snapshot is fetched and synced, and until it is read again and complete."""
    store = store_in(directory)
    began = time.perf_counter()
    async with SnapshotFetch.dialled(
        session, lambda: who("n2"), ("n1", address), INDEX, Trust((), lambda _: False)
    ) as fetch:
        part = await asyncio.to_thread(SnapshotPart.begin, store, await fetch.manifest())
        await put_all(part, fetch.chunks(part.missing()))
    fetched = time.perf_counter() - began
    await asyncio.to_thread(part.restore, lambda: Bytes(0), Sessions)
    part.complete()
    whole = time.perf_counter() - began
    store.remove(INDEX)
    return fetched, whole


async def measure(directory: Path, address: str, mebibytes: int, rounds: int) -> None:
    """Measure both in turn, and print a table."""
    bares, fetches, wholes = list[float](), list[float](), list[float]()
    async with ClientSession() as session:
        for _ in range(rounds):
            bares.append(await bare(session, address, directory))
            fetched, whole = await install(session, address, directory)
            fetches.append(fetched)
            wholes.append(whole)
    print(f"| {mebibytes} MiB, median of {rounds} | MB/s | of the bare copy |\n|---|---:|---:|")
    base = statistics.median(bares)
    for name, seconds in (("bare copy", bares), ("fetched, verified, synced", fetches), ("and read again", wholes)):
        took = statistics.median(seconds)
        print(f"| {name} | {mebibytes * MIB / took / 1e6:.0f} | {100 * base / took:.0f}% |")


def run_server(directory: Path, mebibytes: int, ready: Connection) -> None:
    """The main function of the serving process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(directory, mebibytes, ready))


def main() -> None:
    """Measure in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=SIZE_MIB)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--directory", type=Path, default=None, help="parent of the data's directory; default: the system's"
    )
    arguments = parser.parse_args()
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        given, taken = Path(folder) / "given", Path(folder) / "taken"
        given.mkdir()
        taken.mkdir()
        port, ready = spawning.Pipe(duplex=False)
        server = spawning.Process(target=run_server, args=(given, arguments.mebibytes, ready), daemon=True)
        server.start()
        try:
            address = f"{HOST}:{port.recv()}"
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure(taken, address, arguments.mebibytes, arguments.rounds))
        finally:
            server.kill()
            server.join()


if __name__ == "__main__":
    main()
