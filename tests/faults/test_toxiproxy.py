"""The toxiproxy fixture itself, over a plain echo server."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.faults.toxiproxy import VERSION, Link, ToxiproxyError, ToxiproxyServer, running_toxiproxy
from tests.ports import HOST

DEADLINE_S = 10.0


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """The address of a server that sends back what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return  # a reset is one of the faults under test
        finally:
            writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    server.close()
    await asyncio.wait_for(server.wait_closed(), DEADLINE_S)


class Caller:
    """One connection to an address, with deadlines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int) -> "Caller":
        return cls(*await asyncio.wait_for(asyncio.open_connection(HOST, port), DEADLINE_S))

    async def echo(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await asyncio.wait_for(self.reader.readexactly(len(data)), DEADLINE_S)

    async def close(self) -> None:
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), DEADLINE_S)
        except ConnectionError:
            return  # the other side was quicker


async def test_the_server_is_the_pinned_version(toxiproxy: ToxiproxyServer) -> None:
    assert await toxiproxy.version() == VERSION


async def test_a_link_passes_bytes_both_ways(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)

    caller = await Caller.dial(link.port)

    assert await caller.echo(b"a sheet") == b"a sheet"
    await caller.close()


async def test_a_cut_ends_connections_and_refuses_new_ones_until_healed(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)
    caller = await Caller.dial(link.port)
    await caller.echo(b"before")

    await link.cut()

    assert await asyncio.wait_for(caller.reader.read(), DEADLINE_S) == b""
    with pytest.raises(ConnectionRefusedError):
        await Caller.dial(link.port)
    await caller.close()

    await link.heal()

    again = await Caller.dial(link.port)
    assert await again.echo(b"after") == b"after"
    await again.close()


async def test_a_latency_toxic_delays_until_it_is_removed(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)
    caller = await Caller.dial(link.port)

    toxic = await link.add_toxic("latency", "downstream", latency=200)
    began = time.monotonic()
    await caller.echo(b"slow")
    assert time.monotonic() - began >= 0.2

    await link.remove_toxic(toxic)
    assert await caller.echo(b"fast") == b"fast"
    await caller.close()


async def test_a_cut_link_leaves_the_other_links_alone(toxiproxy: ToxiproxyServer, echo: str) -> None:
    cut = await toxiproxy.add_link("n1-n2", echo)
    whole = await toxiproxy.add_link("n1-n3", echo)
    caller = await Caller.dial(whole.port)

    await cut.cut()

    assert await caller.echo(b"still here") == b"still here"
    await caller.close()


async def test_reset_heals_every_link_and_removes_every_toxic(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)
    await link.add_toxic("timeout", "upstream", timeout=0)  # lets nothing through
    await link.cut()

    await toxiproxy.reset()

    caller = await Caller.dial(link.port)
    assert await caller.echo(b"clean") == b"clean"
    await caller.close()


async def test_a_removed_link_is_gone(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)
    kept = await toxiproxy.add_link("n1-n3", echo)

    await link.remove()

    assert await toxiproxy.links() == [kept.name]
    with pytest.raises(ConnectionRefusedError):
        await Caller.dial(link.port)


async def test_refused_calls_carry_the_servers_words(toxiproxy: ToxiproxyServer, echo: str) -> None:
    link = await toxiproxy.add_link("n1-n2", echo)

    with pytest.raises(ToxiproxyError, match="proxy already exists"):
        await toxiproxy.add_link("n1-n2", echo)
    with pytest.raises(ToxiproxyError, match="toxic not found"):
        await link.remove_toxic("none")


async def test_the_server_and_its_links_are_gone_after_a_failing_test(echo: str) -> None:
    used: list[tuple[ToxiproxyServer, Link]] = []

    async def failing() -> None:
        async with running_toxiproxy() as server:
            used.append((server, await server.add_link("n1-n2", echo)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()

    [(server, link)] = used
    with pytest.raises(ConnectionRefusedError):
        await Caller.dial(link.port)
    with pytest.raises(ToxiproxyError):
        await server.version()
