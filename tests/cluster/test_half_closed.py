"""A caller that closes its end of the connection gets an answer to each request that it sent whole.

On both event loops: uvloop's calls `eof_received` again when reading is resumed after it. These tests also fail if what
`Connection` uses of aiohttp changes.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from quire.cluster.http.admission import connections as admission
from quire.cluster.http.admission.connections import Connection, ConnectionLimit, check_whole
from quire.cluster.http.app import serve_app
from quire.replication.address import host_and_port
from tests.cluster.logs import served
from tests.cluster.running import running_cluster
from tests.ports import HOST
from tests.replication.loopback import until

DEADLINE_S = 60.0
TIMES = 20
PIPELINED = 100  # More than aiohttp parses before it stops reading.
LONG = b"x" * (3 << 20)
SOME = 60_000  # Less than a transport takes before it makes a handler wait.
LONG_TIMES = 10  # More than the buffers of a socket hold.

NewLoop = Callable[[], asyncio.AbstractEventLoop]
on_both_loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(test: Awaitable[None], new_loop: NewLoop) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(in_time())


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "\r\n"]).encode()


async def answers_to(address: str, *pieces: bytes) -> bytes:
    """All that a caller gets that sends this in pieces, and then closes its end."""
    reader, writer = await asyncio.open_connection(*host_and_port(address))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


def body_of(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), answer
    return body


@on_both_loops
@pytest.mark.slow
def test_a_command_is_executed_once_and_answered_on_every_node(new_loop: NewLoop, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_cluster(tmp_path, 2) as cluster:
            command = post("/commands", b'{"commands": [["add", 1]]}')
            results: list[str] = []
            for node_id in ("n1", "n2"):  # The follower n2 forwards them.
                for _ in range(TIMES):
                    answer = await answers_to(cluster.address(node_id), command)
                    results += json.loads(body_of(answer))["results"]
            state = await answers_to(cluster.address("n1"), get("/state?consistency=linearizable"))
            assert results == [str(43 + number) for number in range(2 * TIMES)]
            assert json.loads(body_of(state))["state"] == str(42 + 2 * TIMES)

    run(test(), new_loop)


@on_both_loops
@pytest.mark.parametrize("body", [b"raw bytes", LONG], ids=["bin", "blob"])
def test_a_record_of_a_standalone_log_is_appended_and_answered(new_loop: NewLoop, tmp_path: Path, body: bytes) -> None:
    async def test() -> None:
        async with served(tmp_path) as log:
            address = log.url.removeprefix("http://")
            for index in range(3 if body is LONG else TIMES):
                answer = await answers_to(address, post("/records", body, "application/octet-stream"))
                assert json.loads(body_of(answer)) == {"write_index": index, "count": 1}
            assert body_of(await answers_to(address, get("/records/0"))) == body

    run(test(), new_loop)


@on_both_loops
def test_what_cannot_be_answered_closes_and_is_not_executed(new_loop: NewLoop, tmp_path: Path) -> None:
    async def test() -> None:
        async with running_cluster(tmp_path, 1) as cluster:
            address = cluster.address("n1")
            end = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]
            upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
            key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
            for sent in (
                b"",
                b"POST /commands HTTP/1.1\r\nHost:",
                post("/commands", b'{"commands": [["add", 1]]}')[:-1],
                get(f"/records?from={end}&wait_ms=60000"),
                get("/commands/stream?session=1", *upgrade, key),
            ):
                assert await answers_to(address, sent) == b"", sent
            state = await answers_to(address, get("/state"))
            assert json.loads(body_of(state))["state"] == "42"

    run(test(), new_loop)


class Counter:
    """An application that counts its requests, and answers each with its number when it may."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_answer = asyncio.Event()
        self.connections = ConnectionLimit()
        self.address = ""
        app = web.Application(client_max_size=len(LONG))
        app.add_routes([web.post("/", self.count), web.get("/", self.count)])
        app.add_routes([web.get("/some", self.some), web.get("/long", self.long), web.get("/endless", self.endless)])
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def count(self, request: web.Request) -> web.Response:
        check_whole(request)
        self.begun += 1
        number = self.begun
        await request.read()
        await self.may_answer.wait()
        return web.Response(text=f"<{number}>")

    async def some(self, _request: web.Request) -> web.Response:
        return web.Response(body=LONG[:SOME])

    async def long(self, _request: web.Request) -> web.Response:
        return web.Response(body=LONG * LONG_TIMES)

    async def endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.begun += 1
        while True:
            await response.write(LONG)

    def half_closed(self) -> bool:
        """Whether it knows that its callers send no more."""
        server = self.runner.server
        return server is not None and all(
            isinstance(connection, Connection) and connection.is_half_closed for connection in server.connections
        )


