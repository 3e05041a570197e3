"""Connections between nodes that end in every way at once, or go silent."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_USER_TIMEOUT, socket
from types import FrameType

import pytest
from aiohttp import ClientSession, TCPConnector, WSMsgType, web

from quire.replication.net.hello import answer_hello
from quire.replication.net.links import Link, LinkServer
from quire.replication.net.sockets import PINGS, TURN_S, read_in_turns, together
from quire.replication.net.streams import FollowerStream, StreamServer
from tests.garbage import garbage
from tests.replication.loopback import ANYBODY, DEADLINE_S, calling, listening, trusting, until, who
from tests.replication.recorder import MAX_FRAME_BYTES, NONCE, Recorder

ELECTION_TIMEOUT_S = 0.05
MESSAGES = 300


@dataclass
class Peer:
    """The dialled end of links. It answers pings only if told to."""

    answers: bool
    dialled: int = 0
    pings: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(autoping=False, timeout=0.1)
        await ws.prepare(request)
        await answer_hello(ws, who("n2"), "peer", (), NONCE)
        self.dialled += 1
        while (message := await ws.receive()).type is WSMsgType.PING:
            self.pings += 1
            if self.answers:
                await ws.pong(message.data)
        return ws


async def test_a_link_without_a_pong_is_dialled_anew() -> None:
    mine, peer = Recorder(who("n1")), Peer(answers=False)
    async with listening({"/peer": peer.serve}) as address, calling() as session:
        link = Link(mine, session, "n2", lambda: [address], trusting(None), ELECTION_TIMEOUT_S)
        await until(lambda: peer.dialled > 2)
        await asyncio.wait_for(link.close(), DEADLINE_S)
    assert "no pong for two election timeouts" in mine.failed


async def test_an_idle_link_whose_pings_are_answered_stays() -> None:
    mine, peer = Recorder(who("n1")), Peer(answers=True)
    async with listening({"/peer": peer.serve}) as address, calling() as session:
        link = Link(mine, session, "n2", lambda: [address], trusting(None), 10 * ELECTION_TIMEOUT_S)
        await until(lambda: peer.pings > PINGS + 2)
        assert peer.dialled == 1
        await asyncio.wait_for(link.close(), DEADLINE_S)
    assert mine.failed == []


async def test_a_connection_that_ends_in_two_ways_at_once_does_not_cancel_its_task() -> None:
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionResetError("broken") from None

    async def ended() -> None:
        pass

    with suppress(ConnectionResetError):
        await together(ended(), broken())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("first", ["returns", "raises", "is cancelled"])
async def test_whatever_ends_first_ends_both(first: str) -> None:
    other = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            other.set()

    async def ends() -> None:
        await asyncio.sleep(0)
        if first == "raises":
            raise ConnectionResetError("broken")
        if first == "is cancelled":
            raise asyncio.CancelledError

    with suppress(ConnectionResetError):
        await asyncio.wait_for(together(endless(), ends()), DEADLINE_S)
    assert other.is_set()


async def test_an_error_that_ends_both_leaves_nothing_to_the_garbage_collector() -> None:
    # A stream that breaks: what its frames hold is megabytes, and with TLS the buffers of its connection.
    async def broken() -> None:
        raise ConnectionResetError("broken")

    async def endless() -> None:
        await asyncio.Event().wait()

    async def end() -> None:
        with suppress(ConnectionResetError):
            await together(broken(), endless())

    await end()  # What is made once only.
    with garbage() as found:
        await end()

    assert [each for each in found if isinstance(each, BaseException | FrameType)] == []


async def test_the_kernel_ends_silent_links_and_streams_at_both_ends() -> None:
    told = Recorder(who("n2"))
    links, streams = LinkServer(told, ANYBODY, 2.0), StreamServer(told, ANYBODY, election_timeout_s=2.0)
    sockets: list[socket] = []

    def dialling(found: tuple[object, ...]) -> socket:
        sockets.append(socket(*found[:3]))  # type: ignore[arg-type]
        sockets[-1].setblocking(False)
        return sockets[-1]

    async def serve(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        sockets.append(request.transport.get_extra_info("socket"))
        return await (links if request.path == "/peer" else streams).serve(request)

    connector = TCPConnector(socket_factory=dialling)
    async with (
        listening({"/peer": serve, "/peer/stream": serve}) as address,
        ClientSession(connector=connector) as session,
    ):
        mine = Recorder(who("n1"))
        link = Link(mine, session, "n2", lambda: [address], trusting(None), 2.0)
        stream = FollowerStream(mine, session, 4, ("n2", address), trusting(None), MAX_FRAME_BYTES, 2.0)
        await until(lambda: mine.up and mine.connected)
        assert [one.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT) for one in sockets] == [6_000] * 4
        assert all(one.getsockopt(SOL_SOCKET, SO_KEEPALIVE) for one in sockets)
        await asyncio.wait_for(link.close(), DEADLINE_S)
        await asyncio.gather(stream.close(), return_exceptions=True)


@pytest.mark.asyncio
async def test_messages_that_arrived_together_are_taken_in_turns_of_the_loop() -> None:
    async def send_all(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(timeout=0.1)
        await ws.prepare(request)
        for _ in range(MESSAGES):
            await ws.send_bytes(b"x")
        await ws.close()
        return ws

    turn = 0
    loop = asyncio.get_running_loop()

    handles: list[asyncio.Handle] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        handles[:] = [loop.call_soon(count)]

    taken: list[int] = []
    count()
    try:
        async with (
            listening({"/": send_all}) as address,
            calling() as session,
            session.ws_connect(f"http://{address}/") as ws,
        ):
            # Each takes a fifth of a turn, by a clock that is looked at before and after.
            await read_in_turns(ws, lambda _: taken.append(turn), lambda: len(taken) * TURN_S / 5)
    finally:
        handles[0].cancel()
    assert len(taken) == MESSAGES
    assert max(Counter(taken).values()) in {5, 6}
