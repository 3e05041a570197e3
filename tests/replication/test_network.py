"""Links and streams over real sockets: what they do when the other side hangs up, says nonsense, or says nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError, web

from quire.log import Kind, Tail, encode_frame, encode_records
from quire.replication import Promise
from quire.replication.assembler import Assembled
from quire.replication.core import Identity
from quire.replication.core.messages import (
    Ack,
    Differs,
    GenesisShown,
    Heartbeat,
    HeartbeatEcho,
    Open,
    OpenAnswer,
    OpenVerb,
    PeerMessage,
)
from quire.replication.forming import Forming, members_of_genesis
from quire.replication.hello import Who, answer_hello, dial_hello
from quire.replication.links import Link, LinkServer
from quire.replication.outbox import Outbox
from quire.replication.shipment import ANSWER, FRAMES, Positions, Shipment
from quire.replication.streams import DownstreamSocket, StreamServer, UpstreamSocket
from quire.replication.wire import SHIPMENT, decode_stream, encode
from tests.replication.loopback import DEADLINE_S, calling, listening, turns, unformatted, until, who
from tests.replication.running import Cluster
from tests.sim.world import genesis_frame, voters

NONCE = bytes(16)
HEARTBEAT = Heartbeat(Promise(3, "n1", 1), 9, 7)
OPENING = Open(Promise(3, "n1", 1), ((0, 0),), 1, 1)
MAX_FRAME_BYTES = 1 << 20


@dataclass
class Told:
    """What a link's or stream's node was told, in order."""

    me: Who
    up: list[Who] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    came: list[Who] = field(default_factory=list)
    twins: list[Who] = field(default_factory=list)
    replaced: list[Who] = field(default_factory=list)
    said: list[tuple[str, PeerMessage]] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)
    answers: list[OpenAnswer] = field(default_factory=list)
    shipments: list[tuple[bytes, Positions]] = field(default_factory=list)
    opened: list[DownstreamSocket] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    differs: list[Differs] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)

    def who(self) -> Who:
        return self.me

    def link_up(self, peer: Who) -> None:
        self.up.append(peer)

    def link_down(self, node_id: str, reason: str) -> None:
        self.down.append(node_id)

    def link_failed(self, node_id: str, error: Exception) -> None:
        self.failed.append(str(error))

    def peer_came(self, peer: Who) -> None:
        self.came.append(peer)

    def peer_said(self, peer: Who, message: PeerMessage) -> None:
        self.said.append((peer.node_id, message))

    def twin_came(self, peer: Who) -> None:
        self.twins.append(peer)

    def peer_replaced(self, peer: Who) -> None:
        self.replaced.append(peer)

    def stream_connected(self, stream_id: int) -> None:
        self.connected.append(stream_id)

    def open_answered(self, stream_id: int, answer: OpenAnswer) -> None:
        self.answers.append(answer)

    def frames_arrived(self, stream_id: int, frames: Assembled, positions: Positions, received_bytes: int) -> None:
        self.shipments.append((frames.raw, positions))

    def stream_opened(self, downstream: DownstreamSocket, opening: Open) -> None:
        downstream.stream_id = len(self.opened) + 1
        self.opened.append(downstream)

    def ack_arrived(self, stream_id: int, ack: Ack) -> None:
        self.acks.append(ack)

    def differs_arrived(self, stream_id: int, differs: Differs) -> None:
        self.differs.append(differs)

    def shipped(self, stream_id: int, next_index: int, size: int) -> None:
        self.sent.append((next_index, size))

    def stream_closed(self, stream_id: int, reason: str) -> None:
        self.closed.append((stream_id, reason))


# Links


@asynccontextmanager
async def linked(mine: Told, theirs: Told) -> AsyncGenerator[tuple[Link, LinkServer]]:
    """A link that stands, and the server at its other end."""
    server = LinkServer(theirs, None)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        link = Link(mine, session, theirs.me.node_id, address, None)
        try:
            await until(lambda: mine.up)
            yield link, server
        finally:
            await asyncio.wait_for(link.close(), DEADLINE_S)
            await server.close()


async def test_what_is_sent_on_a_link_arrives_in_order_with_its_senders_name() -> None:
    mine, theirs = Told(who("n1")), Told(who("n2"))
    async with linked(mine, theirs) as (link, _):
        messages = [Heartbeat(Promise(3, "n1", 1), number, 0) for number in range(300)]
        for message in messages:
            link.send(message)
        await until(lambda: len(theirs.said) == 300)

        assert theirs.said == [("n1", message) for message in messages]
        assert (mine.up, theirs.came) == ([who("n2")], [who("n1")])


async def test_a_link_that_breaks_is_dialled_again_and_nothing_old_is_sent_on_it() -> None:
    mine, theirs = Told(who("n1")), Told(who("n2"))
    server = [LinkServer(theirs, None)]

    async def serve(request: web.Request) -> web.StreamResponse:
        return await server[0].serve(request)

    async with listening({"/peer": serve}) as address, calling() as session:
        link = Link(mine, session, "n2", address, None)
        await until(lambda: mine.up)
        await server[0].close()
        await until(lambda: mine.down)
        link.send(HEARTBEAT)
        server[0] = LinkServer(theirs, None)
        await until(lambda: len(mine.up) == 2)
        link.send(HeartbeatEcho(3, 1, 3))
        await until(lambda: theirs.said)

        assert theirs.said == [("n1", HeartbeatEcho(3, 1, 3))]
        await asyncio.wait_for(link.close(), DEADLINE_S)
        await server[0].close()


@pytest.mark.parametrize("turn", range(6))
async def test_a_link_can_be_closed_at_the_moment_at_which_it_ends_by_itself(turn: int) -> None:
    mine, theirs = Told(who("n1")), Told(who("n2"))
    async with linked(mine, theirs) as (link, server):
        await server.close()
        await until(lambda: link.peer is None)
        await turns(turn)
        await asyncio.wait_for(link.close(), DEADLINE_S)


async def test_a_link_to_a_node_that_is_refused_says_why_and_goes_on_dialling() -> None:
    mine, theirs = Told(who("n1")), Told(who("n2", cluster_id=b"another cluster."))
    server = LinkServer(theirs, None)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        link = Link(mine, session, "n2", address, None)
        await until(lambda: len(mine.failed) == 2)
        await link.close()

    assert all("foreign_cluster" in reason for reason in mine.failed)
    assert mine.up == []


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x63", encode(OPENING)])
async def test_a_peer_that_sends_what_is_no_message_is_hung_up_on(data: bytes) -> None:
    theirs = Told(who("n2"))
    server = LinkServer(theirs, None)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        socket = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
        await socket.send_bytes(encode(HEARTBEAT))
        await socket.send_bytes(data)
        assert await ended(socket)

    assert theirs.said == [("n1", HEARTBEAT)]


async def ended(socket: ClientWebSocketResponse) -> bool:
    """Whether the other side hangs up within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while (await socket.receive()).type is WSMsgType.BINARY:
            pass
    await socket.close()
    return True


