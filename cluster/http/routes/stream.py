"""`GET /commands/stream?session=`: a session's commands, pipelined over one WebSocket.

    client -> node   msgpack [sequence, commands]       sequences consecutive, a message at a time
    node -> client   msgpack [sequence, index, epoch, results, refused], in the same order
                     msgpack [sequence, problem], and the end: nothing from that sequence on was or will be appended

The node reads no further while a window of commands or bytes waits for its answers: that pushes back through TCP. The
commands of a message go into the frame as the client packed them. A follower carries both ways for its leader; a
stream that its leader can no longer answer is closed without a word, and the session tells what became of the rest.
"""

import asyncio
from contextlib import suppress
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import ClientWSTimeout, WSMsgType, web

from quire.log import pack
from quire.log.packing import array_head
from quire.replication import Write
from quire.replication.net.streams import Outbox

from ...errors import (
    ClusterError,
    CommandsRefused,
    LeaderUnreachable,
    LimitExceeded,
    Malformed,
    NotLeader,
    OutcomeUnknown,
    SequenceRefused,
)
from ...values import DEPTH_LIMIT, refuse_unstorable, unpack_msgpack
from ..admission.stuck import CLOSE_S, close, first_done
from ..forwarding import FORWARDED, hop_headers, leader_url
from ..keys import CARRYING, NODE, STREAMS
from ..parameters import parameters_of, parse_integer
from ..problems import problem_of
from ..request_ids import REQUEST_ID_KEY

if TYPE_CHECKING:
    from ...node.node import Node
    from ...node.pending import WriteReply

WINDOW_BYTES = 4 << 20
MESSAGE_OVERHEAD_BYTES = 64
PING_S = 15.0
SILENT_S, PROBE_S, PROBES = 15, 5, 3  # The kernel asks after a silent client: a ping of aiohttp costs each message.
WS_TIMEOUT = ClientWSTimeout(ws_close=CLOSE_S)  # pyright: ignore[reportCallIssue]  # it does not read attr.ib
MESSAGES = (WSMsgType.BINARY, WSMsgType.TEXT)
TWO = 0x92  # The head of a msgpack array of two.


async def commands_stream(request: web.Request) -> web.StreamResponse:
    """Serve a stream, or carry it to the leader."""
    node = request.app[NODE]
    parameters = parameters_of(request, "session")
    session = parse_integer(parameters.get("session", ""), "session")
    limit = node.config.max_request_bytes + MESSAGE_OVERHEAD_BYTES
    socket = web.WebSocketResponse(max_msg_size=limit, compress=False)
    _probe_when_silent(request)
    with request.app[STREAMS].place():
        if not node.is_leader:
            return await _carry(request, socket)
        await socket.prepare(request)
        await CommandStream(node, request, socket, session).run()
    return socket


def _probe_when_silent(request: web.Request) -> None:
    """Have the kernel close the connection of a client that is gone without a word."""
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, SILENT_S)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, PROBES)


async def _carry(request: web.Request, socket: web.WebSocketResponse) -> web.StreamResponse:
    """Carry a stream between a client and the leader; when either end goes, so does the other."""
    node = request.app[NODE]
    if FORWARDED in request.headers:
        raise NotLeader(node.leader_id)
    leader, url = leader_url(node, request.rel_url.raw_path_qs)
    try:
        async with asyncio.timeout(node.config.request_timeout_ms / 1000):
            # A leader's answer is as long as its machine's results are: no limit of ours.
            upstream = await request.app[CARRYING].ws_connect(
                url, headers=hop_headers(request), max_msg_size=0, heartbeat=PING_S, timeout=WS_TIMEOUT
            )
    except (aiohttp.ClientError, OSError) as error:
        raise LeaderUnreachable(leader, str(error) or type(error).__name__) from error
    async with upstream:
        await socket.prepare(request)
        ways = [asyncio.create_task(_pump(socket, upstream)), asyncio.create_task(_pump(upstream, socket))]
        in_order = await first_done(request, ways)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await close(request, socket)
        if not in_order:
            await _drop(upstream)
    return socket


