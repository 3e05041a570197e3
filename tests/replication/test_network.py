"""Streams over real sockets: what they do when the other side hangs up, sends garbage, or sends nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError, web

from quire.log import Kind, Tail, encode_frame, encode_records
from quire.replication import Promise
from quire.replication.core.messages import (
    Ack,
    Heartbeat,
    OpenAnswer,
    OpenVerb,
)
from quire.replication.net.hello import PeerInfo, answer_hello, dial_hello
from quire.replication.net.links import LinkServer
from quire.replication.net.outbox import Outbox
from quire.replication.net.streams import FollowerStream, StreamServer
from quire.replication.net.wire import ANSWER, FRAMES, SHIPMENT, Positions, Shipment, decode_stream, encode
from tests.replication.loopback import ANYBODY, DEADLINE_S, calling, listening, trusting, turns, until, who
from tests.replication.recorder import HEARTBEAT, MAX_FRAME_BYTES, NONCE, OPENING, Recorder, ended, failing
from tests.replication.running import Cluster


@dataclass
class Leader:
    """The leader's end of a stream in a test's hands."""

    script: Callable[[web.WebSocketResponse], object]
    peers: list[PeerInfo] = field(default_factory=list)
    ends: int = 0

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        self.peers.append(await answer_hello(socket, who("n1"), "stream", (), NONCE))
        outcome = self.script(socket)
        if asyncio.iscoroutine(outcome):
            await outcome
        async with asyncio.timeout(DEADLINE_S):
            while (await socket.receive()).type is WSMsgType.BINARY:
                pass
        self.ends += 1
        return socket


def frame(index: int, size: int = 3) -> bytes:
    return encode_frame(
        index=index,
        epoch=1,
        timestamp=1,
        count=1,
        prev_crc32c=0,
        kind=Kind.RECORDS,
        payload=encode_records(["x" * size]),
    )


def shipment(raw: bytes, *, commit_index: int = 5) -> bytes:
    return FRAMES + SHIPMENT.pack(commit_index, 6, 7) + raw


@asynccontextmanager
async def following(leader: Leader, told: Recorder, *, leader_id: str = "n1") -> AsyncGenerator[FollowerStream]:
    async with listening({"/peer/stream": leader.serve}) as address, calling() as session:
        stream = FollowerStream(told, session, 4, (leader_id, address), trusting(None), MAX_FRAME_BYTES)
        try:
            yield stream
        finally:
            stream.close()
            await until(lambda: not _tasks("stream 4"))


def _tasks(name: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(name) and not task.done()]


async def test_a_followers_socket_passes_on_answers_and_whole_frames_with_the_leaders_positions() -> None:
    told, raw = Recorder(who("n2")), frame(0, 2_000) + frame(1)
    answer = OpenAnswer(OpenVerb.RESUME, 0, 0, "")

    async def lead(socket: web.WebSocketResponse) -> None:
        assert decode_stream((await socket.receive()).data) == OPENING
        await socket.send_bytes(ANSWER + encode(answer))
        for cut in (raw[:100], raw[100:-1], raw[-1:], b""):
            await socket.send_bytes(shipment(cut))

    async with following(Leader(lead), told) as stream:
        await until(lambda: told.connected)
        stream.send(OPENING)
        await until(lambda: len(told.shipments) == 4)

    assert told.answers == [answer]
    assert [whole for whole, _ in told.shipments] == [b"", raw[: len(frame(0, 2_000))], frame(1), b""]
    assert {positions for _, positions in told.shipments} == {Positions(5, 6, 7)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x07",
        FRAMES,
        FRAMES + bytes(23),
        ANSWER,
        ANSWER + encode(OPENING),
        shipment(b"\xff" * 64),
        shipment(frame(0, MAX_FRAME_BYTES)[:64]),
    ],
)
async def test_a_leader_that_sends_garbage_is_disconnected_and_the_core_gets_an_event(data: bytes) -> None:
    told = Recorder(who("n2"))
    leader = Leader(lambda socket: socket.send_bytes(data))
    async with following(leader, told):
        await until(lambda: told.closed)
        await until(lambda: leader.ends)

    assert [stream_id for stream_id, _ in told.closed] == [4]


async def test_a_leaders_hang_up_is_reported_once() -> None:
    told = Recorder(who("n2"))
    async with following(Leader(lambda socket: socket.close()), told):
        await until(lambda: told.closed)
        await turns(50)

    assert len(told.closed) == 1


async def test_a_stream_that_reaches_another_node_leaves_no_connection_behind() -> None:
    told = Recorder(who("n2"))
    leader = Leader(lambda socket: None)
    async with following(leader, told, leader_id="n3"):
        await until(lambda: told.closed)
        await until(lambda: leader.ends)

    assert "other_node" in told.closed[0][1]


async def test_a_stream_closed_during_its_hello_leaves_no_connection_behind() -> None:
    told = Recorder(who("n2"))
    ends: list[WSMsgType] = []

    async def say_nothing(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        arrived.set()
        async with asyncio.timeout(DEADLINE_S):
            ends.append((await socket.receive()).type)
        return socket

    arrived = asyncio.Event()
    async with listening({"/peer/stream": say_nothing}) as address, calling() as session:
        stream = FollowerStream(told, session, 4, ("n1", address), trusting(None), MAX_FRAME_BYTES)
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        await turns(20)
        stream.close()
        await until(lambda: ends)

    assert told.closed == []


def stray(tail: Tail, fault: str) -> bytes:
    """A frame that would follow a log's end but for one fault."""
    raw = bytearray(
        encode_frame(
            index=tail.index + (fault == "index"),
            epoch=3,
            timestamp=tail.timestamp - (fault == "timestamp"),
            count=1,
            prev_crc32c=tail.crc32c ^ (fault == "chain"),
            kind=Kind.SYSTEM if fault == "system" else Kind.RECORDS,
            payload=encode_records(["x"]),
        )
    )
    raw[-1] ^= fault == "payload"
    return bytes(raw)