# Forming, and the change to a formed node


def forming(node_id: str, *initial: str) -> Forming:
    me = unformatted(node_id)
    identity = Identity(me.node_id, me.disk_id, me.incarnation)
    return Forming(identity, me.address, list(initial), None, genesis_frame)


async def refused_or_hung_up(session: ClientSession, address: str) -> bool:
    """Whether a dial of `/peer` is turned away, before or after the hello."""
    try:
        socket = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
    except (WSServerHandshakeError, ConnectionError):
        return True
    return await ended(socket)


async def test_a_node_takes_the_genesis_that_it_is_shown() -> None:
    frame = genesis_frame(voters("n1"))
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session, {}))
        link = Link(Told(who("n1")), session, "n2", address, None)
        await until(lambda: link.peer is not None)
        link.send(GenesisShown(frame, committed=False))
        await turns(200)
        assert not formed.done()
        link.send(GenesisShown(frame, committed=True))
        assert await asyncio.wait_for(formed, DEADLINE_S) == frame
        await link.close()


async def test_whoever_dials_a_node_after_it_took_its_genesis_finds_no_ear_that_is_deaf() -> None:
    # A link that stood on what served the formation would stand for ever, and nobody would hear what is said on it.
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session, {}))
        link = Link(Told(who("n1")), session, "n2", address, None)
        await until(lambda: link.peer is not None)
        link.send(GenesisShown(genesis_frame(voters("n1")), committed=True))
        await asyncio.wait_for(formed, DEADLINE_S)

        assert await refused_or_hung_up(session, address)
        await link.close()


async def test_a_hello_under_way_when_a_node_takes_its_genesis_ends_in_no_deaf_link() -> None:
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session, {}))
        socket = await session.ws_connect(f"http://{address}/peer")
        link = Link(Told(who("n1")), session, "n2", address, None)
        await until(lambda: link.peer is not None)
        link.send(GenesisShown(genesis_frame(voters("n1")), committed=True))
        await asyncio.wait_for(formed, DEADLINE_S)

        try:
            await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
        except ConnectionError:
            return
        finally:
            await link.close()
        assert await ended(socket)


