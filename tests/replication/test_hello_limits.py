"""What a stranger may send in a hello, at either end: little, of one kind, and never compressed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError, web

from quire.log import pack, unpack
from quire.replication.core.messages import GenesisOffer
from quire.replication.net.hello import (
    HIGHEST_PROTOCOL as PROTOCOL,
)
from quire.replication.net.hello import (
    MAX_HELLO_BYTES,
    MAX_HELLO_CONTAINERS,
    MAX_UNPROVED_BYTES,
    PATHS,
    PEER_PATHS,
    PeerRefused,
    answer_hello,
    dial,
    dial_hello,
)
from quire.replication.net.sockets import StrangerSentTooMuch
from quire.replication.net.wire import BadMessage, encode
from tests.replication.loopback import DEADLINE_S, calling, listening, trusting, until, who
from tests.replication.recorder import NONCE, Recorder
from tests.replication.strangers import (
    BINARY,
    COMPRESSED,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    answering,
    frame,
    opened,
    rest,
)
from tests.replication.test_hello import meet, row
from tests.replication.test_hello_servers import PURPOSES, SECRET, serving

Message = Callable[[Any], list[Any]]
"""One of the hello's four messages with something put into it."""

MESSAGES: dict[str, Message] = {
    "challenge": lambda filling: [filling, NONCE],
    "hello": lambda filling: [PROTOCOL, "peer", row(who("n1")), NONCE, filling],
    "welcome": lambda filling: [row(who("n2")), filling],
    "refused": lambda filling: ["refused", "code", filling],
}
EMPTY_BYTES = {name: len(pack(message(b""))) for name, message in MESSAGES.items()}
BIN16_BYTES = 1  # A `bin` of some length has a head of three bytes, an empty one of two.


async def refusal_of(name: str, data: bytes) -> str:
    """Why the end that gets this message of the hello refuses it."""

    async def send_hello(socket: ClientWebSocketResponse) -> None:
        await socket.receive()
        await socket.send_bytes(data)

    async def send_answer(socket: web.WebSocketResponse) -> None:
        if name == "welcome":
            await socket.send_bytes(pack([[PROTOCOL, PROTOCOL], NONCE]))
            await socket.receive()
        await socket.send_bytes(data)

    if name == "hello":
        _, end = await meet(send_hello, lambda socket: answer_hello(socket, who("n2"), "peer", (SECRET,), NONCE))
    else:
        end, _ = await meet(lambda socket: dial_hello(socket, who("n1"), "n2", "peer", SECRET, NONCE), send_answer)
    assert isinstance(end, BadMessage | PeerRefused), end
    return str(end)


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_of_the_hello_is_read_up_to_its_limit_of_bytes(name: str) -> None:
    filling = bytes(MAX_HELLO_BYTES - EMPTY_BYTES[name] - BIN16_BYTES)
    largest, larger = pack(MESSAGES[name](filling)), pack(MESSAGES[name](filling + b"\0"))
    assert (len(largest), len(larger)) == (MAX_HELLO_BYTES, MAX_HELLO_BYTES + 1)

    assert f"more than {MAX_HELLO_BYTES}" not in await refusal_of(name, largest)
    assert f"more than {MAX_HELLO_BYTES}" in await refusal_of(name, larger)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("item", [[], {}])
async def test_a_message_of_the_hello_is_read_up_to_its_limit_of_containers(name: str, item: object) -> None:
    others = 4 if name in {"hello", "welcome"} else 2  # Its own, its info and the features in it, the one put in.
    largest, larger = (pack(MESSAGES[name]([item] * (MAX_HELLO_CONTAINERS - others + more))) for more in (0, 1))

    assert f"more than {MAX_HELLO_CONTAINERS}" not in await refusal_of(name, largest)
    assert f"more than {MAX_HELLO_CONTAINERS}" in await refusal_of(name, larger)


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_of_the_hello_that_declares_more_than_it_holds_is_not_unpacked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []

    def recorded(data: bytes) -> Any:
        unpacked.append(data)
        return unpack(data)

    monkeypatch.setattr("quire.replication.net.hello.unpack", recorded)
    for data in (b"\x95" + b"\xdd\xff\xff\xff\xff" * 60, b"\x91" * 600, b"\xdc\x30\x00" * 60 + bytes(12_288), b""):
        assert await refusal_of(name, data)
        assert data not in unpacked


