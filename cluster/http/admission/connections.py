"""How many connections a node accepts, and how each is served.

A connection is counted from when it is accepted until its socket is closed, also while it is silent or in its TLS
handshake. Peers use the same port, and a node that no peer can reach is lost to the cluster. So some connections above
the limit are still accepted, but only requests for a peer's path are answered on them. Above that reserve, a connection
is refused before it sends anything.

Non-HTTP input also gets a problem response, and one line in the journal. aiohttp would answer in plain text and log a
traceback each time: a port scan, or a client that speaks TLS, would flood the journal. The same holds for a request on
which aiohttp fails before a middleware has it, and so before roles, the audit log and limits: that is the caller's
fault. aiohttp also answers `Expect` there, so it is not shown that header; `meet_expectation` answers it.

A caller may close its end of the connection as soon as it has sent its last request (`shutdown(SHUT_WR)`). It still
gets an answer to each complete request, in order; then the connection closes. It closes at once if nothing is left to
answer: an idle connection, an unfinished body, or a request that waits for an event (a long poll or a stream). The node
cannot tell whether such a caller is still there, so one that does not read its answers is cut off. Over TLS there is no
such half-closed connection: it ends with the caller's `close_notify`.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict, CIMultiDictProxy

from quire.replication.address import host_of
from quire.replication.net.hello import PEER_PATHS
from quire.replication.net.sockets import drop_frames

from ...access.tls import Certificate, Tls, expiry_of, node_in
from ...access.tokens import without_tokens
from ...errors import Malformed, Overloaded
from ..problems import ExpectationUnknown, problem_of
from ..request import REQUEST_ID_KEY, identify, waits_on_purpose
from .addresses import full, share_of
from .reading import ReadingTurns

CONNECTIONS_LIMIT = 10_000
PEER_RESERVE = 256
KEEPALIVE_S = 75.0  # Longer than clients and forwarding nodes keep a connection, so that they never use a closing one.
HALF_CLOSED_STALL_S = 30.0  # A caller who sends no more is cut off when it has read nothing for this long,
HALF_CLOSED_CHECKS = 10  # checked this many times. A buffer that moves may have the same size twice by chance.
GIVE_CERTIFICATE = "the node has no certificate; start it with --tls-cert, --tls-key and --tls-ca, or use http://"
REASON_LENGTH = 120  # Characters of the parser's message, in the problem and the journal.

TLS_HELLO = "Received HTTPS traffic"  # How aiohttp's parser begins its complaint about one.
CONTINUE = "100-continue"
EXPECTED = web.RequestKey("expected", str)
"""The header `Expect` of the request."""

_INPUT = re.compile(r"\n\n|:? *b['\"]")
"""Where the parser's message begins to quote the input, at length, a token in it included."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Place:
    """A connection that is counted."""

    address: str
    is_surplus: bool
    """Whether it is above the limit or its address's share, so that only a peer's requests are answered."""


class ConnectionLimit:
    """Counts the connections of one server, up to a limit and a reserve for peers. One event loop."""

    def __init__(self, limit: int = CONNECTIONS_LIMIT, reserve: int = PEER_RESERVE) -> None:
        self.limit = limit
        self.reserve = reserve
        """How many more for peers; 0 if the server has no peers."""
        self.reading = ReadingTurns()
        self._places: set[Place] = set()
        self._of_address: Counter[str] = Counter()
        self._of_peers: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, address: str) -> Place | None:
        """Count a connection from this address until it is released; None if there is no room, even in the reserve."""
        count = len(self._places)
        if count >= self.limit + self.reserve:
            return None
        self._of_address[address] += 1
        is_surplus = count >= self.limit or self._of_address[address] > share_of(self.limit)
        place = Place(address, is_surplus)
        self._places.add(place)
        return place

    def release(self, place: Place) -> None:
        """The connection's socket is closed. Releasing it again changes nothing."""
        if place not in self._places:
            return
        self._places.remove(place)
        self._of_address[place.address] -= 1
        if not self._of_address[place.address]:
            del self._of_address[place.address]

    def refuses(self, request: web.Request) -> bool:
        """Whether the request came over a connection above the limit or its address's share, and is not a peer's."""
        connection = request.protocol
        return isinstance(connection, Connection) and connection.place.is_surplus and request.path not in PEER_PATHS

    def refusal(self) -> Overloaded:
        """Why such a request is refused, or a connection when there is no room even in the reserve."""
        return full(self.limit, "connections are open", is_whole=len(self._places) > self.limit)

    def end_peers_before(self, tls: Tls) -> None:
        """End peers' connections that began under other contexts: now, or after the response that is being sent.

        Call it when a CA is no longer trusted.
        """
        for connection in tuple(self._of_peers):
            if connection.tls is not tls:
                connection.end()

    def began(self, connection: "Connection") -> None:
        """A handshake began in which the caller must show a certificate."""
        self._of_peers.add(connection)

    def ended(self, connection: "Connection") -> None:
        """The connection is closed, or its handshake failed."""
        self._of_peers.discard(connection)
        self.release(connection.place)