async def test_all_initial_members_together_form_one_cluster_of_the_lowest_ids_making() -> None:
    names = ["n1", "n2", "n3"]
    nodes = {name: forming(name, *names) for name in names}
    async with (
        listening({"/peer": nodes["n1"].serve}) as first,
        listening({"/peer": nodes["n2"].serve}) as second,
        listening({"/peer": nodes["n3"].serve}) as third,
        calling() as session,
    ):
        urls = dict(zip(names, (first, second, third), strict=True))
        waiting = {
            name: asyncio.create_task(node.run(session, {peer: url for peer, url in urls.items() if peer != name}))
            for name, node in nodes.items()
        }
        frame = await asyncio.wait_for(waiting["n1"], DEADLINE_S)
        await turns(200)

        assert not waiting["n2"].done()
        assert not waiting["n3"].done()
        named = {member.node_id: member.disk_id for member in members_of_genesis(frame).members}
        assert named == {name: who(name).disk_id for name in names}
        for name in ("n2", "n3"):
            waiting[name].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)


# Streams, the follower's end


@dataclass
class Leader:
    """The leader's end of a stream in a test's hands."""

    script: Callable[[web.WebSocketResponse], object]
    peers: list[Who] = field(default_factory=list)
    ends: int = 0

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        self.peers.append(await answer_hello(socket, who("n1"), "stream", None, NONCE))
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
async def following(leader: Leader, told: Told, *, leader_id: str = "n1") -> AsyncGenerator[UpstreamSocket]:
    async with listening({"/peer/stream": leader.serve}) as address, calling() as session:
        upstream = UpstreamSocket(told, session, 4, (leader_id, address), None, MAX_FRAME_BYTES)
        try:
            yield upstream
        finally:
            upstream.close()
            await until(lambda: not _tasks("stream 4"))


def _tasks(name: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(name) and not task.done()]


async def test_a_followers_end_hands_on_answers_and_whole_frames_with_the_leaders_positions() -> None:
    told, raw = Told(who("n2")), frame(0, 2_000) + frame(1)
    answer = OpenAnswer(OpenVerb.RESUME, 0, 0, "")

    async def lead(socket: web.WebSocketResponse) -> None:
        assert decode_stream((await socket.receive()).data) == OPENING
        await socket.send_bytes(ANSWER + encode(answer))
        for cut in (raw[:100], raw[100:-1], raw[-1:], b""):
            await socket.send_bytes(shipment(cut))

    async with following(Leader(lead), told) as upstream:
        await until(lambda: told.connected)
        upstream.send(OPENING)
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
async def test_a_leader_that_says_nonsense_is_left_and_the_core_is_told(data: bytes) -> None:
    told = Told(who("n2"))
    leader = Leader(lambda socket: socket.send_bytes(data))
    async with following(leader, told):
        await until(lambda: told.closed)
        await until(lambda: leader.ends)

    assert [stream_id for stream_id, _ in told.closed] == [4]


async def test_a_leader_that_hangs_up_is_told_once() -> None:
    told = Told(who("n2"))
    async with following(Leader(lambda socket: socket.close()), told):
        await until(lambda: told.closed)
        await turns(50)

    assert len(told.closed) == 1


async def test_a_stream_that_reaches_another_node_leaves_no_connection_behind() -> None:
    told = Told(who("n2"))
    leader = Leader(lambda socket: None)
    async with following(leader, told, leader_id="n3"):
        await until(lambda: told.closed)
        await until(lambda: leader.ends)

    assert "other_node" in told.closed[0][1]


async def test_a_stream_that_is_closed_while_it_says_hello_leaves_no_connection_behind() -> None:
    told = Told(who("n2"))
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
        upstream = UpstreamSocket(told, session, 4, ("n1", address), None, MAX_FRAME_BYTES)
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        await turns(20)
        upstream.close()
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
async def test_a_follower_that_is_sent_frames_that_do_not_follow_opens_another_stream_and_goes_on(fault: str) -> None:
    told, cluster = Told(who("n1")), Cluster("n1", "n2", "n3")
    links = LinkServer(told, None)

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
        node.replica.network.peer_said(who("n1"), Heartbeat(Promise(3, "n1", 1), 1, 0))
        await until(lambda: leader.ends == 2)

        assert node.owner.halts == []
        assert node.log.tail.index == 1
        await node.replica.stop()