async def _drop(upstream: aiohttp.ClientWebSocketResponse) -> None:
    """End a connection at once: an orderly end takes the answers, and so has the leader make more of them."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await upstream.close()


Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pump(source: Socket, target: Socket) -> None:
    while (message := await source.receive()).type in MESSAGES:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)  # The leader says what is wrong with it.
        else:
            await target.send_bytes(message.data)


class CommandStream:
    """One session's stream at its leader."""

    def __init__(self, node: "Node", request: web.Request, socket: web.WebSocketResponse, session: int) -> None:
        self._node = node
        self._request = request
        self._socket = socket
        self._session = session
        self._window = node.session_window
        self._next_sequence: int | None = None
        self._waiting = 0
        self._waiting_commands = 0
        self._waiting_bytes = 0
        self._outbox = Outbox(socket)
        self._room = asyncio.Event()
        self._ended = asyncio.Event()
        self._failed = False
        self._problem: bytes | None = None

    async def run(self) -> None:
        """Serve until either side ends it."""
        carrier = asyncio.create_task(self._outbox.carry(), name=f"stream of session {self._session}")
        reader = asyncio.create_task(self._read(), name=f"reader of session {self._session}")
        ended = asyncio.create_task(self._ended.wait(), name=f"end of session {self._session}'s stream")
        tasks = (carrier, reader, ended)
        try:
            await first_done(self._request, tasks)
            if self._failed and reader.done():  # answers and a problem are still to be told
                patience = self._node.config.request_timeout_ms / 1000
                await asyncio.wait((carrier, ended), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await close(self._request, self._socket)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, ConnectionError):
                raise end

    async def _read(self) -> None:
        while not self._failed:
            message = await self._socket.receive()
            if message.type not in MESSAGES:
                return
            try:
                if message.type is WSMsgType.TEXT:
                    raise Malformed("a message is binary, a msgpack array of two: sequence and commands")
                self._take(message.data)
            except ClusterError as error:
                self._fail(self._next_sequence or 0, error)
                return
            while self._is_full and not self._failed:
                self._room.clear()
                await self._room.wait()

    @property
    def _is_full(self) -> bool:
        held_bytes = self._waiting_bytes + self._outbox.waiting_bytes
        return self._waiting_commands >= self._window or held_bytes >= WINDOW_BYTES

    def _take(self, data: bytes) -> None:
        """Check a message and propose it. Raises ClusterError: nothing of it will be appended."""
        sequence, commands, payload = decode_message(data)
        if sequence < 1 or self._next_sequence not in (None, sequence):
            raise SequenceRefused(sequence, self._next_sequence or 1)
        self._next_sequence = sequence
        if len(commands) > self._window:
            raise LimitExceeded("the number of commands in a message", len(commands), self._window)
        refused = self._node.check(commands)
        if refused:
            raise CommandsRefused(refused)
        waiter = StreamWaiter(self, sequence, len(commands), len(payload))
        self._node.propose(Write(payload, len(commands), session=self._session, sequence=sequence, owner=waiter))
        self._next_sequence = sequence + len(commands)
        self._waiting += 1
        self._waiting_commands += waiter.commands
        self._waiting_bytes += waiter.size

    def answered(self, waiter: "StreamWaiter", reply: "WriteReply") -> None:
        """A message was applied: its answer leaves, behind those before it."""
        answer = pack([waiter.sequence, reply.index, reply.epoch, reply.results, reply.refused])
        self._outbox.send(answer)
        self._outbox.when_taken(self._room.set)
        self._forget(waiter)

    def failed(self, waiter: "StreamWaiter", error: ClusterError) -> None:
        """A message was not appended, or nobody knows."""
        self._fail(waiter.sequence, error)
        self._forget(waiter)

    def _fail(self, sequence: int, error: ClusterError) -> None:
        """Take nothing more; the first problem is told behind the answers that are still due.

        Of an unknown outcome nothing is said: the session tells, at the next leader.
        """
        if self._failed:
            return
        self._failed = True
        if not isinstance(error, OutcomeUnknown):
            body = problem_of(error, self._request[REQUEST_ID_KEY]).body
            self._problem = pack([sequence, orjson.loads(body) if isinstance(body, bytes) else {}])
        self._room.set()
        self._end_if_answered()

    def _forget(self, waiter: "StreamWaiter") -> None:
        self._waiting -= 1
        self._waiting_commands -= waiter.commands
        self._waiting_bytes -= waiter.size
        self._room.set()
        if self._failed:
            self._end_if_answered()

    def _end_if_answered(self) -> None:
        if not self._waiting:
            if self._problem is not None:
                self._outbox.send(self._problem)
            self._outbox.when_taken(self._ended.set)


class StreamWaiter:
    """Who waits for a message of a stream: `quire.cluster.node.pending.Waiter`."""

    __slots__ = ("_stream", "applied", "commands", "sequence", "size")

    def __init__(self, stream: CommandStream, sequence: int, commands: int, size: int) -> None:
        self._stream = stream
        self.sequence = sequence
        self.commands = commands
        self.size = size
        self.applied = True

    def answer(self, reply: "WriteReply") -> None:
        """Pass the reply on."""
        self._stream.answered(self, reply)

    def fail(self, error: ClusterError) -> None:
        """Pass the error on."""
        self._stream.failed(self, error)


def decode_message(data: bytes) -> tuple[int, list[Any], bytes]:
    """The sequence, the commands, and the commands as the payload of a frame. Raises Malformed."""
    document = unpack_msgpack(data)
    if type(document) is not list or len(document) != 2 or data[0] != TWO:
        raise Malformed("a message is a msgpack array of two: sequence and commands")
    sequence, commands = document
    if type(sequence) is not int or not 0 <= sequence < 1 << 64 or type(commands) is not list or not commands:
        raise Malformed("a message is [sequence, [command, ...]] with at least one command")
    refuse_unstorable(commands, DEPTH_LIMIT + 1)
    payload = data[1 + len(pack(sequence)) :]
    if not payload.startswith(array_head(len(commands))):
        raise Malformed("numbers and arrays must have their smallest msgpack encodings")
    return sequence, commands, payload
