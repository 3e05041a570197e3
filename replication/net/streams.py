"""`/peer/stream` (rule 8): frames one way, acks the other. The follower dials.

    FollowerStream  the follower's end: hello, Open, OpenAnswer, then shipments in and Acks out
    LeaderStream    the leader's end: the driver's `Ship` and `AnswerOpen` go out, Acks come in

Both only carry messages; the core interprets them. A message holds at most 256 KiB of frame bytes after its head; a
larger frame spans several messages.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from aiohttp import ClientSession, ClientWebSocketResponse, WSMessage, WSMsgType, web

from ..core import actions, events
from ..core.messages import Ack, CrcMismatch, LagReport, Open, OpenAnswer, PositionReport
from .direct import DirectReader, client_framed, framed
from .hello import LINK_FAILURES, Admit, HelloServer, PeerInfo, dial
from .links import PeerReports, StreamProgress
from .outbox import Outbox
from .sockets import (
    ELECTION_TIMEOUT_S,
    HELLO_TIMEOUT_S,
    DialledSocket,
    accept,
    close_socket,
    end_all,
    give_up_when_silent,
    read_in_turns,
    together,
)
from .trust import Trust
from .wire import (
    MAX_MESSAGE_BYTES,
    SHIPMENT_BYTES,
    Assembled,
    BadMessage,
    FrameAssembler,
    Positions,
    Shipment,
    decode_stream,
    encode,
    from_message,
    to_messages,
)

PING_S = 30.0  # On a slow link a pong may wait for seconds behind a full window.

FOLLOWER_BUFFER_BYTES = 64 << 10  # Acks are short.
LEADER_BUFFER_BYTES = 2 * SHIPMENT_BYTES


class StreamEvents(Protocol):
    """What streams report to their node. Called on the loop."""

    def me(self) -> PeerInfo:
        """What this node now reports about itself."""
        ...

    def stream_connected(self, stream_id: int) -> None:
        """The stream that this node dialled is open."""
        ...

    def open_answered(self, stream_id: int, answer: OpenAnswer) -> None:
        """The leader answered."""
        ...

    def frames_arrived(self, stream_id: int, frames: Assembled, positions: Positions, received_bytes: int) -> None:
        """A shipment arrived."""
        ...

    def stream_opened(self, stream: "LeaderStream", opening: Open) -> None:
        """A follower opened a stream to this node: give it a stream id."""
        ...

    def ack_arrived(self, stream_id: int, ack: Ack) -> None:
        """A follower acknowledged."""
        ...

    def crc_mismatch_arrived(self, stream_id: int, differs: CrcMismatch) -> None:
        """A follower reports that its frame differs from the leader's."""
        ...

    def shipped(self, stream_id: int, next_index: int, size: int) -> None:
        """The transport has taken a shipment."""
        ...

    def stream_closed(self, stream_id: int, reason: str) -> None:
        """A stream ended."""
        ...


