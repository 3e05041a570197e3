"""Established connections of a running node that go silent, while new ones pass."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from quire.replication.address import host_and_port
from tests.cluster.running import free_addresses, running_cluster

DEADLINE_S = 25.0  # Pings of 10 and 30 s, with half of that for a pong, noticed it later.


class Relay:
    """Passes connections on to a node. `silence` stops those that there are; they stay open."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.accepted = 0
        self._ways: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        self.accepted += 1
        try:
            there, back = await asyncio.open_connection(*host_and_port(self.target))
        except ConnectionError:
            writer.close()
            return
        self._writers += writer, back
        for way in (_copy(reader, back), _copy(there, writer)):
            self._ways.add(asyncio.create_task(way))

    def silence(self) -> None:
        """Nothing more passes, not even the end of a connection."""
        for way in self._ways:
            way.cancel()

    async def close(self) -> None:
        """End every connection."""
        self.silence()
        await asyncio.gather(*self._ways, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@pytest.mark.full
async def test_a_node_whose_connections_all_go_silent_follows_again_on_new_ones(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    relay = Relay(addresses[0])
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    by_relay = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    links = {"n2": {"n1": by_relay}}
    async with running_cluster(tmp_path, addresses=addresses, links=links, election_timeout_ms=1_500) as cluster:
        await cluster.commands("n1", ["add", 3])
        before = relay.accepted
        relay.silence()
        await cluster.commands("n1", ["add", 4])
        async with asyncio.timeout(DEADLINE_S):
            while (await cluster.ask("n2", "GET", "/state?consistency=local")).document["state"] != "49":
                pass  # A request of its own each time.
        assert relay.accepted > before
    server.close()
    await server.wait_closed()
    await relay.close()