@asynccontextmanager
async def counter(send_buffer: int | None = None) -> AsyncGenerator[Counter]:
    counting = Counter()
    listening = socket.create_server((HOST, 0))
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    counting.address = "{}:{}".format(*listening.getsockname())
    server = await serve_app(counting.runner, counting.connections, listening)
    try:
        yield counting
    finally:
        await server.close()
        await counting.runner.cleanup()


@on_both_loops
@pytest.mark.parametrize(
    "sent",
    [post("/", b"unfinished")[:-1], get("/?wait_ms=1000"), get("/", "Connection: Upgrade", "Upgrade: websocket")],
    ids=["body", "long poll", "stream"],
)
def test_what_waits_for_more_or_on_purpose_closes_when_the_end_comes(new_loop: NewLoop, sent: bytes) -> None:
    async def test() -> None:
        async with counter() as counting:
            reader, writer = await asyncio.open_connection(*host_and_port(counting.address))
            writer.write(sent)
            await until(lambda: counting.begun)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()

    run(test(), new_loop)


@on_both_loops
@pytest.mark.parametrize("rest", [b"", post("/", b"unfinished")[:-1], get("/?wait_ms=1000"), get("/")[:-1]])
def test_each_of_many_requests_sent_together_is_answered_up_to_one_that_cannot_be(
    new_loop: NewLoop, rest: bytes
) -> None:
    async def test() -> None:
        async with counter() as counting:
            asking = asyncio.create_task(answers_to(counting.address, get("/") * PIPELINED + post("/", b"body") + rest))
            await until(lambda: counting.begun)
            counting.may_answer.set()
            answers = await asking
            assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 ") == PIPELINED + 1
            assert all(f"<{number + 1}>".encode() in answers for number in range(PIPELINED + 1))
            assert counting.begun == PIPELINED + 1
            await until(lambda: not len(counting.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_request_that_waits_when_the_end_comes_is_answered(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with counter() as counting:
            asking = asyncio.create_task(answers_to(counting.address, post("/", b"body")))
            await until(lambda: counting.begun and counting.half_closed())
            counting.may_answer.set()
            assert body_of(await asking) == b"<1>"
            await until(lambda: not len(counting.connections))

    run(test(), new_loop)


@on_both_loops
def test_an_answer_that_is_being_sent_when_the_end_comes_is_sent_whole(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with counter() as counting:
            reader, writer = await asyncio.open_connection(*host_and_port(counting.address))
            writer.write(get("/long"))
            begun = await reader.readexactly(1)  # It reads no more for now, and the server cannot send on.
            writer.write_eof()
            await until(counting.half_closed)
            assert body_of(begun + await reader.read()) == LONG * LONG_TIMES
            writer.close()
            await until(lambda: not len(counting.connections))

    run(test(), new_loop)


@on_both_loops
def test_an_idle_connection_closes_after_answers_as_well(new_loop: NewLoop) -> None:
    async def test() -> None:
        async with counter() as counting:
            counting.may_answer.set()
            reader, writer = await asyncio.open_connection(*host_and_port(counting.address))
            writer.write(get("/"))
            assert b"<1>" in await reader.readuntil(b">")
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not len(counting.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_caller_that_takes_nothing_is_cut_off(new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HALF_CLOSED_STALL_S", 0.1)

    async def test() -> None:
        async with counter() as counting:
            with socket.create_connection(host_and_port(counting.address)) as caller:
                caller.sendall(get("/endless"))
                caller.shutdown(socket.SHUT_WR)
                await until(lambda: counting.begun)
                await until(lambda: not len(counting.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_caller_that_takes_nothing_of_what_was_answered_before_the_end_is_cut_off_too(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HALF_CLOSED_STALL_S", 0.1)
    answered: list[bool] = []
    finish = Connection.finish_response

    async def finish_and_tell(
        connection: Connection, request: web.BaseRequest, response: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await finish(connection, request, response, start_time)
        answered.append(True)
        return finished

    monkeypatch.setattr(Connection, "finish_response", finish_and_tell)

    async def test() -> None:
        async with counter(send_buffer=4096) as counting:
            with socket.socket() as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                caller.connect(host_and_port(counting.address))
                caller.sendall(get("/some"))
                await until(lambda: answered)
                caller.shutdown(socket.SHUT_WR)
                await until(lambda: not len(counting.connections))

    run(test(), new_loop)
