"""The turns of a client's servers: who is late is neither given up nor avoided, and nothing is sent to two of them.

Nobody is late by a time: one server waits until another one was asked.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from quire.cluster.client import connect
from quire.cluster.client.transport import Transport
from quire.cluster.http.problems import problem
from quire.cluster.request_id import REQUEST_ID
from tests.cluster.scripted import broken, document, scripted
from tests.cluster.test_silent_servers import frozen
from tests.replication.loopback import until

DEADLINE_S = 20
Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serving(handle: Handler) -> AsyncGenerator[str, None]:
    """The address of a server that answers so."""

    async def answer(request: web.Request) -> web.Response:
        response = await handle(request)
        response.headers[REQUEST_ID] = request.headers[REQUEST_ID]
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@asynccontextmanager
async def transport_to(*servers: str) -> AsyncGenerator[Transport, None]:
    transport = Transport(servers, DEADLINE_S)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield transport
    finally:
        await transport.close()


async def test_a_server_that_was_late_once_serves_although_another_one_answers_that_it_cannot() -> None:
    refused = asyncio.Event()

    async def late(_request: web.Request) -> web.Response:
        await refused.wait()
        return web.json_response({})

    async def leaderless(request: web.Request) -> web.Response:
        if request.path == "/healthz":
            return web.json_response({})
        refused.set()
        return problem(503, "no-leader", "title", "no leader is heard", {})

    async with serving(late) as first, serving(leaderless) as second, transport_to(first, second) as transport:
        await transport.call("GET", "/x")
        assert not transport.servers.is_avoided(first)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_server_that_answers_late_serves_and_nobody_is_avoided(method: str) -> None:
    served, asked = list[str](), asyncio.Event()

    async def late(request: web.Request) -> web.Response:
        await asked.wait()
        served.append(request.method)
        return web.json_response({})

    async def later(_request: web.Request) -> web.Response:
        asked.set()
        return await asyncio.Future()

    async with serving(late) as first, serving(later) as second, transport_to(first, second) as transport:
        await transport.call(method, "/x", writes=method == "POST")
        assert method in served
        assert not any(map(transport.servers.is_avoided, (first, second)))


async def test_a_dial_that_is_slow_goes_on_while_the_next_server_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: dict[int, asyncio.Event] = {}
    loop = asyncio.get_running_loop()
    connecting = loop.sock_connect

    async def slow(sock: object, address: tuple[str, int]) -> None:
        dialled[address[1]].set()
        await asyncio.gather(*(each.wait() for each in dialled.values()))
        if address[1] == min(dialled):
            await asyncio.Future()
        await connecting(sock, address)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "sock_connect", slow)
    monkeypatch.setattr("quire.cluster.client.transport.CONNECT_TIMEOUT_S", 2 * DEADLINE_S)
    async with scripted(document({})) as one, scripted(document({})) as other:
        ports = sorted((int(each.address.rpartition(":")[2]), each) for each in (one, other))
        dialled.update((port, asyncio.Event()) for port, _ in ports)
        (_, last), (_, first) = ports
        async with transport_to(first.address, last.address) as transport:
            await transport.call("POST", "/x", writes=True, body=b"x")
            assert not any(map(transport.servers.is_avoided, transport.servers.named))
            assert [request[0] for request in first.requests] == ["POST"]


async def test_a_change_that_may_be_repeated_is_not_sent_to_a_silent_server_and_to_another() -> None:
    async with frozen() as silent, scripted(document({"leader": "n1"})) as server:
        async with connect([silent.address, server.address]) as client, asyncio.timeout(DEADLINE_S):
            await client.transfer("n1")
        assert silent.requests == [b"GET /healthz"]


async def test_each_server_of_a_round_has_as_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []

    def late(_session: ClientSession, _method: str, url: str, **_options: object) -> None:
        waits.append(url.partition("wait_ms=")[2])
        raise TimeoutError

    monkeypatch.setattr(ClientSession, "request", late)
    async with transport_to("n1:1", "n2:1", "n3:1") as transport:
        reading = asyncio.create_task(transport.call("GET", "/x?", awaits_record=True))
        await until(lambda: len(waits) > 3)
        reading.cancel()
        await asyncio.wait((reading,))
    assert waits[:4] == ["3000", "3000", "3000", "6000"]


async def test_what_a_node_says_of_itself_names_no_leader() -> None:
    async with scripted(document({})) as server, transport_to(server.address) as transport:
        transport.servers.learn_leader("n2=127.0.0.1:7002")
        await transport.ask(server.address, "/leader?epoch=1&wait_ms=0", 0.0)
        assert transport.servers.leader == "127.0.0.1:7002"


async def test_a_server_that_was_heard_lately_is_pinged_no_more() -> None:
    async with (
        scripted(document({})) as server,
        scripted(broken) as other,
        transport_to(server.address, other.address) as transport,
    ):
        for _ in range(3):
            heard_at = transport.servers._heard_at  # pyright: ignore[reportPrivateUsage]
            heard_at.update({at: heard - 5 for at, heard in heard_at.items()})
            await transport.call("POST", "/x", writes=True, body=b"x")
    assert (server.pings, len(server.requests)) == (1, 3)