class FollowerStream:
    """The follower's end of one stream; a new object each time it dials."""

    def __init__(
        self,
        events: StreamEvents,
        session: ClientSession,
        stream_id: int,
        leader: tuple[str, str],
        trust: Trust,
        max_frame_bytes: int,
        election_timeout_s: float = ELECTION_TIMEOUT_S,
    ) -> None:
        self.stream_id = stream_id
        self.peer: PeerInfo | None = None
        self._events = events
        self._session = session
        self.peer_id, self._url = leader
        self._trust = trust
        self._election_timeout_s = election_timeout_s
        self._assembler = FrameAssembler(max_frame_bytes)
        self._outbox: Outbox | None = None
        self._direct: DirectReader | None = None
        self._task: asyncio.Task[None] | None = asyncio.create_task(
            self._run(), name=f"stream {stream_id} to {self.peer_id}"
        )

    def send(self, message: Open | Ack | CrcMismatch) -> None:
        """Send a message. An ack replaces a queued older one, which it covers."""
        if self._outbox is not None:
            if isinstance(message, Ack):
                self._outbox.drop_waiting()
            self._outbox.send(encode(message))

    def close(self) -> "asyncio.Task[None]":
        """Hang up; no event of this stream follows. Await the returned task to know that it has ended."""
        self._end_direct()
        task, self._task = self._task, None  # No cycle: a cancelled task holds its stack frames, and those a shipment.
        if task is None:
            raise RuntimeError("this stream was closed before")
        task.cancel()
        return task

    async def _run(self) -> None:
        reason = "the leader closed it"
        try:
            await self._talk()
        except LINK_FAILURES as error:
            reason = str(error) or type(error).__name__
        except asyncio.CancelledError:
            raise  # Closed by this node, which knows.
        except Exception as error:  # A bug of this program: the core must not believe that the stream is open.
            self._events.stream_closed(self.stream_id, repr(error))
            raise
        self._events.stream_closed(self.stream_id, reason)

    async def _talk(self) -> None:
        me, session = self._events.me, self._session
        socket, self.peer = await dial(session, self._url, me, self.peer_id, "stream", self._trust, PING_S)
        give_up_when_silent(socket, self._election_timeout_s)
        await self._carry(socket)

    async def _carry(self, socket: ClientWebSocketResponse) -> None:
        transport = socket.transport if isinstance(socket, DialledSocket) else None
        self._outbox = Outbox(socket, transport, FOLLOWER_BUFFER_BYTES)
        if transport is not None:
            self._direct = DirectReader(transport)  # The leader is silent between its hello and the answer to Open.
            self._direct.begin(partial(taken, self._take))
            self._outbox.send_directly(client_framed)
        try:
            self._events.stream_connected(self.stream_id)
            await together(read_in_turns(socket, self._take_message), self._outbox.carry())
        finally:
            self._end_direct()
            await close_socket(socket)

    def _end_direct(self) -> None:
        if self._direct is not None:
            self._direct.end()
            self._direct = None
        if self._outbox is not None:
            self._outbox.send_directly(None)

    def _take_message(self, message: WSMessage) -> None:
        if message.type is WSMsgType.BINARY:
            self._take(message.data)

    def _take(self, data: bytes) -> None:
        said = from_message(data)
        if isinstance(said, OpenAnswer):
            self._events.open_answered(self.stream_id, said)
        else:
            frames = self._assembler.feed(said.raw)
            self._events.frames_arrived(self.stream_id, frames, said.positions, len(said.raw))


class LeaderStream:
    """The leader's end of one stream: one shipment in flight to the transport at a time, so that nothing piles up."""

    def __init__(
        self,
        events: StreamEvents,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        peer: PeerInfo,
        opening_timeout_s: float,
    ) -> None:
        self.peer = peer
        self._opening_timeout_s = opening_timeout_s
        self.stream_id = 0
        self._events = events
        self._socket = socket
        self._outbox = Outbox(socket, transport, LEADER_BUFFER_BYTES)
        self._transport = transport
        self.carrying: asyncio.Task[None] | None = None

    def send(self, message: OpenAnswer | Shipment) -> bool:
        """Send it; return whether the transport took it at once. If not, `shipped` is called after a shipment."""
        for data in to_messages(message):
            self._outbox.send(data)
        if not self._outbox.is_behind:
            return True
        if isinstance(message, Shipment):
            self._outbox.when_taken(partial(self._events.shipped, self.stream_id, message.next_index, len(message.raw)))
        return False

    @property
    def peer_id(self) -> str:
        """The follower's node id."""
        return self.peer.node_id

    def hang_up(self) -> None:
        """End the stream; `run` raises ConnectionResetError where it is served."""
        if self.carrying is not None:
            self.carrying.cancel()

    async def run(self) -> None:
        """Carry until the stream ends.

        Raises:
            ConnectionResetError, BadMessage: the follower is gone, or does not speak this protocol.
        """
        carrying = asyncio.create_task(self._carry(), name=f"stream from {self.peer.node_id}")
        self.carrying = carrying
        try:
            await carrying
        except asyncio.CancelledError as error:
            if carrying.cancelled():
                raise ConnectionResetError("this node closed it") from error
            carrying.cancel()
            raise
        finally:
            # The task's exception holds stack frames, those a shipment, and this frame the task: without this, all
            # of it would stay in memory until the next full garbage collection.
            self.carrying = None
            del carrying

    async def _carry(self) -> None:
        async with asyncio.timeout(self._opening_timeout_s):
            opening = decode_stream(binary_of(await self._socket.receive()))
        if not isinstance(opening, Open):
            raise BadMessage("an opening was expected")
        if self._transport is None:
            raise ConnectionResetError("the follower is gone")
        direct = DirectReader(self._transport)  # The follower is silent until it has the answer to Open.
        direct.begin(partial(taken, self._take))
        self._outbox.send_directly(framed)
        try:
            self._events.stream_opened(self, opening)
            await together(self._read(), self._outbox.carry())
        finally:
            self._outbox.send_directly(None)
            direct.end()

    async def _read(self) -> None:
        await read_in_turns(self._socket, lambda message: self._take(binary_of(message)))
        raise ConnectionResetError("the follower closed it")

    def _take(self, data: bytes) -> None:
        match decode_stream(data):
            case Ack() as ack:
                self._events.ack_arrived(self.stream_id, ack)
            case CrcMismatch() as differs:
                self._events.crc_mismatch_arrived(self.stream_id, differs)
            case _:
                raise BadMessage("an ack was expected")


