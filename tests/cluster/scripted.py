"""A server with scripted answers: what a client meets when a node, or its network, misbehaves."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from quire.cluster.http.problems import problem
from quire.cluster.request_id import REQUEST_ID
from quire.log import pack

Step = Callable[[web.Request], web.Response | None]


@dataclass
class ScriptedServer:
    """Answers requests by its steps in order, then by the last. A step that returns None breaks the connection."""

    steps: list[Step]
    address: str = ""
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    pings: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/healthz":
            self.pings += 1
            return web.Response(headers={REQUEST_ID: request.headers.get(REQUEST_ID, "")})
        self.requests.append((request.method, request.path_qs, await request.read()))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        answer = step(request)
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if not isinstance(answer, _Foreign):
            answer.headers[REQUEST_ID] = request.headers.get(REQUEST_ID, "")
        return answer


class _Foreign(web.Response):
    """Of no node."""


@asynccontextmanager
async def scripted(
    *steps: Step, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncGenerator[ScriptedServer, None]:
    server = ScriptedServer(list(steps))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def silent() -> AsyncGenerator[str, None]:
    """The address of a server that accepts connections and never answers."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.close()


def appended(index: int, leader: str | None = None) -> Step:
    """A successful answer to POST /records."""

    def step(_request: web.Request) -> web.Response:
        headers = {"Quire-Leader": f"n1={leader}"} if leader else None
        body = pack({"write_index": index, "count": 1})
        return web.Response(body=body, content_type="application/msgpack", headers=headers)

    return step


def document(value: object) -> Step:
    """A successful answer to any call."""
    return lambda _request: web.Response(body=pack(value), content_type="application/msgpack")


LINE = {"epoch": 1, "timestamp": 1, "kind": "records", "session": 0, "sequence": 0, "executed": True, "headers": {}}
"""What the lines of a range have, but for index and value."""


def lines(*indices: int, next_index: int, same: Mapping[str, Any] = LINE) -> Step:
    """A range of GET /records."""
    rows = [{**same, "index": index, "value": index} for index in indices]

    def step(_request: web.Request) -> web.Response:
        headers = {"Quire-Next-Index": str(next_index)}
        return web.Response(body=pack(rows), content_type="application/msgpack", headers=headers)

    return step


def refusing(status: int, name: str, leader: str | None = None, **members: object) -> Step:
    """A node's problem."""

    def step(_request: web.Request) -> web.Response:
        response = problem(status, name, "title", f"detail of {name}", members)
        if leader:
            response.headers["Quire-Leader"] = f"n1={leader}"
        return response

    return step


def foreign(status: int) -> Step:
    """The answer of a proxy."""
    return lambda _request: _Foreign(status=status, text="<html>bad gateway</html>")


def broken(_request: web.Request) -> None:
    """The connection breaks after the request arrived."""
