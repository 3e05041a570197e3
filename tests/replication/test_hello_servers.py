"""Hellos at the three paths: features that become required while one lasts, and strangers who never end theirs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web

from quire.log import pack
from quire.replication import Promise
from quire.replication.core.messages import Heartbeat
from quire.replication.net.hello import (
    PATHS,
    UNPROVED_LIMIT,
    HelloServer,
    PeerInfo,
    PeerRefused,
    answer_hello,
    dial,
    dial_hello,
)
from quire.replication.net.links import Link, LinkServer
from quire.replication.net.snapshots import FETCHES_LIMIT, SnapshotFetch, SnapshotServer
from quire.replication.net.streams import FollowerStream, StreamServer
from quire.replication.net.wire import encode
from tests.packed import unpacked
from tests.replication.loopback import ANYBODY, DEADLINE_S, Handler, calling, listening, trusting, until, who
from tests.replication.recorder import MAX_FRAME_BYTES, NONCE, OPENING, Recorder, ended
from tests.replication.running import Cluster

NEW = frozenset({"later"})
SECRET = b"a secret of the peers"
PURPOSES = list(PATHS)


class Source:
    """A snapshot of a manifest alone."""

    def manifest(self, index: int) -> bytes:
        return b"manifest"

    def chunk(self, index: int, number: int) -> bytes:
        return b"chunk"


def server(purpose: str, told: Recorder, secret: bytes | None = None) -> LinkServer | StreamServer | SnapshotServer:
    trust = ANYBODY if secret is None else replace(ANYBODY, secrets=(secret,))
    match purpose:
        case "peer":
            return LinkServer(told, trust)
        case "stream":
            return StreamServer(told, trust)
        case _:
            return SnapshotServer(told.me, Source(), trust)


@asynccontextmanager
async def serving(
    purpose: str, told: Recorder, secret: bytes | None = None
) -> AsyncGenerator[tuple[ClientSession, str]]:
    """A server of connections of that kind, and what dials it."""
    serves = server(purpose, told, secret)
    async with listening({PATHS[purpose]: serves.serve}) as address, calling() as session:
        try:
            yield session, address
        finally:
            await serves.close()


async def connected(session: ClientSession, address: str, purpose: str) -> ClientWebSocketResponse:
    """A connection before its hello."""
    return await session.ws_connect(f"http://{address}{PATHS[purpose]}")


# Features that become required during the hello


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_peer_that_lacks_what_became_required_during_its_hello_is_refused(purpose: str) -> None:
    told = Recorder(who("n2"))
    async with serving(purpose, told) as (session, address):
        socket = await connected(session, address, purpose)
        challenge = await socket.receive()
        told.info = replace(told.info, requires=NEW)
        await socket.send_bytes(pack([1, purpose, [*row(who("n1")), [], b""], NONCE, b""]))

        assert challenge.type is WSMsgType.BINARY
        assert unpacked((await socket.receive()).data)[:2] == ["refused", "features"]
        assert await ended(socket)
    assert told.came == []


@pytest.mark.parametrize("known_after", range(4))
async def test_at_whatever_moment_of_a_hello_a_feature_becomes_required_its_lack_is_seen(known_after: int) -> None:
    """`me` is asked before the hello, before the welcome and after it; an admission lasts up to a second."""
    asked, ends = 0, list[object]()

    def me() -> PeerInfo:
        nonlocal asked
        asked += 1
        return replace(who("n2"), requires=NEW if asked > known_after else frozenset())

    async def admit(_: PeerInfo) -> None:
        await asyncio.sleep(0)

    hellos = HelloServer(me, "peer", ANYBODY, admit)

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        try:
            ends.append(await hellos.answer(request, socket))
        except PeerRefused as error:
            ends.append(error.code)
        await socket.close()
        return socket

    async with listening({"/peer": serve}) as address, calling() as session:
        socket = await connected(session, address, "peer")
        with suppress(PeerRefused):
            await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
        await until(lambda: ends)
        await socket.close()
    assert ends == ["features" if known_after < 3 else who("n1")]


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_dialled_peer_that_lacks_what_became_required_during_the_hello_is_left(purpose: str) -> None:
    told = Recorder(who("n1"))

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)

        async def admit(_: PeerInfo) -> None:
            told.info = replace(told.info, requires=NEW)

        await answer_hello(socket, who("n2"), purpose, (), NONCE, admit)
        await socket.receive()
        return socket

    async with listening({PATHS[purpose]: serve}) as address, calling() as session:
        assert "n2 lacks later" in await LEAVING[purpose](told, session, address)
    assert (told.up, told.connected) == ([], [])


async def _left_link(told: Recorder, session: ClientSession, address: str) -> str:
    link = Link(told, session, "n2", lambda: [address], trusting(None))
    await until(lambda: told.failed or told.up)
    await asyncio.wait_for(link.close(), DEADLINE_S)
    return "".join(told.failed)


async def _left_stream(told: Recorder, session: ClientSession, address: str) -> str:
    stream = FollowerStream(told, session, 4, ("n2", address), trusting(None), MAX_FRAME_BYTES)
    await until(lambda: told.closed or told.connected)
    await asyncio.gather(stream.close(), return_exceptions=True)
    return "".join(reason for _, reason in told.closed)


async def _left_fetch(told: Recorder, session: ClientSession, address: str) -> str:
    try:
        async with SnapshotFetch.dialled(session, told.me, ("n2", address), 42, trusting(None)):
            return "it stays"
    except PeerRefused as error:
        return str(error)


LEAVING: dict[str, Callable[[Recorder, ClientSession, str], Awaitable[str]]] = {
    "peer": _left_link,
    "stream": _left_stream,
    "snapshot": _left_fetch,
}


async def test_a_fetch_of_a_peer_that_lacks_what_became_required_ends() -> None:
    told = Recorder(who("n2"))
    async with (
        serving("snapshot", told) as (session, address),
        SnapshotFetch.dialled(session, lambda: who("n1"), ("n2", address), 42, trusting(None)) as fetch,
    ):
        assert await fetch.manifest() == b"manifest"
        told.info = replace(told.info, requires=NEW)
        with pytest.raises(ConnectionResetError):
            await fetch.manifest()


async def test_links_and_streams_with_a_peer_that_lacks_what_the_log_names_end_both_ways() -> None:
    told, cluster = Recorder(who("n1")), Cluster("n1", "n2", "n3")
    links, streams = LinkServer(told, ANYBODY), StreamServer(told, ANYBODY)
    dialled: list[ClientWebSocketResponse] = []
    async with listening({"/peer": links.serve, "/peer/stream": streams.serve}) as address, calling() as session:
        cluster.addresses["n1"] = address
        node = cluster.make("n2")
        network = node.replica.network
        node.replica.start(session, nominated=False)
        routes: dict[str, Handler] = {"/peer": network.link_server.serve, "/peer/stream": network.streams.server.serve}
        async with listening(routes) as its_address:
            for purpose, path in (("peer", "/peer"), ("stream", "/peer/stream")):
                dialled.append(await session.ws_connect(f"http://{its_address}{path}"))
                await dial_hello(dialled[-1], who("n3"), "n2", purpose, None, NONCE)
            await dialled[1].send_bytes(encode(OPENING))
            await until(lambda: told.came)
            network.message_received(who("n1"), Heartbeat(Promise(3, "n1", 1), 1, 0))
            await until(lambda: told.opened)

            node.owner.features = NEW
            for socket in dialled:
                assert await ended(socket)
            await until(lambda: told.closed)
            await until(lambda: "n1 lacks later" in network.reports.failures.get("n1", ""))
            assert "the leader lacks a feature" in network.reports.failures["stream with n1"]
            await node.replica.stop()
    await links.close()
    await streams.close()


# Strangers


def row(info: PeerInfo) -> list[object]:
    return [info.cluster_id, info.node_id, info.disk_id, info.incarnation, info.address]


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_strangers_that_leave_their_hello_unended_lock_no_member_out_and_their_number_is_bounded(
    purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 1000.0)  # Their number alone ends them.
    told = Recorder(who("n2"))
    async with serving(purpose, told, SECRET) as (session, address), AsyncExitStack() as sockets:
        strangers = [await connected(session, address, purpose) for _ in range(UNPROVED_LIMIT + 1)]
        for stranger in strangers:
            sockets.push_async_callback(stranger.close)
        assert UNPROVED_LIMIT > FETCHES_LIMIT
        assert await ended(strangers[0])

        socket, peer = await dial(session, address, lambda: who("n1"), "n2", purpose, trusting(SECRET), None)
        sockets.push_async_callback(socket.close)
        assert peer == who("n2")
        assert await ended(strangers[1])
        assert not any(stranger.closed for stranger in strangers[2:])


async def test_a_stranger_with_a_members_name_and_disk_raises_no_alarm_and_ends_no_link() -> None:
    mine, told = Recorder(who("n1")), Recorder(who("n2"))
    async with serving("peer", told, SECRET) as (session, address):
        link = Link(mine, session, "n2", lambda: [address], trusting(SECRET))
        await until(lambda: told.came)
        for _ in range(3):
            with pytest.raises(PeerRefused, match="peer_secret"):
                await dial(session, address, lambda: who("n1", incarnation=2), "n2", "peer", trusting(b"a guess"), None)
        assert (told.came, told.duplicates, told.replaced, mine.down) == ([who("n1")], [], [], [])
        await asyncio.wait_for(link.close(), DEADLINE_S)


async def test_a_hello_that_lasts_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 0.05)
    async with serving("stream", Recorder(who("n2")), SECRET) as (session, address):
        assert await ended(await connected(session, address, "stream"))