def binary_of(message: WSMessage) -> bytes:
    """The data of the follower's next message. Raises ConnectionResetError."""
    if message.type is not WSMsgType.BINARY:
        raise ConnectionResetError("the follower closed it")
    data: bytes = message.data
    return data


def taken(take: Callable[[bytes], object], data: bytes) -> bool:
    """Whether a message was taken; if it is no valid one, the reader of the socket is to find the same."""
    try:
        take(data)
    except (BadMessage, ConnectionError):
        return False
    return True


class StreamServer:
    """Accepts the streams that followers open."""

    def __init__(
        self,
        events: StreamEvents,
        trust: Trust,
        admit: Admit | None = None,
        opening_timeout_s: float = HELLO_TIMEOUT_S,
        election_timeout_s: float = ELECTION_TIMEOUT_S,
    ) -> None:
        self._events = events
        self._hellos = HelloServer(events.me, "stream", trust, admit)
        self._opening_timeout_s = opening_timeout_s
        self._election_timeout_s = election_timeout_s
        self._open: dict[LeaderStream, None] = {}
        self._closed = False

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle one `/peer/stream` socket until it ends."""
        if self._closed:
            raise web.HTTPServiceUnavailable
        socket = await accept(request, MAX_MESSAGE_BYTES)
        give_up_when_silent(request, self._election_timeout_s)
        stream: LeaderStream | None = None
        reason = "the follower closed it"
        try:
            peer = await self._hellos.answer(request, socket)
            if self._closed:  # During the hello.
                raise ConnectionResetError("this node hung up")
            stream = LeaderStream(self._events, socket, request.transport, peer, self._opening_timeout_s)
            self._open[stream] = None
            await stream.run()
        except LINK_FAILURES as error:
            reason = str(error) or type(error).__name__
        finally:
            if stream is not None:
                del self._open[stream]
                self._events.stream_closed(stream.stream_id, reason)
            await close_socket(socket)
        return socket

    def hang_up(self, peer: PeerInfo) -> None:
        """End the streams of one incarnation of a disk."""
        for stream in list(self._open):
            if (stream.peer.disk_id, stream.peer.incarnation) == (peer.disk_id, peer.incarnation):
                stream.hang_up()

    def hang_up_without(self, features: frozenset[str]) -> None:
        """End the streams of peers that do not offer all of these."""
        for stream in list(self._open):
            if not features <= stream.peer.features:
                stream.hang_up()

    async def close(self) -> None:
        """Hang up on all followers, and refuse new ones."""
        self._closed = True
        self._hellos.close()
        await end_all([stream.carrying for stream in self._open if stream.carrying is not None])


class Streams:
    """A replica's streams, by number; implements `StreamEvents`, and the driver's `Streams`."""

    def __init__(
        self,
        me: Callable[[], PeerInfo],
        on_report: Callable[[str, PositionReport | LagReport], None],
        next_stream_id: Callable[[], int],
        trust: Trust,
        address_of: Callable[[str], str | None],
        admit: Admit,
        reports: PeerReports,
        max_frame_bytes: int,
        election_timeout_s: float,
    ) -> None:
        """`address_of` gives HOST:PORT of a node that is dialled, None for any other."""
        self.me = me
        self._on_report = on_report
        self._next_stream_id = next_stream_id
        self._trust = trust
        self._address_of = address_of
        self._reports = reports
        self._max_frame_bytes = max_frame_bytes
        self._election_timeout_s = election_timeout_s
        self._handle: Callable[[events.Event], None]
        self._session: ClientSession | None = None
        self._dialled: dict[int, FollowerStream] = {}
        self._served: dict[int, LeaderStream] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.server = StreamServer(self, trust, admit, election_timeout_s=election_timeout_s)

    def connect(self, handle: Callable[[events.Event], None]) -> None:
        """Hand events to this."""
        self._handle = handle

    def start(self, session: ClientSession) -> None:
        """Dial with this session from now on."""
        self._session = session

    def hang_up_dialled(self) -> None:
        """Begin to hang up the streams that this node dialled."""
        for stream in self._dialled.values():
            self._hang_up(stream)

    async def close(self) -> None:
        """Return when all streams have ended."""
        await end_all(self._ending)
        await self.server.close()

    def hang_up_without(self, features: frozenset[str]) -> None:
        """End the streams of peers that do not offer all of these."""
        for stream_id, stream in list(self._dialled.items()):
            if stream.peer is not None and not features <= stream.peer.features:
                self._end_dialled(stream_id, stream, "the leader lacks a feature that this cluster uses")
        self.server.hang_up_without(features)

    def end_dialled(self, reason: str) -> None:
        """End the streams that this node dialled; the core has them dialled again."""
        for stream_id, stream in list(self._dialled.items()):
            self._end_dialled(stream_id, stream, reason)

    def _end_dialled(self, stream_id: int, stream: FollowerStream, reason: str) -> None:
        self._hang_up(stream)
        self.stream_closed(stream_id, reason)

    # What the driver sends

    def dial_stream(self, action: actions.DialStream) -> None:
        """Dial the leader. Without its address, the stream is closed at once."""
        url = self._address_of(action.leader_id)
        if url is None or self._session is None:
            self._handle(events.StreamClosed(action.stream_id))
            return
        self._dialled[action.stream_id] = FollowerStream(
            self,
            self._session,
            action.stream_id,
            (action.leader_id, url),
            self._trust,
            self._max_frame_bytes,
            self._election_timeout_s,
        )

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        """Send to the leader on a stream."""
        if (stream := self._dialled.get(stream_id)) is not None:
            stream.send(message)

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> bool:
        """Send to a follower on a stream; return whether it was taken at once."""
        stream = self._served.get(stream_id)
        return stream is not None and stream.send(message)

    def close_stream(self, stream_id: int) -> None:
        """Hang up a stream, at either end."""
        if (stream := self._dialled.pop(stream_id, None)) is not None:
            self._hang_up(stream)
        if (served := self._served.pop(stream_id, None)) is not None:
            served.hang_up()

    def _hang_up(self, stream: FollowerStream) -> None:
        self._ending.add(task := stream.close())
        task.add_done_callback(self._ending.discard)

    # Messages of the sockets

    def stream_connected(self, stream_id: int) -> None:
        """The stream that this node dialled is open."""
        self._reports.stream = StreamProgress(stream_id)
        self._reports.failures.pop(f"stream with {self._dialled[stream_id].peer_id}", None)
        self._handle(events.StreamConnected(stream_id))

    def open_answered(self, stream_id: int, answer: OpenAnswer) -> None:
        """The leader answered the opening."""
        if self._reports.stream is not None and self._reports.stream.stream_id == stream_id:
            self._reports.stream.from_index = answer.index
        self._handle(events.OpenAnswered(stream_id, answer))

    def frames_arrived(self, stream_id: int, frames: Assembled, positions: Positions, received_bytes: int) -> None:
        """A shipment arrived."""
        if self._reports.stream is not None and self._reports.stream.stream_id == stream_id:
            self._reports.stream.received_bytes += received_bytes
        self._handle(
            events.FramesArrived(
                stream_id, frames.raw, frames.last_epoch, positions.commit_index, positions.durable_index
            )
        )

    def stream_opened(self, stream: LeaderStream, opening: Open) -> None:
        """A follower opened a stream."""
        stream_id = self._next_stream_id()
        stream.stream_id = stream_id
        self._served[stream_id] = stream
        peer = stream.peer
        self._reports.failures.pop(f"stream with {peer.node_id}", None)
        self._handle(events.StreamOpened(stream_id, peer.node_id, peer.disk_id, opening))

    def ack_arrived(self, stream_id: int, ack: Ack) -> None:
        """A follower acknowledged."""
        stream = self._served.get(stream_id)
        if stream is not None:
            self._on_report(stream.peer_id, PositionReport(ack.plain_durable_index, ack.applied_index, ack.digest))
            self._handle(events.AckArrived(stream_id, ack))

    def crc_mismatch_arrived(self, stream_id: int, differs: CrcMismatch) -> None:
        """A follower's frame differs from this leader's."""
        if stream_id in self._served:
            self._handle(events.CrcMismatchArrived(stream_id, differs))

    def shipped(self, stream_id: int, next_index: int, size: int) -> None:
        """The transport has taken a shipment."""
        self._handle(events.Shipped(stream_id, next_index, size))

    def stream_closed(self, stream_id: int, reason: str) -> None:
        """A stream ended."""
        known = self._dialled.pop(stream_id, None) or self._served.pop(stream_id, None)
        if known is not None:
            if self._trust.is_member(known.peer_id) or self._address_of(known.peer_id) is not None:
                self._reports.failures[f"stream with {known.peer_id}"] = reason
            self._handle(events.StreamClosed(stream_id))
