"""`/peer` links (rule 10): each node dials every other, and sends only on the socket that it dialled.

So bulk data on `/peer/stream` cannot delay a heartbeat, and an answer proves that its sender can reach this node. Only
probes go the other way: is the process that dialled this link still alive (`duplicate_guard`)?
"""

import asyncio
import os
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from aiohttp import (
    ClientConnectorError,
    ClientSession,
    ClientWebSocketResponse,
    WSMessage,
    WSMsgType,
    WSServerHandshakeError,
    web,
)

from ..core.messages import PeerMessage, Probe, ProbeEcho
from .duplicate_guard import Caller, DuplicateNodeGuard, ProbeRound
from .hello import (
    DUPLICATE,
    LINK_FAILURES,
    HelloServer,
    PeerInfo,
    PeerRefused,
    dial,
)
from .sockets import (
    ELECTION_TIMEOUT_S,
    Pinger,
    accept,
    close_socket,
    end_all,
    give_up_when_silent,
    read_in_turns,
    together,
)
from .trust import Trust
from .wire import MAX_MESSAGE_BYTES, MAX_REASON, decode_peer, encode

SERVER_PING_S = 10.0  # Of the dialled end, which only has to notice eventually.
FIRST_REDIAL_S = 0.05
SHORTEST_REDIAL_S = 0.02
CLOSE_S = 0.1
REFUSED_REDIAL_S = 2.0
PROBE_S = 1.0  # A process that does not answer within it is replaced by another incarnation of its disk.
MAX_BACKOFF_DOUBLINGS = 8
MAX_WAITING_MESSAGES = 1_000
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL says of a server that answers in plain text."""
USE_TLS = "; if it has certificates, start this node with --tls-cert, --tls-key and --tls-ca, too"


def _failure_of_tls(error: ssl.SSLError) -> str:
    """Why a peer did not prove that it is the node that was dialled."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return f"its certificate is refused: {why}; look at it with `quire certs show`, and at both clocks"
    if error.reason in NO_TLS:
        return "it does not speak TLS: start it with --tls-cert, --tls-key and --tls-ca"
    return f"the TLS handshake failed: {(error.reason or 'without a reason').replace('_', ' ').lower()}"


def failure_of(error: Exception) -> str:
    """Why a peer cannot be dialled, in words: for an address that does not answer, the system's."""
    if isinstance(error, ClientConnectorError):
        if isinstance(error.os_error, ssl.SSLError):
            return f"{_failure_of_tls(error.os_error)} ({error.host}:{error.port})"
        known = error.os_error.errno is not None and error.os_error.errno > 0  # Else the name is not resolved.
        why = (
            os.strerror(error.os_error.errno or 0).lower() if known else str(error.os_error.strerror or error.os_error)
        )
        return f"{why} ({error.host}:{error.port})"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, WSServerHandshakeError):
        return f"it answers {error.status} to a peer{USE_TLS if error.request_info.url.scheme == 'http' else ''}"
    return str(error)[:MAX_REASON] or type(error).__name__  # A stranger's status line may have 8 KiB.


@dataclass(slots=True)
class StreamProgress:
    """The stream that this node follows, for status: where it began, what has arrived since."""

    stream_id: int
    from_index: int = 0
    received_bytes: int = 0


class OtherHistory(NamedTuple):
    """What a peer of another history, or of another cluster, proved to this node."""

    history: bytes
    heard_at: float
    """When it did last, by the loop's clock, in seconds."""

    def alarm(self, node_id: str) -> str:
        """The alarm about that peer."""
        return (
            f"{node_id} is of another history, {self.history.hex()}: what passes for one cluster takes writes in two; "
            "keep one, stop the nodes of the other, and start them with empty directories and --join"
        )


@dataclass(slots=True)
class PeerReports:
    """Facts about peers that no rule reads, for status and alarms: about members and dialled peers.

    `failures` has a reason by node id for a link that this node dialled, by `link from ID` for one that it refused.
    """

    failures: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    histories: dict[str, OtherHistory] = field(default_factory=dict)
    """The peers of other histories that were heard recently, by node id; at most MAX_MEMBERS."""
    alarms: dict[str, str] = field(default_factory=dict)
    codes: dict[str, bytes] = field(default_factory=dict)
    """The fingerprint of each peer's machine, by node id, since it was linked last; see `PeerInfo.code`."""
    stream: StreamProgress | None = None


