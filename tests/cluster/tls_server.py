"""A server with TLS, its journal, and callers that it need not like."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
import uvloop
from aiohttp import WSMsgType, web

from quire.cluster.access.tls import Tls, name_of_cluster, name_of_node
from quire.cluster.http.admission.connections import ConnectionLimit, peer_of
from quire.cluster.http.app import serve_app
from quire.cluster.http.listener import Listener
from quire.cluster.request_id import REQUEST_ID
from quire.replication.net.sockets import StrangerSentTooMuch, of_a_stranger
from tests.cluster.access.issued import CLUSTER, Issuer
from tests.ports import HOST

DEADLINE_S = 60.0
OF_CLUSTER = name_of_cluster(CLUSTER)
OWN = name_of_node("n1", CLUSTER)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = bytes(3 << 20)
STRANGER_BYTES = 1000

Test = Callable[[], Awaitable[None]]
NewLoop = Callable[[], asyncio.AbstractEventLoop]
on_both_loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(test: Awaitable[None], new_loop: NewLoop = uvloop.new_event_loop) -> None:
    """Run a test on such a loop. It fails if the loop complains about anything, as it does with a traceback."""
    complaints: list[dict[str, Any]] = []

    async def in_time() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await test

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(in_time())
    assert not complaints


@dataclass
class TlsServer:
    """A server that answers `/` with the peer that asks, echoes what is posted, and can be made to wait."""

    connections: ConnectionLimit
    tls: Tls | None
    runner: web.AppRunner = field(init=False)
    listener: Listener = field(init=False)
    port: int = field(init=False)
    waiting: int = 0
    refused: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2 * len(LONG))
        app.add_routes([web.get("/", self.greet), web.post("/", self.echo), web.get("/long", self.long)])
        app.add_routes([web.get("/wait", self.wait), web.get("/socket", self.talk)])
        app.add_routes([web.get("/hello", self.hear)])
        return app

    async def greet(self, request: web.Request) -> web.Response:
        status = 429 if self.connections.refuses(request) else 200
        returned = {REQUEST_ID: request.headers.get(REQUEST_ID, "")}
        return web.Response(status=status, text=f"<{peer_of(request)}>", headers=returned)

    async def echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def long(self, _: web.Request) -> web.Response:
        return web.Response(body=LONG)

    async def wait(self, _: web.Request) -> web.Response:
        self.waiting += 1
        await self.may_answer.wait()
        return web.Response(text="waited")

    async def talk(self, request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        async for message in response:
            await response.send_bytes(message.data)
        return response

    async def hear(self, request: web.Request) -> web.WebSocketResponse:
        """Reads one message of a stranger, and then talks."""
        response = web.WebSocketResponse()
        await response.prepare(request)
        try:
            with of_a_stranger(response, STRANGER_BYTES):
                if (said := await response.receive()).type is not WSMsgType.BINARY:
                    raise ConnectionResetError
                await response.send_bytes(said.data)
        except StrangerSentTooMuch:
            self.refused += 1
            return response
        async for message in response:
            await response.send_bytes(message.data)
        return response

    async def call(
        self, context: ssl.SSLContext, name: str = OF_CLUSTER
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname=name)

    def silent(self) -> socket.socket:
        """A caller that has sent nothing yet."""
        return socket.create_connection((HOST, self.port), timeout=DEADLINE_S)


@asynccontextmanager
async def tls_server(tls: Tls | None, reserve: int = 256) -> AsyncGenerator[TlsServer]:
    server = TlsServer(ConnectionLimit(reserve=reserve), tls)
    server.runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    listening = socket.create_server((HOST, 0))
    server.port = listening.getsockname()[1]
    server.listener = await serve_app(server.runner, server.connections, listening, lambda: server.tls)
    try:
        yield server
    finally:
        await server.listener.close()
        await server.runner.cleanup()


@asynccontextmanager
async def journal() -> AsyncGenerator[list[Any]]:
    """The lines that are logged."""
    with structlog.testing.capture_logs() as entries:
        yield entries


def trusting(authority: Issuer, **attributes: Any) -> ssl.SSLContext:
    """A client's context, with attributes set as they are given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    for name, value in attributes.items():
        setattr(context, name, value)
    return context


async def answer_to(server: TlsServer, context: ssl.SSLContext, name: str = OF_CLUSTER, request: bytes = GET) -> bytes:
    """The end of the head and the body that a caller gets, which closes its connection then."""
    reader, writer = await server.call(context, name)
    writer.write(request)
    try:
        return await reader.readuntil(b">")
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
