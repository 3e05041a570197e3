"""`GET /commands/stream?session=&history=`: a session's commands, pipelined over one WebSocket.

    client -> node   msgpack [sequence, commands]       sequences are consecutive, across messages
    node -> client   msgpack [sequence, index, epoch, results, refused], in the same order; if the session gave recorded
                     replies, which executed elsewhere in the log, index is nil
                     msgpack [sequence, problem], then close: nothing from that sequence on was or will be appended

While a window of commands or bytes is in flight, the node stops reading, and TCP pushes back on the client. The
commands of a message go into the frame as the client packed them. A follower carries the stream to the leader and back.
If the leader can no longer answer a stream, it closes it without a problem; the client then resends the unanswered
messages, under the same sequences, on another stream.

`history` is that of the answer that opened the session; it need not be given.
The opening is refused if the session is not open, belongs to another, or is of another history; the header
`Quire-Session-Code` then says why.
An idle stream is closed with a handshake (`admission/streams.py`); its client opens another for its next message.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL
from typing import Any, NamedTuple

import orjson
from aiohttp import WSMsgType, web

from quire.log import Kind, pack
from quire.log.packing import array_head
from quire.replication import Write
from quire.replication.net.direct import DirectReader, framed
from quire.replication.net.outbox import Outbox
from quire.sm.machine import RefusalRow

from ...config.serve import ServeConfig
from ...errors import (
    ClusterError,
    CommandsRefused,
    LimitExceeded,
    Malformed,
    OutcomeUnknown,
    SequenceRefused,
)
from ...node.components import Components
from ...node.writing import WriteReply
from ...values import DEPTH_LIMIT, refuse_unstorable, unpack_msgpack
from ..admission.admission import ADMISSION
from ..admission.authorization import caller_of
from ..admission.decoding import LARGE_BYTES
from ..admission.slow_callers import close, done_or_stalled
from ..admission.streams import OpenStream
from ..answer_size import first_results, results_within
from ..api import API
from ..forwarding import MESSAGES
from ..problems import problem_of
from ..request import REQUEST_ID_KEY, parameters_of, parse_integer
from .commands import require_history

WINDOW_BYTES = 4 << 20
BUFFER_BYTES = 64 << 10  # In the transport, of answers that the kernel has not taken.
MESSAGE_OVERHEAD_BYTES = 64
SILENT_S, PROBE_S, PROBES = 15, 5, 3  # The kernel probes a silent client: aiohttp's heartbeat costs time per message.
TWO = 0x92  # The head of a msgpack array of two.


async def commands_stream(request: web.Request) -> web.StreamResponse:
    """Serve a stream on the leader; on a follower carry it to the leader."""
    api = request.app[API]
    node = api.node
    parameters = parameters_of(request, "session", "history")
    session = parse_integer(parameters.get("session", ""), "session")
    if not session:
        raise Malformed("sessions begin at 1")
    limit = node.config.max_request_bytes + MESSAGE_OVERHEAD_BYTES
    socket = web.WebSocketResponse(max_msg_size=limit, compress=False)
    _probe_when_silent(request)
    if "Upgrade" in request.headers and not socket.can_prepare(request):
        await socket.prepare(request)  # It raises an error that says what is wrong with the handshake.
    admission = request.app[ADMISSION]
    origin, is_allowed = admission.origin_of(request), partial(admission.authorization.may_continue, request)
    if not node.leadership.is_leader:
        with api.streams.slot(origin, is_allowed) as slot:
            return await api.leader.carry(request, socket, slot)
    components = node.components
    await require_history(api, parameters.get("history"))
    await components.sessions.require(session, caller_of(request).name)
    with api.streams.slot(origin, is_allowed) as slot:
        async with below_aiohttp(request) as direct:
            await socket.prepare(request)
            stream = CommandStream(components, node.config, request, socket, session, slot)
            await stream.run(partial(api.streams.is_over, slot), direct)
    return socket


@asynccontextmanager
async def below_aiohttp(request: web.Request) -> AsyncGenerator[DirectReader | None]:
    """A direct reader of the WebSocket that is opened in the block; None if the client did not wait for the answer."""
    transport, early = request.transport, request.protocol._message_tail  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    direct = None if transport is None or early else DirectReader(transport)
    try:
        yield direct
    finally:
        if direct is not None:
            direct.end()


def _probe_when_silent(request: web.Request) -> None:
    """Have the kernel close the connection of a client that disappeared without closing it."""
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, SILENT_S)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S)
        connection.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, PROBES)


class CommandStream:
    """One session's stream on the leader."""

    def __init__(
        self,
        components: Components,
        config: ServeConfig,
        request: web.Request,
        socket: web.WebSocketResponse,
        session: int,
        slot: OpenStream,
    ) -> None:
        self._writing = components.writing
        self._config = config
        self._slot = slot
        self._request = request
        self._socket = socket
        self._session = session
        self._context = copy_context()  # With the opening's ids.
        self._window = min(components.sessions.window, config.max_commands)
        self._next_sequence: int | None = None
        self._in_flight_messages = 0
        self._in_flight_commands = 0
        self._in_flight_bytes = 0
        self._outbox = Outbox(socket, request.transport, BUFFER_BYTES)
        self._room = asyncio.Event()
        self._waits_for_room = False
        self._is_quick = self._writing.checks_quickly
        self._ended = slot.ended
        self._failed = False
        self._problem: bytes | None = None

    async def run(self, is_over: Callable[[], bool], direct: DirectReader | None) -> None:
        """Serve until either side closes it or `is_over`."""
        if direct is not None:
            self._outbox.send_directly(framed)
            direct.begin(self._take_directly)
        carrier = asyncio.create_task(self._outbox.carry(), name=f"stream of session {self._session}")
        reader = asyncio.create_task(self._read(), name=f"reader of session {self._session}")
        ended = asyncio.create_task(self._ended.wait(), name=f"end of session {self._session}'s stream")
        tasks = (carrier, reader, ended)
        try:
            await done_or_stalled(self._request, tasks, is_over)
            if self._failed and reader.done():  # Answers, and a problem, are still to be sent.
                patience = self._config.request_timeout_ms / 1000
                await asyncio.wait((carrier, ended), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._outbox.send_directly(None)
            if direct is not None:
                direct.end()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await close(self._request, self._socket)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
                raise outcome

    async def _read(self) -> None:
        while not self._failed:
            message = await self._socket.receive()
            if message.type not in MESSAGES or self._failed:  # What follows a refused message is not appended either.
                return
            try:
                if message.type is WSMsgType.TEXT:
                    raise Malformed("a message is binary, a msgpack array of two: sequence and commands")
                if len(message.data) > LARGE_BYTES:
                    await self._request.app[API].decoding.turn_of_stream()
                await self._take(message.data)
            except ClusterError as error:
                self._fail(self._next_sequence or 0, error)
                return
            self._waits_for_room = True
            while self._is_full and not self._failed:
                self._room.clear()
                await self._room.wait()
            self._waits_for_room = False

    @property
    def _is_full(self) -> bool:
        held_bytes = self._in_flight_bytes + self._outbox.waiting_bytes
        return self._in_flight_commands >= self._window or held_bytes >= WINDOW_BYTES

    def _take_directly(self, data: bytes) -> bool:
        """Take a message unless it has to wait or is refused: then the reader does that, with all that follow."""
        if self._failed or self._is_full or len(data) > LARGE_BYTES or not self._is_quick:
            return False
        try:
            message = self._decoded(data)
            began = time.monotonic()
            refused = self._writing.checked(message.commands)
            now = time.monotonic()
            self._writing.checks.append(now - began)
            self._propose(message, refused, now - began, now)
        except ClusterError:
            return False
        return True

    async def _take(self, data: bytes) -> None:
        """Check a message and propose it. Raises ClusterError: nothing of it will be appended."""
        message = self._decoded(data)
        refused = await self._writing.check(message.commands)
        self._propose(message, refused, self._writing.check_s, time.monotonic())

    def _decoded(self, data: bytes) -> "Message":
        message = decode_message(data)
        if message.sequence < 1 or self._next_sequence not in (None, message.sequence):
            raise SequenceRefused(message.sequence, self._next_sequence or 1)
        self._next_sequence = message.sequence
        if len(message.commands) > self._window:
            raise LimitExceeded("the number of commands in a message", len(message.commands), self._window)
        return message

    def _propose(self, message: "Message", refused: list[RefusalRow], check_s: float, now: float) -> None:
        sequence, commands, payload = message
        if refused:
            raise CommandsRefused(refused)
        count, session, context = len(commands), self._session, self._context
        waiter = StreamWaiter(self, sequence, count, len(payload))
        write = Write(payload, count, Kind.RECORDS, None, session, sequence, True, check_s, now, context, owner=waiter)
        self._writing.propose(write)
        self._next_sequence = sequence + count
        self._in_flight_messages += 1
        self._slot.sent()
        self._in_flight_commands += waiter.commands
        self._in_flight_bytes += waiter.size

    def answered(self, waiter: "StreamWaiter", reply: WriteReply) -> None:
        """A message was applied: send its answer, after those of the previous messages."""
        index = None if reply.repeated else reply.index
        fields: list[Any] = [waiter.sequence, index, reply.epoch, reply.results, reply.refused]
        limit = self._config.answer_bytes
        if not reply.surely_fits(limit) and (count := results_within(reply, limit, pack)) < len(reply.results):
            part = first_results(reply, count)
            fields[3:] = [part.results, part.refused, count]
        answer = pack(fields)
        self._outbox.send(answer)
        if self._waits_for_room:
            self._outbox.when_taken(self._room.set)
        self._forget(waiter)

    def failed(self, waiter: "StreamWaiter", error: ClusterError) -> None:
        """A message was not appended, or its outcome is unknown."""
        self._fail(waiter.sequence, error)
        self._forget(waiter)

    def _fail(self, sequence: int, error: ClusterError) -> None:
        """Accept no more messages. The first problem is sent after all outstanding answers.

        No problem is sent for an unknown outcome: the client gets the outcome from the session on the next leader.
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
        self._in_flight_messages -= 1
        self._slot.answered()
        self._in_flight_commands -= waiter.commands
        self._in_flight_bytes -= waiter.size
        if self._waits_for_room:
            self._room.set()
        if self._failed:
            self._end_if_answered()

    def _end_if_answered(self) -> None:
        if not self._in_flight_messages:
            if self._problem is not None:
                self._outbox.send(self._problem)
            self._outbox.when_taken(self._ended.set)


class StreamWaiter:
    """Receives the reply to one message of a stream. Implements `quire.cluster.node.writing.Waiter`."""

    __slots__ = ("_stream", "applied", "commands", "sequence", "size")

    def __init__(self, stream: CommandStream, sequence: int, commands: int, size: int) -> None:
        self._stream = stream
        self.sequence = sequence
        self.commands = commands
        self.size = size
        self.applied = True

    def answer(self, reply: WriteReply) -> None:
        """Pass the reply on."""
        self._stream.answered(self, reply)

    def fail(self, error: ClusterError) -> None:
        """Pass the error on."""
        self._stream.failed(self, error)


class Message(NamedTuple):
    """A message's sequence, its commands, and the same commands as a frame's payload."""

    sequence: int
    commands: list[Any]
    payload: bytes


def decode_message(data: bytes) -> Message:
    """A message of the client. Raises Malformed."""
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
    return Message(sequence, commands, payload)
