"""A node that is none: it knows the secret, says of itself what it likes, dials nodes and is dialled by them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import ClientSession, ClientWebSocketResponse, WSMessage, WSMsgType, web

from quire.replication.address import host_and_port
from quire.replication.net.hello import (
    LINK_FAILURES,
    NONCE_BYTES,
    PATHS,
    PeerInfo,
    answer_hello,
    dial,
)
from quire.replication.net.sockets import close_socket
from quire.replication.net.wire import MAX_MESSAGE_BYTES
from tests.replication.loopback import trusting

DEADLINE_S = 30.0
ENDED = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR})

Serve = Callable[[web.WebSocketResponse, PeerInfo], Awaitable[None]]


class Line:
    """A connection to a node after the hello, whoever dialled it."""

    def __init__(self, socket: ClientWebSocketResponse | web.WebSocketResponse) -> None:
        self.socket = socket

    async def say(self, data: bytes, *, as_text: bool = False) -> bool:
        """Send a message; return whether the node has read it and still listens."""
        try:
            if as_text:
                await self.socket.send_str(data.decode("latin-1"))
            else:
                await self.socket.send_bytes(data)
            return await self.listens()
        except ConnectionError:
            return False

    async def listens(self) -> bool:
        """Whether the node has read what was sent before, and still listens."""
        try:
            await self.socket.ping()
            return await self.hear(WSMsgType.PONG) is not None
        except ConnectionError:
            return False

    async def hear(self, kind: WSMsgType = WSMsgType.BINARY) -> WSMessage | None:
        """The next message of this type, others are passed over; None: the node has closed."""
        async with asyncio.timeout(DEADLINE_S):
            while (message := await self.socket.receive()).type is not kind:
                if message.type is WSMsgType.PING:
                    await self.socket.pong(message.data)
                elif message.type in ENDED:
                    return None
        return message


class Stranger:
    """Speaks as `info`, with the secret."""

    def __init__(self, session: ClientSession, info: PeerInfo, secret: bytes) -> None:
        self.info = info
        self.on_stream: Serve | None = None
        self.on_snapshot: Serve | None = None
        self._session = session
        self._secret = secret
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def dialled(self, address: str, node_id: str, purpose: str = "peer") -> AsyncGenerator[Line]:
        """A connection to a node, open while the block runs."""
        socket, _ = await dial(
            self._session, address, lambda: self.info, node_id, purpose, trusting(self._secret), None
        )
        try:
            yield Line(socket)
        finally:
            await close_socket(socket)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Answer at the address that `info` names: links are read and not answered, streams as `on_stream` does."""
        app = web.Application()
        for purpose, path in PATHS.items():
            app.router.add_get(path, self._handler(purpose))
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, *host_and_port(self.info.address)).start()
            yield
        finally:
            await runner.cleanup()

    def _handler(self, purpose: str) -> Callable[[web.Request], Awaitable[web.WebSocketResponse]]:
        async def handle(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, timeout=0.1, autoping=False)
            await socket.prepare(request)
            try:
                nonce = os.urandom(NONCE_BYTES)
                peer = await answer_hello(socket, self.info, purpose, (self._secret,), nonce)
                serve = {"stream": self.on_stream, "snapshot": self.on_snapshot}.get(purpose) or self._read
                await serve(socket, peer)
            except LINK_FAILURES:
                pass
            finally:
                await socket.close()
            return socket

        return handle

    async def _read(self, socket: web.WebSocketResponse, peer: PeerInfo) -> None:
        while (message := await socket.receive()).type not in ENDED:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