class LinkEvents(Protocol):
    """What links report to their node. Called on the loop."""

    def me(self) -> PeerInfo:
        """What this node now reports about itself."""
        ...

    def link_up(self, peer: PeerInfo) -> None:
        """The link that this node dialled is open."""
        ...

    def link_down(self, node_id: str, reason: str) -> None:
        """It ended."""
        ...

    def link_failed(self, node_id: str, error: Exception) -> None:
        """It could not be opened; it is dialled again."""
        ...

    def peer_dialled(self, peer: PeerInfo) -> None:
        """A peer dialled this node."""
        ...

    def peer_doubted(self, node_id: str, reason: str) -> None:
        """A caller that claims to be this member dialled this node without proving that it is."""
        ...

    def peer_foreign(self, peer: PeerInfo) -> None:
        """A believed peer of another cluster or history dialled this node."""
        ...

    def duplicate_refused(self, peer: PeerInfo) -> None:
        """A second process with a peer's disk was refused, since the first one answers: an operator must check it."""
        ...

    def peer_replaced(self, peer: PeerInfo) -> None:
        """Another incarnation of this peer's disk replaced it; its messages no longer count."""
        ...

    def message_received(self, peer: PeerInfo, message: PeerMessage) -> None:
        """A peer sent a message on the link that it dialled."""
        ...