class Connection(RequestHandler):
    """Serves one connection. Request bodies are never decompressed."""

    __slots__ = (
        "_ends",
        "_expiry",
        "_finished",
        "_is_ending",
        "_limit",
        "is_half_closed",
        "is_made",
        "peer",
        "place",
        "tls",
    )

    def __init__(self, server: web.Server, limit: ConnectionLimit, place: Place, tls: Tls | None = None) -> None:
        self._limit = limit
        self._ends: list[BaseException] = []
        self._finished = 0
        self._is_ending = False
        self._expiry: asyncio.TimerHandle | None = None
        """Ends a peer's connection when its certificate expires."""
        self.place = place
        self.tls = tls
        """The contexts of which it was started with one; None without TLS."""
        self.peer: str | None = None
        """The node that the caller proved to be, by its certificate."""
        self.is_made = False
        """Whether requests can arrive. Over TLS, the handshake comes first."""
        self.is_half_closed = False
        """Whether the caller sends no more."""
        super().__init__(server, loop=asyncio.get_running_loop(), keepalive_timeout=KEEPALIVE_S, auto_decompress=False)
        self._request_factory = partial(_without_expect, server.request_factory)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve it."""
        self.is_made = True
        certificate: Certificate | None = transport.get_extra_info("peercert")
        if self.tls is not None and certificate:  # A caller that was not asked has none.
            self.peer = node_in(certificate, self.tls.cluster)
            left_s = max(0.0, expiry_of(certificate) - time.time())
            self._expiry = asyncio.get_running_loop().call_later(left_s, self.end)
        super().connection_made(transport)
        asyncio.get_running_loop().call_soon(self._begin_to_read)  # The transport begins to read after this call.
        if self._is_ending and self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """Close it: after the response that is being sent, or at once, if there is none or it is a WebSocket's."""
        self._is_ending = True
        request = self._current_request
        is_socket = request is not None and request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        if is_socket or self._finished == self._request_count:
            self.force_close()
        else:
            self.close()

    def _begin_to_read(self) -> None:
        self._pause_transport_reading()
        self._resume_transport_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting it."""
        self._limit.ended(self)
        if self._expiry is not None:
            self._expiry.cancel()
        request = self._current_request
        super().connection_lost(exc)
        if request is not None and (error := request.content.exception()) is not None:
            self._ends.append(error)

    def eof_received(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """The caller sends no more. Return whether the connection stays open until everything is answered.

        uvloop may call it again when a handler has read its body and reading resumes.
        """
        first, self.is_half_closed = not self.is_half_closed, True
        if self.tls is not None:
            return False
        # aiohttp's `_request_count`: the requests that it has parsed. No public attribute shows one that has not begun,
        # and the end often comes before it does. When it begins, `check_whole` finds out if it can be answered.
        is_open = self._finished < self._request_count
        if self._current_request is not None:
            is_open = is_open and _is_answerable(self._current_request)
        if first and (is_open or (self.transport is not None and self.transport.get_write_buffer_size())):
            self._cut_if_stalled()
        return is_open

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response. If the caller sends no more, the connection closes after the last."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._finished += 1
            if self.is_half_closed and self._finished == self._request_count:
                self.close()

    def _cut_if_stalled(self, unsent: int = 0, checks: int = 0) -> None:
        if self.transport is None:
            return
        before, unsent = unsent, self.transport.get_write_buffer_size()
        checks = checks + 1 if unsent and unsent == before else 0
        if checks == HALF_CLOSED_CHECKS:
            self.transport.abort()
        else:
            pause_s = HALF_CLOSED_STALL_S / HALF_CLOSED_CHECKS
            asyncio.get_running_loop().call_later(pause_s, self._cut_if_stalled, unsent, checks)

    async def start(self) -> None:
        """Serve the connection's requests. Then clear its errors' tracebacks, which form reference cycles."""
        try:
            await super().start()
        finally:
            for error in self._ends:
                drop_frames(error)

    def _resume_transport_reading(self) -> None:  # Overrides aiohttp's, which is called for every reason to resume.
        self._limit.reading.resume(self.go_on_reading)

    def go_on_reading(self) -> None:
        """Read from the socket again, unless there is now another reason not to."""
        if not self._reading_paused and not self._buffer_paused:
            super()._resume_transport_reading()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response when no handler returned one."""
        if isinstance(exc, ConnectionError):
            drop_frames(exc)
            gone = ConnectionResetError(str(exc))
            self._ends.append(gone)
            raise gone from None  # The caller is gone, or was cut off: nobody is left to answer.
        said = exc.message if isinstance(exc, HttpProcessingError) else None
        if exc is None or (said is None and REQUEST_ID_KEY in request):  # A middleware had it: a fault of this program.
            return super().handle_error(request, status, exc, message)
        drop_frames(exc)
        reason = f"aiohttp fails with {type(exc).__name__}" if said is None else _gist_of(said)
        request_id = identify(request)
        peer = host_of(request.remote or "")
        if said is not None and said.startswith(TLS_HELLO):
            reason = "this is TLS, and the node speaks plain HTTP"
            log.warning("a TLS client on the plain port", peer=peer, fix=GIVE_CERTIFICATE)
        else:
            log.warning("not HTTP", why=reason, peer=peer)
        refused = problem_of(Malformed(f"this cannot be read as HTTP: {reason}"), request_id)
        response = _ToNoRequest(body=refused.body, status=refused.status, headers=refused.headers)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error unless the caller caused it. A broken body or connection was answered, or nobody is left."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError | web.RequestPayloadError | ConnectionError):
            super().log_exception(*args, **kw)