# Streams, the leader's end


@asynccontextmanager
async def leading(
    told: Told, opening_timeout_s: float = DEADLINE_S
) -> AsyncGenerator[tuple[StreamServer, ClientWebSocketResponse]]:
    """A stream server, and a follower's socket to it that has said hello."""
    server = StreamServer(told, None, opening_timeout_s=opening_timeout_s)
    async with listening({"/peer/stream": server.serve}) as address, calling() as session:
        socket = await session.ws_connect(f"http://{address}/peer/stream", max_msg_size=4 << 20)
        await dial_hello(socket, who("n2"), "n1", "stream", None, NONCE)
        try:
            yield server, socket
        finally:
            await socket.close()
            await server.close()


async def test_a_leaders_end_sends_large_frames_in_pieces_and_tells_when_all_of_it_left() -> None:
    told = Told(who("n1"))
    raw = frame(0, 2_500_000)
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.opened)
        told.opened[0].send(OpenAnswer(OpenVerb.RESUME, 0, 0, ""))
        told.opened[0].send(Shipment(Positions(1, 2, 3), raw, 1))
        told.opened[0].send(Shipment(Positions(2, 2, 4), b"", 1))
        messages = [(await asyncio.wait_for(socket.receive(), DEADLINE_S)).data for _ in range(5)]
        await until(lambda: len(told.sent) == 2)

    assert messages[0][:1] == ANSWER
    assert b"".join(message[1 + SHIPMENT.size :] for message in messages[1:]) == raw
    assert max(len(message) for message in messages) <= (1 << 20) + 1 + SHIPMENT.size
    assert [SHIPMENT.unpack_from(message, 1) for message in messages[1:]] == [(1, 2, 3)] * 3 + [(2, 2, 4)]
    assert told.sent == [(1, len(raw)), (1, 0)]


async def test_acks_reach_the_leader_and_the_end_of_a_stream_does_once() -> None:
    told, ack = Told(who("n1")), Ack(1, 2, 0, bytes(16))
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
async def test_a_follower_that_opens_with_nonsense_is_hung_up_on(data: bytes) -> None:
    told = Told(who("n1"))
    async with leading(told) as (_, socket):
        await socket.send_bytes(data)
        assert await ended(socket)

    assert (told.opened, told.acks) == ([], [])


async def test_a_follower_that_never_opens_is_hung_up_on() -> None:
    # Every wait has a deadline.
    async with leading(Told(who("n1")), opening_timeout_s=0.05) as (_, socket):
        assert await ended(socket)


async def test_a_leader_that_hangs_up_ends_the_followers_socket() -> None:
    told = Told(who("n1"))
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.opened)
        told.opened[0].hang_up()
        assert await ended(socket)
        await until(lambda: told.closed)


async def test_a_stream_whose_messages_cannot_leave_ends_at_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(who("n2"))
    monkeypatch.setattr(Outbox, "carry", failing)
    async with following(Leader(lambda _: None), told):
        await until(lambda: told.closed)

    assert told.closed == [(4, "RuntimeError('a fault of ours')")]


async def test_a_link_whose_messages_cannot_leave_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = Told(who("n1")), Told(who("n2"))
    monkeypatch.setattr(Link, "_send_waiting", failing)
    async with linked(mine, theirs) as (link, _):
        await until(lambda: len(mine.failed) == 2)
        monkeypatch.undo()
        await until(lambda: len(mine.up) > len(mine.down))
        link.send(HEARTBEAT)
        await until(lambda: theirs.said)

    assert mine.failed[0] == "a fault of ours"


async def test_a_stream_whose_messages_cannot_leave_ends_at_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(who("n1"))
    monkeypatch.setattr(Outbox, "carry", failing)
    async with leading(told) as (_, socket):
        await socket.send_bytes(encode(OPENING))
        await until(lambda: told.closed)
        assert await ended(socket)


async def failing(*_: object) -> None:
    raise RuntimeError("a fault of ours")


async def test_a_stream_whose_hello_is_under_way_when_the_leader_stops_is_hung_up_on() -> None:
    told = Told(who("n1"))
    server = StreamServer(told, None)
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


async def test_a_stream_that_comes_after_the_leader_stopped_is_turned_away() -> None:
    told = Told(who("n1"))
    server = StreamServer(told, None)
    await server.close()
    async with listening({"/peer/stream": server.serve}) as address, calling() as session:
        with pytest.raises(WSServerHandshakeError):
            await session.ws_connect(f"http://{address}/peer/stream")
