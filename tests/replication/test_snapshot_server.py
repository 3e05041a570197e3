"""A snapshot that a peer fetches is pinned, for as long as the peer takes it and no longer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import pytest
from aiohttp import ClientSession, WSMessage, WSMsgType

from quire.log import pack
from quire.replication.net import snapshots
from quire.replication.net.hello import SNAPSHOT_PATH, PeerInfo, dial
from quire.replication.net.snapshots import FETCHES_LIMIT, PING_S, SnapshotFetch, SnapshotServer
from quire.replication.net.sockets import Socket
from quire.replication.net.wire import BadMessage
from tests.replication.loopback import ANYBODY, listening, trusting, until, who

INDEX = 42
LARGE_BYTES = 48 << 20  # More than the kernel buffers of a connection.


class Source:
    """One snapshot: a short manifest, and a chunk that fills every buffer."""

    def __init__(self) -> None:
        self.server: SnapshotServer | None = None
        self.served: list[list[int]] = []
        """What was pinned at each read."""

    def manifest(self, index: int) -> bytes:
        assert self.server is not None
        self.served.append(self.server.served)
        return b"manifest"

    def chunk(self, index: int, number: int) -> bytes:
        return bytes(LARGE_BYTES)


@asynccontextmanager
async def fetching() -> AsyncGenerator[tuple[SnapshotServer, SnapshotFetch, Socket]]:
    """A server, and a peer that has fetched the manifest, with its connection."""
    source = Source()
    server = source.server = SnapshotServer(lambda: who("n1"), source, ANYBODY)
    async with (
        listening({SNAPSHOT_PATH: server.serve}) as address,
        ClientSession() as session,
    ):
        socket, _ = await dial(session, address, lambda: who("n2"), "n1", "snapshot", trusting(None), PING_S)
        fetch = SnapshotFetch(socket, INDEX)
        assert await fetch.manifest() == b"manifest"
        assert source.served == [[INDEX]]  # Before the first read: a snapshot that goes beside it is found damaged.
        yield server, fetch, socket
        await server.close()
        await socket.close()


@pytest.mark.asyncio
async def test_a_snapshot_is_pinned_while_it_is_fetched_and_no_longer() -> None:
    async with fetching() as (server, fetch, socket):
        assert server.served == [INDEX]
        [chunk] = [data async for _, data in fetch.chunks([0])]
        assert len(chunk) == LARGE_BYTES
        assert server.served == [INDEX]
        await socket.close()
        await until(lambda: not server.served)


@pytest.mark.asyncio
async def test_a_peer_that_asks_for_nothing_more_pins_no_snapshot_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fetching() as (server, _, socket):
        monkeypatch.setattr(snapshots, "ANSWER_TIMEOUT_S", 0.2)
        await socket.send_bytes(pack([INDEX, None]))  # From its answer on the server waits for so long.
        await until(lambda: not server.served)


@pytest.mark.asyncio
async def test_a_peer_that_asks_and_takes_nothing_pins_no_snapshot_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TAKE_TIMEOUT_S", 0.2)
    async with fetching() as (server, _, socket):
        await socket.send_bytes(pack([INDEX, 0]))
        await until(lambda: not server.served)


@pytest.mark.asyncio
async def test_of_peers_that_say_hello_at_the_same_time_no_more_than_the_limit_are_served() -> None:
    source, all_here = Source(), asyncio.Barrier(FETCHES_LIMIT + 1)

    async def admit(_: PeerInfo) -> None:
        await all_here.wait()

    server = source.server = SnapshotServer(lambda: who("n1"), source, ANYBODY, admit)
    async with (
        listening({SNAPSHOT_PATH: server.serve}) as address,
        ClientSession() as session,
        AsyncExitStack() as sockets,
    ):

        async def manifest(number: int) -> bytes:
            socket, _ = await dial(
                session, address, lambda: who(f"n{number}"), "n1", "snapshot", trusting(None), PING_S
            )
            sockets.push_async_callback(socket.close)
            return await SnapshotFetch(socket, INDEX).manifest()

        ended = await asyncio.gather(*map(manifest, range(2, FETCHES_LIMIT + 3)), return_exceptions=True)
        served = [outcome for outcome in ended if outcome == b"manifest"]
        refused = [outcome for outcome in ended if isinstance(outcome, ConnectionResetError)]
        assert (len(served), len(refused)) == (FETCHES_LIMIT, 1)
        assert server.served == [INDEX] * FETCHES_LIMIT
        await server.close()


class Trickling:
    """A leader that announces five bytes, and sends none, again and again."""

    def __init__(self) -> None:
        self._said = iter([pack([5]), b"", b"12345"])

    async def send_bytes(self, data: bytes) -> None:
        pass

    async def receive(self) -> WSMessage:
        return WSMessage(WSMsgType.BINARY, next(self._said), None)


@pytest.mark.asyncio
async def test_a_leader_that_sends_empty_pieces_keeps_no_fetch_waiting() -> None:
    with pytest.raises(BadMessage):
        await SnapshotFetch(cast("Socket", Trickling()), INDEX).manifest()