@pytest.mark.parametrize("fault", ["index", "chain", "timestamp", "payload", "system"])
async def test_a_follower_that_gets_frames_that_do_not_follow_opens_another_stream(fault: str) -> None:
    told, cluster = Recorder(who("n1")), Cluster("n1", "n2", "n3")
    links = LinkServer(told, ANYBODY)

    async def lead(socket: web.WebSocketResponse) -> None:
        await socket.receive()
        tail = cluster["n2"].log.tail
        await socket.send_bytes(ANSWER + encode(OpenAnswer(OpenVerb.RESUME, tail.index, tail.crc32c, "")))
        await socket.send_bytes(shipment(stray(tail, fault)))

    leader = Leader(lead)
    async with listening({"/peer": links.serve, "/peer/stream": leader.serve}) as address, calling() as session:
        cluster.addresses["n1"] = address
        node = cluster.make("n2")
        node.replica.start(session, nominated=False)
        await until(lambda: told.came)
        node.replica.network.message_received(who("n1"), Heartbeat(Promise(3, "n1", 1), 1, 0))
        await until(lambda: leader.ends == 2)

        assert node.owner.halts == []
        assert node.log.tail.index == 1
        await node.replica.stop()


# Streams, the leader's end


@asynccontextmanager
async def leading(
    told: Recorder, opening_timeout_s: float = DEADLINE_S
) -> AsyncGenerator[tuple[StreamServer, ClientWebSocketResponse]]:
    """A stream server, and a follower's socket to it that has said hello."""
    server = StreamServer(told, ANYBODY, opening_timeout_s=opening_timeout_s)
    async with listening({"/peer/stream": server.serve}) as address, calling() as session:
        socket = await session.ws_connect(f"http://{address}/peer/stream", max_msg_size=4 << 20)
        await dial_hello(socket, who("n2"), "n1", "stream", None, NONCE)
        try:
            yield server, socket
        finally:
            await socket.close()
            await server.close()


async def test_a_leaders_socket_sends_large_frames_in_pieces_and_reports_when_all_have_left() -> None:
    told = Recorder(who("n1"))
    raw = frame(0, 600_000)
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.opened)
        told.opened[0].send(OpenAnswer(OpenVerb.RESUME, 0, 0, ""))
        at_once = [
            told.opened[0].send(Shipment(Positions(1, 2, 3), raw, 1)),
            told.opened[0].send(Shipment(Positions(2, 2, 4), b"", 1)),
        ]
        messages = [(await asyncio.wait_for(socket.receive(), DEADLINE_S)).data for _ in range(5)]
        await until(lambda: len(told.sent) == at_once.count(False))

    assert messages[0][:1] == ANSWER
    assert b"".join(message[1 + SHIPMENT.size :] for message in messages[1:]) == raw
    assert max(len(message) for message in messages) <= (1 << 18) + 1 + SHIPMENT.size
    assert [SHIPMENT.unpack_from(message, 1) for message in messages[1:]] == [(1, 2, 3)] * 3 + [(2, 2, 4)]
    assert told.sent == [(1, size) for size, was_taken in zip((len(raw), 0), at_once, strict=True) if not was_taken]