class Link:
    """The link that this node dials to one peer, and redials when it ends. `send` never waits but may drop messages."""

    def __init__(
        self,
        events: LinkEvents,
        session: ClientSession,
        node_id: str,
        addresses: Callable[[], Sequence[str]],
        trust: Trust,
        election_timeout_s: float = ELECTION_TIMEOUT_S,
    ) -> None:
        """`addresses` are those that the peer may have now, the best first; each is tried in turn."""
        self.node_id = node_id
        self.address: str | None = None
        """Where the peer was dialled last."""
        self.peer: PeerInfo | None = None
        self._socket: ClientWebSocketResponse | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._events = events
        self._session = session
        self._addresses = addresses
        self._turn = 0
        self._trust = trust
        self._election_timeout_s = election_timeout_s
        self._failures = 0  # since a link last held for an election timeout
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_MESSAGES)
        self._wake = asyncio.Event()
        self._dialled_by_peer = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"link to {node_id}")

    def send(self, message: PeerMessage) -> None:
        """Queue a message. Beyond the limit the oldest are dropped, and all of them when the link breaks."""
        if self.peer is not None:
            self._waiting.append(encode(message))
            self._wake.set()

    def redial_now(self) -> None:
        """End a pause between two dials early: the peer has dialled this node, so it runs and can be reached."""
        self._dialled_by_peer.set()

    def hang_up(self) -> None:
        """End the link; the peer is dialled again."""
        if self._socket is not None:
            self._closing.add(
                task := asyncio.create_task(close_socket(self._socket), name=f"end of link to {self.node_id}")
            )
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Hang up."""
        await end_all([self._task, *self._closing])

    async def _run(self) -> None:
        while True:
            refused = False
            self._dialled_by_peer.clear()
            try:
                await self._dial()
            except Exception as error:  # noqa: BLE001  # A bug of this program, too, is reported, and the peer redialled.
                refused = isinstance(error, PeerRefused)
                self._events.link_failed(self.node_id, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_REDIAL_S if refused else self._pause_s()):
                    await self._dialled_by_peer.wait()
                    await asyncio.sleep(SHORTEST_REDIAL_S)  # Two nodes that end each other's links must not spin.

    def _pause_s(self) -> float:
        """None after a link that held for a while; else longer each time, up to about an election timeout."""
        longest = min(self._election_timeout_s, FIRST_REDIAL_S * 2.0**self._failures)
        pause = random.uniform(longest / 2, longest) if self._failures else 0.0
        self._failures = min(self._failures + 1, MAX_BACKOFF_DOUBLINGS)
        return pause

    async def _dial(self) -> None:
        me, session, addresses = self._events.me, self._session, self._addresses()
        if not addresses:
            raise ConnectionRefusedError("no address of it is known")
        self.address = addresses[self._turn % len(addresses)]
        self._turn += 1
        socket, self.peer = await dial(session, self.address, me, self.node_id, "peer", self._trust, None)
        self._turn -= 1  # It is dialled there again.
        give_up_when_silent(socket, self._election_timeout_s)
        began = asyncio.get_running_loop().time()
        try:
            await self._talk(socket, self.peer)
        finally:
            if asyncio.get_running_loop().time() - began >= self._election_timeout_s:
                self._failures = 0

    async def _talk(self, socket: ClientWebSocketResponse, peer: PeerInfo) -> None:
        self._waiting.clear()
        self._socket = socket
        self._events.link_up(peer)
        pinger, reason = Pinger(socket, self._election_timeout_s), "the socket closed"
        try:
            await together(self._answer_probes(socket, pinger), self._send_waiting(socket), pinger.run())
        except ConnectionResetError as error:
            reason = str(error)
            raise
        finally:
            self.peer = self._socket = None
            self._events.link_down(self.node_id, reason)
            with suppress(TimeoutError):  # A silent peer does not answer a closing handshake.
                async with asyncio.timeout(CLOSE_S):
                    await close_socket(socket)

    async def _answer_probes(self, socket: ClientWebSocketResponse, pinger: Pinger) -> None:
        """Read what the other side sends: probes, pings and pongs. Ends with the link."""
        async for message in socket:
            if message.type is WSMsgType.PONG:
                pinger.answered()
            elif message.type is WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type is WSMsgType.BINARY and isinstance(probe := decode_peer(message.data), Probe):
                self.send(ProbeEcho(probe.nonce))

    async def _send_waiting(self, socket: ClientWebSocketResponse) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await socket.send_bytes(self._waiting.popleft())


class LinkServer:
    """The accepting end: answers hellos and passes on the peers' messages."""

    def __init__(self, events: LinkEvents, trust: Trust, election_timeout_s: float = ELECTION_TIMEOUT_S) -> None:
        self._events = events
        self._hellos = HelloServer(events.me, "peer", trust, self.admit, self._doubt, events.peer_foreign)
        self._election_timeout_s = election_timeout_s
        self._links: dict[int, tuple[web.WebSocketResponse, PeerInfo]] = {}
        self._number = 0
        self._guard = DuplicateNodeGuard()
        self._probes: dict[int, asyncio.Future[bool]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle one `/peer` socket until it ends."""
        if self._closed:
            raise web.HTTPServiceUnavailable
        socket = await accept(request, MAX_MESSAGE_BYTES, SERVER_PING_S)
        give_up_when_silent(request, self._election_timeout_s)
        self._number += 1
        number = self._number
        try:
            peer = await self._hellos.answer(request, socket)
            if self._closed:  # During the hello. The peer dials again and reaches the server that is active then.
                raise ConnectionResetError("this node hung up")
            await self._listen(number, socket, peer)
        except LINK_FAILURES:
            pass  # The peer is gone, or does not speak this protocol; it redials.
        finally:
            await close_socket(socket)
        return socket

    def _doubt(self, node_id: str, reason: str) -> None:
        """Report it, unless that member is connected: then another program uses its name."""
        if not self.is_called_by(node_id):
            self._events.peer_doubted(node_id, reason)

    def is_called_by(self, node_id: str) -> bool:
        """Whether that node has dialled this one, and is connected."""
        return any(peer.node_id == node_id for _, peer in self._links.values())

    async def _listen(self, number: int, socket: web.WebSocketResponse, peer: PeerInfo) -> None:
        self._links[number] = (socket, peer)
        self._guard.opened(number, Caller(peer.disk_id, peer.incarnation))
        try:
            self._events.peer_dialled(peer)
            await read_in_turns(socket, partial(self._take, number, peer))
        finally:
            self._end(number)

    def _take(self, number: int, peer: PeerInfo, message: WSMessage) -> None:
        if number not in self._links:
            raise ConnectionResetError("another incarnation of this disk replaced it")
        if message.type is WSMsgType.BINARY:
            self._receive(number, peer, decode_peer(message.data))

    def _receive(self, number: int, peer: PeerInfo, message: PeerMessage) -> None:
        if not isinstance(message, ProbeEcho):
            self._events.message_received(peer, message)
        elif self._guard.is_alive(number, message.nonce) and not self._probes[message.nonce].done():
            self._probes[message.nonce].set_result(True)

    def _end(self, number: int) -> None:
        self._links.pop(number, None)
        self._guard.closed(number)
        for probed in self._probes.values():
            if not probed.done():
                probed.set_result(False)  # A new round follows: another link of that process may be open.

    async def admit(self, peer: PeerInfo) -> None:
        """Admit a peer unless another incarnation of its disk answers; replace the incarnation that does not.

        Raises:
            PeerRefused: the other incarnation answers; `duplicate_refused` was called.
        """
        caller = Caller(peer.disk_id, peer.incarnation)
        deadline = asyncio.get_running_loop().time() + PROBE_S
        while (probes := self._guard.begin_round(caller)) is not None:
            if await self._is_answered(probes, deadline):
                self._events.duplicate_refused(peer)
                raise PeerRefused(DUPLICATE, f"another process of {peer.node_id} with this disk runs, and answers")
            if asyncio.get_running_loop().time() >= deadline:
                for number in probes.links:
                    await self._replace(number)

    async def _is_answered(self, probes: ProbeRound, deadline: float) -> bool:
        """Probe; return whether a link answers before the deadline and before one of them ends."""
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._probes[probes.nonce] = answered
        try:
            async with asyncio.timeout_at(deadline):
                for socket in [self._links[number][0] for number in probes.links]:
                    await socket.send_bytes(encode(Probe(probes.nonce)))
                return await answered
        except (TimeoutError, OSError):
            return False
        finally:
            del self._probes[probes.nonce]
            self._guard.end_round(probes)

    async def _replace(self, number: int) -> None:
        link = self._links.get(number)
        if link is not None:
            self._end(number)
            self._events.peer_replaced(link[1])
            await close_socket(link[0])

    def hang_up_without(self, features: frozenset[str]) -> None:
        """End the links of peers that do not offer all of these."""
        for number, (socket, peer) in list(self._links.items()):
            if not features <= peer.features:
                self._end(number)
                self._closing.add(
                    task := asyncio.create_task(close_socket(socket), name=f"end of link from {peer.node_id}")
                )
                task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Hang up on all peers, and refuse new ones."""
        self._closed = True
        self._hellos.close()
        await end_all(self._closing)
        for socket, _ in list(self._links.values()):
            await close_socket(socket)
