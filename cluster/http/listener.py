"""Accepts the connections of a listening socket: each is accepted plain and counted at once, then served.

An event loop's own server accepts one connection per turn (libuv). With turns of 50 ms that is 20 per second: a client
that opens more would lock out all others, including peers. It would also count a connection with TLS only after its
handshake, and begin any number of handshakes in one turn.
"""

import asyncio
import socket
from collections.abc import Coroutine

import structlog
from aiohttp import web

from quire.replication.net.sockets import end_all

from .admission.addresses import address_of
from .admission.connections import Connection, ConnectionLimit, Refusal
from .handshakes import ContextsInForce, Handshakes
from .problems import problem_of

BACKLOG = 1024
ACCEPTED_IN_TURN = 16
ACCEPT_PAUSE_S = 0.1  # After no descriptor or memory was left.

log = structlog.get_logger(__name__)


class Listener:
    """Accepts connections from `start` to `close`, which also closes the listening socket. One event loop."""

    def __init__(
        self,
        server: web.Server,
        connections: ConnectionLimit,
        listening: socket.socket,
        tls: ContextsInForce = lambda: None,
    ) -> None:
        """`tls` gives the contexts in force; None, always, if the server speaks plain HTTP."""
        self._server = server
        self._connections = connections
        self._listening = listening
        self._tls = tls
        self._handshakes = Handshakes(server, connections, tls)
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._shaking_hands: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen, and accept what comes."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._resume()

    async def close(self) -> None:
        """Accept no more, and end the connections whose handshake is not complete.

        The server knows every other accepted connection on return, and can end them when it chooses.
        """
        if self._listening.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        await end_all(self._shaking_hands)
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_IN_TURN):
            try:
                accepted, peer_name = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("no connection can be accepted", why=(error.strerror or str(error)).lower())
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            self._count(accepted, address_of(peer_name))

    def _count(self, accepted: socket.socket, address: str) -> None:
        has_tls = self._tls() is not None
        place = self._connections.admit(address)
        if place is None and has_tls:
            accepted.close()  # An answer would cost a handshake.
        elif place is None:
            self._run(self._serve(accepted, Refusal(problem_of(self._connections.refusal(), ""))), self._starting)
        elif has_tls:
            self._run(self._handshakes.start(accepted, place), self._shaking_hands)
        else:
            self._run(self._serve(accepted, Connection(self._server, self._connections, place)), self._starting)

    def _run(self, starting: Coroutine[None, None, None], tasks: "set[asyncio.Task[None]]") -> None:
        task = self._loop.create_task(starting)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, accepted: socket.socket, protocol: Connection | Refusal) -> None:
        await self._loop.connect_accepted_socket(lambda: protocol, accepted)
