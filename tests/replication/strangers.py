"""Either end of a WebSocket as a stranger may play it: bytes that no library would send."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from quire.log import pack
from quire.log.packing import array_head
from quire.replication.net.hello import HIGHEST_PROTOCOL as PROTOCOL
from tests.replication.loopback import HOST, who
from tests.replication.recorder import NONCE

KEY = base64.b64encode(bytes(16)).decode()
ACCEPTED_BY = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3.
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
COMPRESSED = 0x40  # RSV1, of permessage-deflate.
MIB = 1 << 20

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def opening(path: str, extra: str = "") -> bytes:
    """The request that opens a WebSocket; `extra` are lines of its head, each with its end."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{extra}\r\n"
    ).encode()


def frame(data: bytes, opcode: int = BINARY, *, final: bool = True, declared: int | None = None) -> bytes:
    """A frame, not masked, which aiohttp takes from both ends; `declared` is the length in its head, if not its own."""
    length = len(data) if declared is None else declared
    head = bytes([opcode | 0x80 * final])
    if length < 126:
        return head + bytes([length]) + data
    if length < 1 << 16:
        return head + bytes([126]) + length.to_bytes(2) + data
    return head + bytes([127]) + length.to_bytes(8) + data


@asynccontextmanager
async def opened(
    address: str, path: str, extra: str = "", at_once: bytes = b""
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter, str]]:
    """An open WebSocket, and the head of the answer to its request, after which `at_once` was sent without waiting."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(opening(path, extra) + at_once)
        yield reader, writer, (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What arrives until the other end closes the connection, however it does."""
    came = b""
    try:
        while more := await reader.read(1 << 16):
            came += more
    except ConnectionError as error:
        error.__traceback__ = None  # The reader holds it: its frames would be garbage that tests take for a node's.
    return came


@asynccontextmanager
async def answering(play: Play) -> AsyncGenerator[str]:
    """HOST:PORT of a stranger who takes each request for a WebSocket's, and then plays."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
            accepted = base64.b64encode(hashlib.sha1((key + ACCEPTED_BY).encode()).digest()).decode()
            answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            writer.write(f"{answer}Sec-WebSocket-Accept: {accepted}\r\n\r\n".encode())
            await play(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The node hung up, as it should.
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class BadHello(NamedTuple):
    """What a stranger sends instead of a hello; whether the node then ends the connection at once."""

    data: Callable[[], bytes]
    is_ended: bool = True


def _forged() -> bytes:
    me = who("n9")
    row = [me.cluster_id, me.node_id, me.disk_id, me.incarnation, me.address]
    return frame(pack([PROTOCOL, "peer", row, NONCE, bytes(32)]))


BAD_HELLOS = {
    "nothing": BadHello(lambda: b"", is_ended=False),
    "half": BadHello(lambda: frame(bytes(100), declared=1000), is_ended=False),
    "1 MiB of maps": BadHello(lambda: frame(array_head(MIB) + b"\x80" * MIB)),
    "65 arrays": BadHello(lambda: frame(pack([[]] * 64))),
    "another shape": BadHello(lambda: frame(pack([]))),
    "not msgpack": BadHello(lambda: frame(b"\xc1")),
    "no secret": BadHello(_forged),
    "a text": BadHello(lambda: frame(b"hello", TEXT)),
    "a ping": BadHello(lambda: frame(b"", PING)),
    "a close": BadHello(lambda: frame((1000).to_bytes(2), CLOSE)),
    "no code of a close": BadHello(lambda: frame((1).to_bytes(2), CLOSE)),
    "compressed": BadHello(lambda: frame(b"\x62\x60\x00\x00", BINARY | COMPRESSED)),
    "a continuation": BadHello(lambda: frame(b"", CONTINUATION)),
}
"""By their kind; at the path of a link."""
