"""A server whose streams break where a test says so, with sessions of its own, for tests of the client.

It executes a command by counting it: the result is how many it has executed. "bad" is refused by its check, "odd" makes
a message malformed, and what begins with "over" is refused when it is executed.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from aiohttp import WSMsgType, web
from aiohttp.typedefs import Middleware

from quire.cluster.http.problems import TYPE_PREFIX
from quire.cluster.request_id import REQUEST_ID
from quire.log import pack
from quire.replication.address import host_and_port
from tests.packed import unpacked

DEADLINE_S = 20
WINDOW = 8192
MESSAGE_BYTES = 1 << 20
STOPPING = {"type": TYPE_PREFIX + "stopping", "status": 503, "detail": "this node is stopping"}


class Fault(Enum):
    """What happens to a message and its stream instead of an answer."""

    NOT_TAKEN = auto()  # The connection breaks before anything is executed.
    NOT_ANSWERED = auto()  # It breaks after the execution.
    ANSWERED = auto()  # It breaks after the answer.
    CHANGED = auto()  # It breaks after the execution; with other code, later copies meet `problem`, once it answers.
    BUSY = auto()  # A problem, and nothing is executed.
    STOPPING = auto()  # The same, and no other stream is accepted until `stopping` is reset.
    CLOSED = auto()  # The server closes, and nothing is executed.
    SILENT = auto()  # This message and those after it are neither executed nor answered.


@dataclass
class Held:
    """A session: its name, and for each sequence from 1 on the command and its reply."""

    name: str | None
    replies: list[tuple[Any, Any]] = field(default_factory=list)
    fenced: bool = False


@dataclass
class StreamServer:
    """`faults` apply to the messages in order, None to spare one; after the last there are no more faults."""

    faults: list[Fault | None] = field(default_factory=list)
    address: str = ""
    leader: str | None = None  # The leader that its answers name; None for itself.
    leader_id: str = "n1"
    window: int = WINDOW
    message_bytes: int = MESSAGE_BYTES
    executed: list[Any] = field(default_factory=list)
    history: str = "first"
    machine: str = "arithmetic"
    sessions: dict[int, Held] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    streams: list[list[tuple[int, list[Any]]]] = field(default_factory=list)
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: int = 0
    problem: dict[str, Any] = field(default_factory=dict)
    changed: list[Any] = field(default_factory=list)  # The commands that meet the problem.
    gone_below: int = 0  # The replies of these sequences are gone.
    epoch: int = 1
    led: asyncio.Condition = field(default_factory=asyncio.Condition)
    watched: list[int] = field(default_factory=list)  # The epochs of those who asked for a later leader, and wait.
    turned_away: int = 0  # Streams that were refused while it was stopping.
    evicts_at: Any = (
        None  # After it all sessions are evicted, the connection breaks, and `answering` must be set again.
    )

    def __post_init__(self) -> None:
        self.answering.set()
        self.closing.set()

    async def heard(self, messages: int) -> None:
        """Return when so many messages have arrived."""
        async with asyncio.timeout(DEADLINE_S):
            while sum(map(len, self.streams)) < messages:
                self.came.clear()
                await self.came.wait()

    async def open(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path))
        name = unpacked(await request.read()).get("name")
        session = 10 + len(self.sessions)
        old = next((held for held in self.sessions.values() if name and held.name == name and not held.fenced), None)
        self.sessions[session] = Held(name, old.replies if old else [])
        if old is not None:
            old.fenced = True
        sequence = len(self.sessions[session].replies)
        document = {"session": session, "sequence": sequence, "session_window": self.window}
        limits = {"max_request_bytes": self.message_bytes, "history": self.history, "epoch": self.epoch}
        return self._answer({**document, **limits})

    async def tell(self, request: web.Request) -> web.Response:
        """As a follower: its leader, once that has a later epoch than the caller knows."""
        known, wait_ms = int(request.query["epoch"]), int(request.query["wait_ms"])
        self.watched.append(known)
        async with self.led, asyncio.timeout(wait_ms / 1000):
            await self.led.wait_for(lambda: self.epoch > known)
        return self._answer({"node_id": "n9", "leader": self.leader_id, "epoch": self.epoch})

    async def leads(self, address: str, node_id: str = "n2") -> None:
        """A server, another one than before, leads the next epoch."""
        async with self.led:
            self.leader, self.leader_id, self.epoch = address, node_id, self.epoch + 1
            self.led.notify_all()

    async def look(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path))
        session = int(request.match_info["session"])
        if request.method == "DELETE":
            await self.closing.wait()
            self.sessions.pop(session, None)
        return self._answer({"session": session, "sequence": 0})

    async def ready(self, _request: web.Request) -> web.Response:
        return self._answer({"ready": True})

    async def status(self, _request: web.Request) -> web.Response:
        return self._answer({"machine": {"name": self.machine}})

    def _answer(self, document: Any) -> web.Response:
        headers = {"Quire-Leader": f"{self.leader_id}={self.leader or self.address}"}
        return web.Response(body=pack(document), content_type="application/msgpack", headers=headers)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if self.stopping:
            self.turned_away += 1
            return web.Response(status=503, body=pack(STOPPING), content_type="application/msgpack")
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(request)
        heard: list[tuple[int, list[Any]]] = []
        self.streams.append(heard)
        while (message := await socket.receive()).type is WSMsgType.BINARY:
            sequence, commands = unpacked(message.data)
            heard.append((sequence, commands))
            self.came.set()
            await self.answering.wait()
            try:
                if not await self._take(request, socket, sequence, commands):
                    break
            except ConnectionError:  # The client is gone.
                break
        await socket.close()
        return socket

    async def _take(
        self, request: web.Request, socket: web.WebSocketResponse, sequence: int, commands: list[Any]
    ) -> bool:
        fault = self.faults.pop(0) if self.faults else None
        if fault is Fault.CLOSED:
            return False
        if fault is Fault.SILENT:
            while (await socket.receive()).type is WSMsgType.BINARY:
                pass
            return False
        if fault is Fault.NOT_TAKEN:
            return self._break(request)
        if (problem := self._problem(fault, commands)) is not None:
            await socket.send_bytes(pack([sequence, problem]))
            return False
        results, refused, repeated = self._execute(int(request.query["session"]), sequence, commands)
        if self.evicts_at in commands and self.sessions:
            self.sessions.clear()
            self.answering.clear()
            return self._break(request)
        if fault is Fault.CHANGED:
            self.changed = commands[-1:]
            self.answering.clear()
        if fault in (Fault.NOT_ANSWERED, Fault.CHANGED):
            return self._break(request)
        await socket.send_bytes(
            pack([sequence, None if repeated else len(self.executed), self.epoch, results, refused])
        )
        return self._break(request) if fault is Fault.ANSWERED else True

    def _break(self, request: web.Request) -> bool:
        assert request.transport is not None
        request.transport.abort()
        return False

    def _problem(self, fault: Fault | None, commands: list[Any]) -> dict[str, Any] | None:
        if fault in (Fault.BUSY, Fault.STOPPING):
            self.stopping = fault is Fault.STOPPING
            return STOPPING
        if changed := [position for position, command in enumerate(commands) if command in self.changed]:
            refused = [[position, "NEW", "refused now"] for position in changed]
            return {**self.problem, **({"refused": refused} if self.problem["status"] == 422 else {})}
        if "odd" in commands:
            return {"type": TYPE_PREFIX + "malformed", "status": 400, "detail": "something is odd"}
        refused = [[position, "BAD", "it is bad"] for position, command in enumerate(commands) if command == "bad"]
        if refused:
            self.refusals += 1
            return {"type": TYPE_PREFIX + "commands-refused", "status": 422, "detail": "bad", "refused": refused}
        return None

    def _execute(self, session: int, sequence: int, commands: list[Any]) -> tuple[list[Any], list[Any], bool]:
        """Decide for each record, as a machine's sessions do; and whether the reply of one is repeated."""
        held = self.sessions.get(session)
        known = [] if held is None or held.fenced else held.replies[sequence - 1 : sequence - 1 + len(commands)]
        repeated = any(command == commands[position] for position, (command, _) in enumerate(known))
        results: list[Any] = []
        refused: list[Any] = []
        for position, command in enumerate(commands):
            reply = self._reply(held, sequence + position, command)
            results.append(None if isinstance(reply, list) else reply)
            if isinstance(reply, list):
                refused.append([position, *reply])
        return results, refused, repeated

    def _reply(self, held: Held | None, sequence: int, command: Any) -> Any:
        if held is None or held.fenced:
            gone = "SESSION_EXPIRED" if self.history == "first" else "HISTORY_CHANGED"
            return ["SESSION_FENCED" if held else gone, "no more"]
        if sequence > len(held.replies) + 1:
            return ["SEQUENCE_GAP", "one is missing"]
        if sequence <= len(held.replies):
            if sequence < self.gone_below:
                return ["REPLY_GONE", "too long ago"]
            known, reply = held.replies[sequence - 1]
            return reply if known == command else ["SEQUENCE_REUSED", "another command"]
        self.executed.append(command)
        held.replies.append((command, ["OVER", "too much"] if str(command).startswith("over") else len(self.executed)))
        return held.replies[-1][1]