async def test_acks_reach_the_leader_and_the_end_of_a_stream_is_reported_once() -> None:
    told, ack = Recorder(who("n1")), Ack(1, 2, 0, bytes(16))
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await socket.send_bytes(encode(ack))
        await until(lambda: told.acks)
        await socket.close()
        await until(lambda: told.closed)
        await turns(50)

    assert told.acks == [ack]
    assert [stream_id for stream_id, _ in told.closed] == [1]


@pytest.mark.parametrize("data", [b"", b"\xc1", encode(Ack(1, 1, 1, bytes(16))), encode(HEARTBEAT)])
async def test_a_follower_that_opens_with_garbage_is_disconnected(data: bytes) -> None:
    told = Recorder(who("n1"))
    async with leading(told) as (_, socket):
        await socket.send_bytes(data)
        assert await ended(socket)

    assert (told.opened, told.acks) == ([], [])


async def test_a_follower_that_never_opens_is_disconnected() -> None:
    # Every wait has a deadline.
    async with leading(Recorder(who("n1")), opening_timeout_s=0.05) as (_, socket):
        assert await ended(socket)


async def test_a_leader_that_hangs_up_ends_the_followers_socket() -> None:
    told = Recorder(who("n1"))
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.opened)
        told.opened[0].hang_up()
        assert await ended(socket)
        await until(lambda: told.closed)


async def test_an_ack_replaces_those_that_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    told, came = Recorder(who("n2")), list[int]()
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    send = ClientWebSocketResponse.send_bytes

    async def send_when_there_is_room(socket: ClientWebSocketResponse, data: bytes) -> None:
        await room
        await send(socket, data)

    async def lead(socket: web.WebSocketResponse) -> None:
        while not came or came[-1] < 4:
            ack = decode_stream((await socket.receive()).data)
            assert isinstance(ack, Ack)
            came.append(ack.durable_index)

    async with following(Leader(lead), told) as stream:
        await until(lambda: told.connected)
        monkeypatch.setattr(ClientWebSocketResponse, "send_bytes", send_when_there_is_room)
        monkeypatch.setattr(Outbox, "_has_room", lambda *_: room.done())
        for index in range(1, 5):
            stream.send(Ack(index, index, 0, bytes(16)))
            for _ in range(3):  # The first leaves the queue, and waits for room.
                await asyncio.sleep(0)
        room.set_result(None)
        await until(lambda: 4 in came)

    assert came == [1, 4]


async def test_a_stream_whose_messages_cannot_leave_ends_at_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recorder(who("n2"))
    monkeypatch.setattr(Outbox, "carry", failing)
    async with following(Leader(lambda _: None), told):
        await until(lambda: told.closed)

    assert told.closed == [(4, "RuntimeError('a fault of ours')")]


async def test_a_stream_whose_messages_cannot_leave_ends_at_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recorder(who("n1"))
    monkeypatch.setattr(Outbox, "carry", failing)
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.closed)
        assert await ended(socket)


async def test_a_stream_in_its_hello_when_the_leader_stops_is_disconnected() -> None:
    told = Recorder(who("n1"))
    server = StreamServer(told, ANYBODY)
    async with listening({"/peer/stream": server.serve}) as address, calling() as session:
        socket = await session.ws_connect(f"http://{address}/peer/stream")
        await server.close()
        try:
            await dial_hello(socket, who("n2"), "n1", "stream", None, NONCE)
            await socket.send_bytes(encode(OPENING))
        except ConnectionError:
            return
        assert await ended(socket)

    assert told.opened == []


async def test_a_stream_that_is_opened_after_the_leader_stopped_is_refused() -> None:
    told = Recorder(who("n1"))
    server = StreamServer(told, ANYBODY)
    await server.close()
    async with listening({"/peer/stream": server.serve}) as address, calling() as session:
        with pytest.raises(WSServerHandshakeError):
            await session.ws_connect(f"http://{address}/peer/stream")
