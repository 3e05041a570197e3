"""The hop from a follower to its leader; to the follower, the leader dies at a chosen step of a call."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, free_addresses, running_cluster

END_OF_HEAD = b"\r\n\r\n"


class Call:
    """One connection over the hop: the head of its first request has arrived, and both ends wait."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.reader = reader
        self.writer = writer
        self.leader_reader: asyncio.StreamReader
        self.leader_writer: asyncio.StreamWriter

    @property
    def body_bytes(self) -> int:
        lines = self.head.lower().split(b"\r\n")
        lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        return lengths[0] if lengths else 0

    async def connect(self, leader: str) -> None:
        self.leader_reader, self.leader_writer = await asyncio.open_connection(*host_and_port(leader))

    async def send(self, body_bytes: int) -> None:
        """Pass the head and a part of the body to the leader."""
        self.leader_writer.write(self.head + await self.reader.readexactly(body_bytes))
        await self.leader_writer.drain()

    async def answer_head(self) -> bytes:
        return await self.leader_reader.readuntil(END_OF_HEAD)

    async def pass_on(self) -> None:
        """Pass everything on, both ways, until either end closes."""
        self.leader_writer.write(self.head)
        ways = [_copy(self.reader, self.leader_writer), _copy(self.leader_reader, self.writer)]
        await asyncio.wait([asyncio.create_task(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)

    def abort(self) -> None:
        for writer in (self.writer, getattr(self, "leader_writer", None)):
            if writer is not None:
                writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()


Step = Callable[[Call], Awaitable[None]]


class Hop:
    """Passes everything on, until `dies` names the step at which a call's connection breaks. Peers always pass."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.address = ""
        self.dies: Step | None = None
        self.calls: list[bytes] = []
        self.at_accept = False
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        host, port = host_and_port(self.address) if self.address else ("127.0.0.1", 0)
        self._server = await asyncio.start_server(self._serve, host, port)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    def refuse(self) -> None:
        """Accept no further connection."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        call = Call(b"", reader, writer)
        try:
            if self.at_accept:
                return
            call.head = await reader.readuntil(END_OF_HEAD)
            await call.connect(self.leader)
            if call.head.startswith(b"GET /peer"):
                await call.pass_on()
                return
            self.calls.append(call.head.partition(b"\r\n")[0])
            await (self.dies or Call.pass_on)(call)
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # One of the ends closed first.
        finally:
            call.abort()
            self._serving.discard(task)

    async def close(self) -> None:
        self.refuse()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@asynccontextmanager
async def cluster_with_hop(directory: Path, **settings: Any) -> AsyncGenerator[tuple[RunningCluster, Hop], None]:
    """Three nodes; n2 reaches the leader n1 only over the hop."""
    addresses = free_addresses(3)
    hop = Hop(addresses[0])
    await hop.open()
    try:
        links = {"n2": {"n1": hop.address}}
        async with running_cluster(directory, addresses=addresses, links=links, **settings) as cluster:
            yield cluster, hop
    finally:
        await hop.close()
