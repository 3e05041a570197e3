"""Either end of a WebSocket as a stranger may play it: bytes that no library would send."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tests.replication.loopback import HOST

KEY = base64.b64encode(bytes(16)).decode()
ACCEPTED_BY = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3.
CONTINUATION, TEXT, BINARY, PING, PONG = 0, 1, 2, 9, 10

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def opening(path: str, extra: str = "") -> bytes:
    """The request that opens a WebSocket; `extra` are lines of its head, each with its end."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
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
    with suppress(ConnectionError):
        while more := await reader.read(1 << 16):
            came += more
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