class _ToNoRequest(web.Response):
    """The response to non-HTTP input, for which aiohttp calls no hook that could leave out its `Server` header."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall(hdrs.SERVER, None)


def peer_of(request: web.BaseRequest) -> str | None:
    """The node that the caller proved to be, by its certificate; None if it showed none, and without TLS."""
    connection = request.protocol
    return connection.peer if isinstance(connection, Connection) else None


class Refusal(asyncio.Protocol):
    """Sends one response to whatever request there is, and closes the connection."""

    def __init__(self, response: web.Response, linger_s: float = 0.0) -> None:
        """It drops what arrives for up to `linger_s`: unread bytes reset a connection, and the response may be lost."""
        self._response = response
        self._linger_s = linger_s
        self._cut_off: asyncio.TimerHandle | None = None
        self.closed = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the response."""
        writing = cast(asyncio.Transport, transport)  # Those of uvloop are of no class of asyncio's.
        body = self._response.body if isinstance(self._response.body, bytes) else b""
        head = [f"HTTP/1.1 {self._response.status} {self._response.reason}"]
        head += [f"{name}: {value}" for name, value in self._response.headers.items()]
        head += [f"Content-Length: {len(body)}", "Connection: close", "\r\n"]
        writing.write("\r\n".join(head).encode() + body)
        if self._linger_s:
            writing.write_eof()
            self._cut_off = asyncio.get_running_loop().call_later(self._linger_s, writing.abort)
        else:
            writing.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing more arrives."""
        if self._cut_off is not None:
            self._cut_off.cancel()
        if not self.closed.done():
            self.closed.set_result(None)


def check_whole(request: web.BaseRequest) -> None:
    """Check, when the request begins, that its caller can still be answered.

    Raises:
        ConnectionResetError: the caller sends no more, and the body is unfinished or the request would wait.
    """
    connection = request.protocol
    if isinstance(connection, Connection) and connection.is_half_closed and not _is_answerable(request):
        raise ConnectionResetError("the caller closed its end of the connection")


def _is_answerable(request: web.BaseRequest) -> bool:
    """Whether a caller who sends no more gets an answer: the request is complete and would not wait."""
    return request.content.is_eof() and not waits_on_purpose(request)


def abort(request: web.BaseRequest) -> None:
    """Abort the caller's connection, if still open, so that it cannot mistake a part for the whole response."""
    if request.transport is not None:
        request.transport.abort()


def _gist_of(message: str) -> str:
    """The first part of aiohttp's parser error, without the input: some errors quote a part of the URL."""
    gist = " ".join(_INPUT.split(message, maxsplit=1)[0].split())
    return without_tokens(gist)[:REASON_LENGTH].rstrip(":")


def _without_expect(
    make: Callable[..., web.BaseRequest], message: RawRequestMessage, *given: object
) -> web.BaseRequest:
    """The request of this message, with its `Expect` where aiohttp does not look for it."""
    if hdrs.EXPECT not in message.headers:
        return make(message, *given)
    headers = CIMultiDict(message.headers)
    expected = headers.popall(hdrs.EXPECT)
    request = make(message._replace(headers=CIMultiDictProxy(headers)), *given)
    request[EXPECTED] = ", ".join(expected)
    return request


async def meet_expectation(request: web.BaseRequest) -> None:
    """Tell a caller that waits for it to send its body. Call it once the caller is admitted.

    Raises:
        ExpectationUnknown: it expects something else.
    """
    expected = request.get(EXPECTED)
    if not expected or request.version < HttpVersion11:  # RFC 9110, 10.1.1
        return
    if expected.lower() != CONTINUE:
        raise ExpectationUnknown(f"only `Expect: {CONTINUE}` is known")
    await request.writer.write(f"HTTP/1.1 {HTTPStatus.CONTINUE} Continue\r\n\r\n".encode())
    request.writer.output_size = 0  # Nothing of the response is sent yet, as `handle_error` needs to know.