MIB = bytes(1 << 20)
FLOODS: dict[str, Callable[[], bytes]] = {
    "1 MiB": lambda: frame(MIB),
    "1 MiB that does not come": lambda: frame(MIB[1:], declared=len(MIB)),
    "a message without end": lambda: frame(b"", final=False) + frame(b"", CONTINUATION, final=False) * (1 << 19),
    "fragments of 1 MiB": lambda: frame(MIB[:1024], final=False) + frame(MIB[:1024], CONTINUATION, final=False) * 1023,
    "a text": lambda: frame(b"hello", TEXT),
    "pings": lambda: frame(b"", PING) * 100_000,
    "pongs": lambda: frame(b"", PONG) * 100_000,
    "1 MiB at once after a ping": lambda: frame(b"", PING) + frame(MIB),
    "compressed": lambda: frame(b"\x62\x60\x00\x00", BINARY | COMPRESSED),
    "more than a GiB": lambda: frame(b"", declared=1 << 62),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_stranger_that_sends_a_node_too_much_or_something_else_is_cut_off_at_once(
    flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 1000.0)
    data = FLOODS[flood]()
    for purpose in PURPOSES:
        told = Recorder(who("n2"))
        async with (
            asyncio.timeout(DEADLINE_S),
            serving(purpose, told, SECRET) as (_, address),
            opened(address, PATHS[purpose]) as (reader, writer, head),
        ):
            assert " 101 " in head
            writer.write(data)
            assert len(await rest(reader)) < 100  # The challenge alone, and no pong.
        assert told.came == []


@pytest.mark.parametrize("path", sorted(PEER_PATHS))
async def test_a_stranger_that_sends_something_before_it_has_an_answer_gets_no_websocket(path: str) -> None:
    [purpose] = [purpose for purpose, served in PATHS.items() if path == served]
    async with (
        serving(purpose, Recorder(who("n2"))) as (_, address),
        opened(address, path, at_once=frame(b"", PING)) as (_, _, head),
    ):
        assert " 400 " in head


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_node_that_dials_a_stranger_who_sends_too_much_or_something_else_hangs_up_at_once(
    flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 1000.0)
    data, heard = FLOODS[flood](), list[bytes]()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        heard.append(await rest(reader))

    async with asyncio.timeout(DEADLINE_S), answering(play) as address, calling() as session:
        for ping_s in (None, 30.0):
            with pytest.raises((ConnectionError, BadMessage)):
                await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), ping_s)
        await until(lambda: len(heard) == 2)
    assert max(map(len, heard)) < 100  # No hello, and no pong: a close at most.


async def test_what_is_too_much_is_said() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(MIB))
        await rest(reader)

    async with answering(play) as address, calling() as session:
        with pytest.raises(StrangerSentTooMuch, match=f"more than {MAX_UNPROVED_BYTES} bytes"):
            await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), None)


# After the hello


async def test_a_peer_may_send_large_messages_once_it_is_proved() -> None:
    told, large = Recorder(who("n2")), GenesisOffer(MIB, committed=True)
    async with serving("peer", told, SECRET) as (session, address):
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), None)
        await socket.send_bytes(encode(large))
        await until(lambda: told.said)
        await socket.close()
    assert told.said == [("n1", large)]


async def test_a_dialled_peer_may_send_large_messages_once_it_is_proved() -> None:
    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        await answer_hello(socket, who("n2"), "snapshot", (SECRET,), NONCE)
        await socket.receive()
        await socket.send_bytes(MIB)
        await socket.receive()
        return socket

    async with listening({PATHS["snapshot"]: serve}) as address, calling() as session:
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "snapshot", trusting(SECRET), None)
        await socket.send_bytes(b"asked")  # Until it is, a peer sends no more than a hello.
        assert (await socket.receive()).data == MIB
        await socket.close()


async def test_a_node_answers_the_pings_of_a_peer_once_it_is_proved() -> None:
    for purpose in PURPOSES:
        async with serving(purpose, Recorder(who("n2")), SECRET) as (session, address):
            socket, _ = await dial(session, address, lambda: who("n1"), "n2", purpose, trusting(SECRET), None)
            await socket.ping(b"n2?")
            pong = await socket.receive()
            assert (pong.type, pong.data) == (WSMsgType.PONG, b"n2?")
            await socket.close()


async def test_a_dialler_answers_the_pings_of_a_peer_once_it_is_proved() -> None:
    answers: list[Any] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0, autoping=False)
        await socket.prepare(request)
        await answer_hello(socket, who("n2"), "stream", (SECRET,), NONCE)
        await socket.ping(b"n1?")
        answers.append(await socket.receive())
        return socket

    async with listening({PATHS["stream"]: serve}) as address, calling() as session:
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "stream", trusting(SECRET), 30.0)
        assert (await socket.receive()).type is WSMsgType.CLOSE
    assert [(answer.type, answer.data) for answer in answers] == [(WSMsgType.PONG, b"n1?")]


# Compression


@pytest.mark.parametrize("path", sorted(PEER_PATHS))
async def test_a_node_compresses_no_connection_of_peers_though_one_offers_it(path: str) -> None:
    [purpose] = [purpose for purpose, served in PATHS.items() if path == served]
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    async with (
        serving(purpose, Recorder(who("n2"))) as (_, address),
        opened(address, path, offer) as (_, _, head),
    ):
        assert " 101 " in head
        assert "extensions" not in head.lower()


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_dialler_offers_no_compression(purpose: str) -> None:
    heads: list[dict[str, str]] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        heads.append(dict(request.headers))
        raise web.HTTPForbidden

    async with listening({PATHS[purpose]: serve}) as address, calling() as session:
        with pytest.raises(WSServerHandshakeError):
            await dial(session, address, lambda: who("n1"), "n2", purpose, trusting(None), 30.0)
    assert not any("Sec-WebSocket-Extensions" in head for head in heads)


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_stranger_sends_a_dialler_nowhere_else(status: int) -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with listening({PATHS["peer"]: redirect, "/elsewhere": redirect}) as address, calling() as session:
        with pytest.raises(ClientError, match="it redirects"):
            await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(None), None)
    assert asked == [PATHS["peer"]]
