"""`/peer` links (rule 10): each node dials every other, and sends only on the socket that it dialled.

So bulk on `/peer/stream` cannot delay a heartbeat, and an answer proves that the answerer reaches the asker. The one
thing that goes the other way is a probe: is the process that dialled this link still there (`twins`)?
"""

import asyncio
import os
from collections import deque
from typing import Protocol

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web

from ..core.messages import PeerMessage, Probe, ProbeEcho
from .hello import HELLO_TIMEOUT_S, LINK_FAILURES, NONCE_BYTES, PEER_PATH, TWIN, PeerRefused, Who, answer_hello, dial
from .streams import beside
from .twins import Caller, Knock, Twins
from .wire import MAX_MESSAGE_BYTES, decode_peer, encode

PING_S = 10.0
REDIAL_S = 0.2
REFUSED_REDIAL_S = 2.0
PROBE_S = 1.0  # A process that does not answer for so long is replaced by another incarnation of its disk.
MAX_WAITING_MESSAGES = 1_000


class LinkOwner(Protocol):
    """What a link tells its node."""

    def who(self) -> Who:
        """What this node says of itself now."""
        ...

    def link_up(self, peer: Who) -> None:
        """The link that this node dialled stands."""
        ...

    def link_down(self, node_id: str, reason: str) -> None:
        """It is gone."""
        ...

    def link_failed(self, node_id: str, error: Exception) -> None:
        """It could not be made; it is dialled again."""
        ...

    def peer_came(self, peer: Who) -> None:
        """A peer dialled this node."""
        ...

    def twin_came(self, peer: Who) -> None:
        """A second process came with a disk whose first one answers, and was refused: an operator must look."""
        ...

    def peer_replaced(self, peer: Who) -> None:
        """Another incarnation of this peer's disk took its place; nothing that it says counts any more."""
        ...

    def peer_said(self, peer: Who, message: PeerMessage) -> None:
        """A peer sent a message on the link that it dialled."""
        ...


class Link:
    """The link that this node dials to one peer, again and again. `send` never waits: what finds no link is lost."""

    def __init__(self, owner: LinkOwner, session: ClientSession, node_id: str, url: str, secret: bytes | None) -> None:
        self.node_id = node_id
        self.peer: Who | None = None
        self._owner = owner
        self._session = session
        self._url = url
        self._secret = secret
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_MESSAGES)
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"link to {node_id}")

    def send(self, message: PeerMessage) -> None:
        """Queue a message; the oldest go when too many wait, and all when the link breaks."""
        if self.peer is not None:
            self._waiting.append(encode(message))
            self._wake.set()

    async def close(self) -> None:
        """Hang up."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            pause = REDIAL_S
            try:
                await self._dial()
            except Exception as error:  # noqa: BLE001  # Also of a fault of this program: told, and the peer dialled again.
                pause = REFUSED_REDIAL_S if isinstance(error, PeerRefused) else REDIAL_S
                self._owner.link_failed(self.node_id, error)
            await asyncio.sleep(pause)

    async def _dial(self) -> None:
        url = f"http://{self._url}{PEER_PATH}"
        socket, self.peer = await dial(
            self._session, url, self._owner.who(), self.node_id, "peer", self._secret, PING_S
        )
        await self._talk(socket, self.peer)

    async def _talk(self, socket: ClientWebSocketResponse, peer: Who) -> None:
        self._waiting.clear()
        self._owner.link_up(peer)
        try:
            async with beside(self._send_waiting(socket)):
                async for message in socket:  # after the hello the other side only probes: this ends with the link
                    if message.type is WSMsgType.BINARY and isinstance(probe := decode_peer(message.data), Probe):
                        self.send(ProbeEcho(probe.nonce))
        finally:
            self.peer = None
            await socket.close()
            self._owner.link_down(self.node_id, "the connection ended")

    async def _send_waiting(self, socket: ClientWebSocketResponse) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await socket.send_bytes(self._waiting.popleft())


class LinkServer:
    """The other end: answers hellos and passes on what peers say."""

    def __init__(self, owner: LinkOwner, secret: bytes | None) -> None:
        self._owner = owner
        self._secret = secret
        self._links: dict[int, tuple[web.WebSocketResponse, Who]] = {}
        self._number = 0
        self._twins = Twins()
        self._knocks: dict[int, asyncio.Future[bool]] = {}
        self._closed = False

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle one `/peer` connection until it ends."""
        if self._closed:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, timeout=1.0)
        await socket.prepare(request)
        self._number += 1
        number = self._number
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                peer = await answer_hello(
                    socket, self._owner.who(), "peer", self._secret, os.urandom(NONCE_BYTES), self.admit
                )
            if self._closed:  # while the hello was under way: whoever comes next serves the next dial
                raise ConnectionResetError("this node hung up")
            await self._listen(number, socket, peer)
        except LINK_FAILURES:
            await socket.close()
        return socket

    async def _listen(self, number: int, socket: web.WebSocketResponse, peer: Who) -> None:
        self._links[number] = (socket, peer)
        self._twins.stands(number, Caller(peer.disk_id, peer.incarnation))
        try:
            self._owner.peer_came(peer)
            async for message in socket:
                if number not in self._links:
                    raise ConnectionResetError("another incarnation of this disk took its place")
                if message.type is WSMsgType.BINARY:
                    self._hear(number, peer, decode_peer(message.data))
        finally:
            self._end(number)

    def _hear(self, number: int, peer: Who, message: PeerMessage) -> None:
        if not isinstance(message, ProbeEcho):
            self._owner.peer_said(peer, message)
        elif self._twins.answered(number, message.nonce) and not self._knocks[message.nonce].done():
            self._knocks[message.nonce].set_result(False)

    def _end(self, number: int) -> None:
        self._links.pop(number, None)
        self._twins.ended(number)
        for knock in self._knocks.values():
            if not knock.done():
                knock.set_result(True)  # asked again: another link may stand

    async def admit(self, peer: Who) -> None:
        """Let a peer in unless another incarnation of its disk answers; replace the one that does not.

        Raises:
            PeerRefused: it does; the owner was told.
        """
        caller = Caller(peer.disk_id, peer.incarnation)
        deadline = asyncio.get_running_loop().time() + PROBE_S
        while (knock := self._twins.came(caller)) is not None:
            if await self._is_answered(knock, deadline):
                self._owner.twin_came(peer)
                raise PeerRefused(TWIN, f"another process of {peer.node_id} with this disk runs, and answers")
            if asyncio.get_running_loop().time() >= deadline:
                for number in knock.links:
                    await self._replace(number)

    async def _is_answered(self, knock: Knock, deadline: float) -> bool:
        """Probe; whether a link answers before the deadline, and before one of them ends."""
        knocked = self._knocks[knock.nonce] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                for socket in [self._links[number][0] for number in knock.links]:
                    await socket.send_bytes(encode(Probe(knock.nonce)))
                return not await knocked
        except (TimeoutError, OSError):
            return False
        finally:
            del self._knocks[knock.nonce]
            self._twins.decided(knock)

    async def _replace(self, number: int) -> None:
        link = self._links.get(number)
        if link is not None:
            self._end(number)
            self._owner.peer_replaced(link[1])
            await link[0].close()

    async def close(self) -> None:
        """Hang up on everybody, and take nobody any more."""
        self._closed = True
        for socket, _ in list(self._links.values()):
            await socket.close()
