"""The router: each path reaches its port, bytes are unchanged, and ends and breaks are passed on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.cluster.access.tls import Tls
from tests.faults.router import FIRST_LINE_BYTES, Router, StandIn
from tests.ports import HOST, free_port
from tests.processes.locked import locked_files

DEADLINE_S = 10.0
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Named:
    """Servers that answer with their name and what they were sent, and the router before them."""

    def __init__(self) -> None:
        self.port = 0
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        ports = {path: await self._server(name) for path, name in (("/peer", b"control"), ("", b"stream"))}
        router, self.port = Router(ports), free_port()
        await router.start(self.port)
        self._stack.push_async_callback(router.close)

    async def _server(self, name: bytes) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name + b": " + await reader.read())
            await hang_up(writer)

        server = await asyncio.start_server(answer, HOST, 0)
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    async def dial(self) -> Ends:
        return await asyncio.open_connection(HOST, self.port, limit=1 << 20)

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def named() -> AsyncIterator[Named]:
    servers = Named()
    await servers.start()
    yield servers
    await servers.close()


async def answer_to(named: Named, *parts: bytes) -> bytes:
    reader, writer = await named.dial()
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    await hang_up(writer)
    return answer


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (b"/peer", b"control"),
        (b"/peer?a=b", b"control"),
        (b"/peer/stream", b"stream"),
        (b"/peers", b"stream"),
        (b"/commands", b"stream"),
    ],
)
async def test_a_path_leads_to_its_port_and_every_byte_arrives(named: Named, target: bytes, name: bytes) -> None:
    sent = b"GET " + target + b" HTTP/1.1\r\n" + bytes(range(256)) * 1_000

    assert await answer_to(named, sent) == name + b": " + sent


async def test_a_first_line_in_pieces_is_read_to_its_end(named: Named) -> None:
    assert (
        await answer_to(named, b"GET /pe", b"er HTTP", b"/1.1\r", b"\nrest") == b"control: GET /peer HTTP/1.1\r\nrest"
    )


async def test_a_connection_without_a_first_line_is_ended(named: Named) -> None:
    reader, writer = await named.dial()
    writer.write(b"x" * (FIRST_LINE_BYTES * 2 + 1))

    async with asyncio.timeout(DEADLINE_S):
        assert await read_to_the_end(reader) == b""
    await hang_up(writer)


async def test_a_connection_that_breaks_behind_the_router_breaks_before_it() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(reset, HOST, 0)
    router, port = Router({"": server.sockets[0].getsockname()[1]}), free_port()
    await router.start(port)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET / HTTP/1.1\r\n")

    async with asyncio.timeout(DEADLINE_S):
        assert await read_to_the_end(reader) == b""

    await hang_up(writer)
    await router.close()
    server.close()


async def test_where_nobody_listens_behind_the_router_a_connection_is_ended() -> None:
    router, port = Router({"": free_port()}), free_port()
    await router.start(port)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET / HTTP/1.1\r\n")

    async with asyncio.timeout(DEADLINE_S):
        assert await read_to_the_end(reader) == b""

    await hang_up(writer)
    await router.close()


async def test_a_silenced_connection_passes_nothing_and_stays_open_until_it_is_broken_and_new_ones_pass() -> None:
    heard: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            heard.append(line)
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    there = int(server.sockets[0].getsockname()[1])
    router, port = Router({"": there}), free_port()
    await router.start(port)
    old, new = await asyncio.open_connection(HOST, port), None
    async with asyncio.timeout(DEADLINE_S):
        old[1].write(b"GET / HTTP/1.1\r\n")
        assert await old[0].readline() == b"GET / HTTP/1.1\r\n"
        router.silence({there})
        old[1].write(b"unheard\n")
        new = await asyncio.open_connection(HOST, port)
        new[1].write(b"GET /new HTTP/1.1\r\n")
        assert await new[0].readline() == b"GET /new HTTP/1.1\r\n"
        assert not old[0].at_eof()
        await router.break_silent()
        assert await read_to_the_end(old[0]) == b""

    assert b"unheard\n" not in heard
    for _, writer in (old, new):
        await hang_up(writer)
    await router.close()
    server.close()


@pytest.fixture
def locked(tmp_path: Path) -> tuple[Tls, Tls]:
    """The contexts of a node that dials, and of the one that it dials."""
    files = locked_files(tmp_path / "locked", ["n1", "n2"])
    return files.contexts("n1"), files.contexts("n2")


async def test_between_nodes_that_speak_tls_it_stands_in_for_both_and_passes_on_ends(locked: tuple[Tls, Tls]) -> None:
    dialler, dialled = locked
    sent, shown = b"GET /peer HTTP/1.1\r\n" + bytes(range(256)) * 1_000, []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(writer.get_extra_info("peercert")["subjectAltName"][0])
        writer.write(b"control: " + await reader.readexactly(len(sent)))
        await hang_up(writer)

    server = await asyncio.start_server(answer, HOST, 0, ssl=dialled.peers)
    there = int(server.sockets[0].getsockname()[1])
    router, port = (
        Router({"/peer": there, "": 0}, StandIn(dialled.peers, dialler.dialling, dialled.node_name)),
        free_port(),
    )
    await router.start(port)
    reader, writer = await asyncio.open_connection(HOST, port, ssl=dialler.dialling, server_hostname=dialled.node_name)

    async with asyncio.timeout(DEADLINE_S):
        writer.write(sent)
        assert await reader.read() == b"control: " + sent

    assert shown == [("DNS", dialler.node_name)]
    await hang_up(writer)
    await router.close()
    server.close()


async def test_a_connection_with_tls_that_breaks_behind_the_router_breaks_before_it(locked: tuple[Tls, Tls]) -> None:
    dialler, dialled = locked

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(reset, HOST, 0, ssl=dialled.peers)
    there = int(server.sockets[0].getsockname()[1])
    router, port = Router({"": there}, StandIn(dialled.peers, dialler.dialling, dialled.node_name)), free_port()
    await router.start(port)
    reader, writer = await asyncio.open_connection(HOST, port, ssl=dialler.dialling, server_hostname=dialled.node_name)
    writer.write(b"GET / HTTP/1.1\r\n")

    async with asyncio.timeout(DEADLINE_S):
        assert await read_to_the_end(reader) == b""

    await hang_up(writer)
    await router.close()
    server.close()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), DEADLINE_S)
    except ConnectionError:
        return  # The other side was quicker.


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
