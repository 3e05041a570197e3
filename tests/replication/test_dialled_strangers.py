"""An address at which a stranger answers may be dialled for weeks: each time ends soon, and leaves nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import FrameType

import pytest
from aiohttp import ClientRequest, ClientResponse, ClientSession, ClientWebSocketResponse

from quire.log import pack
from quire.replication.net.hello import HIGHEST_PROTOCOL, LINK_FAILURES, LOWEST_PROTOCOL, dial
from tests.garbage import garbage
from tests.ports import free_ports
from tests.replication.loopback import DEADLINE_S, HOST, calling, trusting, who
from tests.replication.recorder import NONCE
from tests.replication.strangers import BAD_HELLOS, answering, frame, rest

LASTING = (ClientWebSocketResponse, ClientRequest, ClientResponse, BaseException, FrameType)
TIMES = 5
SECRET = b"a secret of the peers"
CHALLENGE = frame(pack([[LOWEST_PROTOCOL, HIGHEST_PROTOCOL], NONCE]))
FORGED = [
    *(getattr(who("n2"), name) for name in ("cluster_id", "node_id", "disk_id", "incarnation", "address")),
    [],
    b"",
]

Stranger = Callable[[], AbstractAsyncContextManager[str]]


def saying(data: bytes) -> Stranger:
    """A stranger who takes the request for a WebSocket's, and sends this."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await rest(reader)

    return lambda: answering(play)


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHALLENGE)
    await writer.drain()


def answer(data: bytes) -> Stranger:
    """A server that gives this for a response."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.close()

    @asynccontextmanager
    async def serving() -> AsyncGenerator[str]:
        server = await asyncio.start_server(accept, HOST, 0)
        try:
            yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    return serving


@asynccontextmanager
async def _nobody() -> AsyncGenerator[str]:
    yield f"localhost:{free_ports(1)[0]}"  # Often two addresses.


STRANGERS: dict[str, Stranger] = {
    "nobody": _nobody,
    "a hang-up": lambda: answering(_hang_up),
    "a refusal": saying(frame(pack(["refused", "peer_secret", "no"]))),
    "a refusal after the challenge": saying(CHALLENGE + frame(pack(["refused", "peer_secret", "no"]))),
    "a welcome of another shape": saying(CHALLENGE + frame(pack([[], b""]))),
    "a welcome without the secret": saying(CHALLENGE + frame(pack([FORGED, bytes(32)]))),
    "400": answer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "404": answer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    "another place": answer(b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "no accepted key": answer(b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"),
    "another protocol": answer(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "no answer": answer(b""),
    **{f"for a challenge, {name}": saying(bad.data()) for name, bad in BAD_HELLOS.items() if bad.is_ended},
}


async def dials(session: ClientSession, address: str, times: int, ping_s: float | None) -> None:
    """Dial so many times, in vain."""
    for _ in range(times):
        async with asyncio.timeout(DEADLINE_S):
            try:
                await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), ping_s)
            except LINK_FAILURES:
                continue
        raise AssertionError("a stranger was taken for n2")


async def test_dialled_strangers_leave_nothing_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 1000.0)
    async with calling() as session, AsyncExitStack() as strangers:
        addresses = [await strangers.enter_async_context(stranger()) for stranger in STRANGERS.values()]
        for ping_s in (None, 30.0):
            for address in addresses:
                await dials(session, address, 1, ping_s)
        with garbage() as found:
            for ping_s in (None, 30.0):
                for address in addresses:
                    await dials(session, address, TIMES, ping_s)
    assert [each for each in found if isinstance(each, LASTING)] == []
