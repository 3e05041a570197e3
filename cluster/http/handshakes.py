"""Starts accepted connections with TLS, a limited number in each turn of the loop.

A connection is silent until the caller's first message has arrived. Each turn looks at a limited number of these, and
begins a limited number of handshakes; those of callers that dial the node's own name, as only peers do, do not wait
behind the others. The contexts are asked for when a handshake begins. A connection keeps those that it began with, so
that a reload changes nothing for the open ones.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack

import structlog
from aiohttp import web

from ..access.tls import Tls
from ..errors import ClusterError
from .admission.client_hello import HANDSHAKE, HELLO_BYTES, dialled_name
from .admission.connections import Connection, ConnectionLimit, Place, Refusal
from .admission.reading import ReadingTurns
from .problems import problem

HELLOS_IN_TURN = 64
HANDSHAKES_IN_TURN = 8
HANDSHAKE_TIMEOUT_S = 10.0  # From when the connection is accepted.
HELLO_PAUSE_S = 0.005  # Before the next look at a hello of which only a part has arrived; then twice as long each time.
CLOSE_TIMEOUT_S = 5.0  # For the caller's part of closing a TLS connection.
LINGER_S = 2.0  # For what a caller still sends of a plain request after it was refused.
USE_TLS = "this node speaks TLS: use https:// or give --ca FILE"

# What OpenSSL calls the failures that an operator should understand; the others are logged under OpenSSL's own names.
REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it dialled this node's own name, as peers do, and showed no certificate",
    "UNSUPPORTED_PROTOCOL": "it does not offer TLS 1.3",
}
ALERT = re.compile(r"(SSLV3|TLSV1|TLSV13)_ALERT_(?P<said>\w+)")
OF_THIS_NODE = ("unknown ca", "bad certificate", "certificate unknown", "certificate expired")
"""Alerts by which a caller refuses the certificate of this node."""

ContextsInForce = Callable[[], Tls | None]

log = structlog.get_logger(__name__)


class _NotTls(ClusterError):
    """The caller sends something else."""


class _NoHello(ClusterError):
    """The connection is closed; the text says why, empty if there is nothing to say."""


class Handshakes:
    """Starts the connections of one server. One event loop."""

    def __init__(self, server: web.Server, connections: ConnectionLimit, tls: ContextsInForce) -> None:
        self._server = server
        self._connections = connections
        self._tls = tls
        self._hellos = ReadingTurns(HELLOS_IN_TURN)
        self._of_peers = ReadingTurns(HANDSHAKES_IN_TURN)
        self._of_clients = ReadingTurns(HANDSHAKES_IN_TURN)

    async def start(self, accepted: socket.socket, place: Place) -> None:
        """Serve the connection once its handshake is complete. If it fails, log why, and close the connection.

        The place is released when the connection is closed.
        """
        deadline = asyncio.get_running_loop().time() + HANDSHAKE_TIMEOUT_S
        with ExitStack() as held:
            held.callback(self._connections.release, place)
            held.callback(accepted.close)
            try:
                async with asyncio.timeout_at(deadline):
                    is_to_node = await self._dials_node(accepted)
                    await _turn(self._of_peers if is_to_node else self._of_clients)
                held.pop_all()
                await self._shake_hands(accepted, place, is_to_node, deadline)
            except _NotTls:
                held.pop_all()
                log.warning("plain HTTP on the TLS port", peer=place.address)
                await self._answer_plain(accepted, place)
            except (_NoHello, OSError) as error:  # SSLError and TimeoutError are OSErrors.
                if why := _reason_of(error):
                    log.warning("a TLS connection failed", why=why, peer=place.address)

    async def _dials_node(self, accepted: socket.socket) -> bool:
        """Whether the caller dials this node's own name. What it has sent is left there for the handshake."""
        pause_s = HELLO_PAUSE_S
        while True:
            await _arrival(accepted)
            await _turn(self._hellos)
            sent = accepted.recv(HELLO_BYTES, socket.MSG_PEEK)
            if not sent:
                raise _NoHello("")  # Perhaps a balancer that checks that the port is open.
            if sent[0] != HANDSHAKE:
                raise _NotTls
            name = dialled_name(sent)
            if name is not None:
                return name == self._in_force().node_name and self._connections.reserve > 0
            if len(sent) == HELLO_BYTES:
                raise _NoHello(f"its hello is longer than {HELLO_BYTES} bytes")
            await asyncio.sleep(pause_s)  # The socket is readable, so waiting for an arrival would not wait for more.
            pause_s *= 2

    async def _shake_hands(self, accepted: socket.socket, place: Place, is_to_node: bool, deadline: float) -> None:
        loop, tls = asyncio.get_running_loop(), self._in_force()
        connection = Connection(self._server, self._connections, place, tls)
        if is_to_node:
            self._connections.began(connection)
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls.peers if is_to_node else tls.clients,
                ssl_handshake_timeout=max(deadline - loop.time(), HELLO_PAUSE_S),
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
        finally:
            if not connection.is_made:
                connection.connection_lost(None)  # Nobody else calls it. It also breaks aiohttp's cycles of references.

    async def _answer_plain(self, accepted: socket.socket, place: Place) -> None:
        response = problem(400, "tls-required", "This port speaks TLS", USE_TLS, {"request_id": ""})
        refusal = Refusal(response, LINGER_S)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: refusal, accepted)
            await refusal.closed
        finally:
            self._connections.release(place)

    def _in_force(self) -> Tls:
        tls = self._tls()
        if tls is None:
            raise RuntimeError("a server with TLS never ceases to have it")
        return tls


async def _arrival(accepted: socket.socket) -> None:
    """Wait until the socket is readable."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.add_reader(accepted, _set, arrived)
    try:
        await arrived
    finally:
        loop.remove_reader(accepted)


async def _turn(turns: ReadingTurns) -> None:
    """Wait for a place in one of the next turns of the loop."""
    its_turn = asyncio.get_running_loop().create_future()
    turns.resume(lambda: _set(its_turn))
    await its_turn


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _reason_of(error: Exception) -> str:
    """Why a connection could not be started, in words about the caller."""
    match error:
        case _NoHello():
            return str(error)
        case TimeoutError():
            return f"it sent no whole hello in {HANDSHAKE_TIMEOUT_S:g} s"
        case ConnectionAbortedError():
            return f"its handshake was not complete after {HANDSHAKE_TIMEOUT_S:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError():
            name = error.reason or ""
            if (alert := ALERT.fullmatch(name)) is None:
                return REASONS.get(name) or name.replace("_", " ").lower() or "it does not follow the protocol"
            said = alert["said"].replace("_", " ").lower()
            return f"it refuses the certificate of this node: {said}" if said in OF_THIS_NODE else f"it says: {said}"
        case _:
            return "it closed the connection during the handshake; perhaps it does not trust this node's certificate"
