"""`/peer` links (rule 10): each node dials every other, and sends only on the socket that it dialled.

So bulk on `/peer/stream` cannot delay a heartbeat, and an answer proves that the answerer reaches the asker.
"""

import asyncio
import os
from collections import deque
from typing import Protocol

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, WSMsgType, web

from .core.messages import PeerMessage
from .hello import HELLO_TIMEOUT_S, NONCE_BYTES, PeerRefused, Who, answer_hello, dial
from .wire import MAX_MESSAGE_BYTES, BadMessage, decode_peer, encode

PEER_PATH = "/peer"
PING_S = 10.0
REDIAL_S = 0.2
REFUSED_REDIAL_S = 2.0
MAX_WAITING_MESSAGES = 1_000

LINK_FAILURES = (ClientError, OSError, asyncio.TimeoutError, BadMessage, PeerRefused)


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
            except LINK_FAILURES as error:
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
        sender = asyncio.create_task(self._send_waiting(socket))
        try:
            await socket.receive()  # after the hello the other side says nothing here: this returns when the link ends
        finally:
            self.peer = None
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
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
        self._sockets: dict[web.WebSocketResponse, Who] = {}
        self._closed = False

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle one `/peer` connection until it ends."""
        if self._closed:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, timeout=1.0)
        await socket.prepare(request)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                peer = await answer_hello(socket, self._owner.who(), "peer", self._secret, os.urandom(NONCE_BYTES))
            if self._closed:  # while the hello was under way: whoever comes next serves the next dial
                raise ConnectionResetError("this node hung up")
            self._sockets[socket] = peer
            self._owner.peer_came(peer)
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    self._owner.peer_said(peer, decode_peer(message.data))
        except LINK_FAILURES:
            await socket.close()
        finally:
            self._sockets.pop(socket, None)
        return socket

    async def close(self) -> None:
        """Hang up on everybody, and take nobody any more."""
        self._closed = True
        for socket in list(self._sockets):
            await socket.close()