async def answers_of(*futures: "asyncio.Future[Any]") -> list[Any]:
    """The outcome of each, errors included."""
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*futures, return_exceptions=True)


@asynccontextmanager
async def streaming(
    faults: Iterable[Fault | None] = (),
    *,
    tls: ssl.SSLContext | None = None,
    middlewares: Iterable[Middleware] = (),
    **settings: Any,
) -> AsyncGenerator[StreamServer, None]:
    """A running server."""
    server = StreamServer(list(faults), **settings)
    app = web.Application(middlewares=list(middlewares))
    app.add_routes(
        [
            web.post("/sessions", server.open),
            web.get("/readyz", server.ready),
            web.get("/leader", server.tell),
            web.get("/status", server.status),
            web.route("*", "/sessions/{session}", server.look),
            web.get("/commands/stream", server.stream),
        ]
    )
    app.on_response_prepare.append(_set_request_id)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def _set_request_id(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[REQUEST_ID] = request.headers.get(REQUEST_ID, "")


@dataclass
class DeafRelay:
    """A relay to a server; once it is deaf, nothing passes, and neither side is told."""

    target: str
    address: str = ""
    deaf: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*host_and_port(self.target))
        await asyncio.gather(self._copy(reader, upstream_writer), self._copy(upstream_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                if not self.deaf:
                    writer.write(chunk)
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def deaf_relay(target: str) -> AsyncGenerator[DeafRelay, None]:
    relay = DeafRelay(target)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    try:
        yield relay
    finally:
        server.close()
