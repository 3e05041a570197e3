"""The hop to the leader: requests, and streams of commands.

A request is forwarded once: if it arrives with `Quire-Forwarded` at a node that does not lead, the answer is 503. If no
connection could be made, nothing was written. A leader that has the request is lost to it if the connection breaks, if
the answer to another request comes (`NodeAnswer`), if it was not heard for an election timeout, or, once it was not
heard or its link broke, as soon as another one leads. A leader that hands over is not lost before: it will answer.

Then a stream is closed, and the outcome of a write is unknown. But a read is sent again, and so is a write under a
session, which executes it once: to whoever leads, until it is answered, its time is over, or a leader was lost LOSSES
times more. What is refused then may have been executed before: its outcome is unknown.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from typing import cast

import aiohttp
import structlog
from aiohttp import ClientWSTimeout, WSMsgType, hdrs, web
from yarl import URL

from quire.replication.core.actions import RoleChanged
from quire.replication.names import Connector
from quire.replication.net.sockets import DialledSocket, refuse_redirects

from ..config.origins import name_in
from ..errors import ClusterError, LeaderUnreachable, NoLeader, NotLeader, OutcomeUnknown, Overloaded
from ..node.components import NodeView
from ..outgoing import NodeAnswer, send_once, sendable
from ..request_id import REQUEST_ID, hop_id
from .admission.admission import ADMISSION
from .admission.authorization import caller_of
from .admission.slow_callers import CLOSE_TIMEOUT_S, PIECE_BYTES, close, done_or_stalled
from .admission.streams import OpenStream, StreamLimit
from .request import DEADLINE, FORWARDED, HISTORY, IN_DOUBT, REQUEST_ID_KEY, SEQUENCE, SESSION, TRACE, trace_of

CONNECT_TIMEOUT_S = 1.0
CONNECTION_LIMIT = 256  # To the leader, for requests; more of them wait for a connection, within their deadline.
KEEPALIVE_S = 15.0  # Shorter than the server keeps an idle connection open.
READ_BUFFER_BYTES = 1 << 18
SHORTEST_PING_S = 2.0  # The pong has a second: a process that is frozen for a moment loses no stream.
AGAIN_S, AGAIN_LIMIT_S = 0.02, 0.25  # Before a request is sent again to a leader that does not serve yet: doubled.
LOSSES = 3  # It may itself be why its connections break.
PING_TIMEOUTS = 2  # aiohttp waits half as long for the pong: a silent stream ends after three election timeouts.
MESSAGES = (WSMsgType.BINARY, WSMsgType.TEXT)
WS_TIMEOUT = ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S)  # pyright: ignore[reportCallIssue]  # it does not read attr.ib

_REQUEST_HEADERS = ("Content-Type", "Accept", SESSION, SEQUENCE, HISTORY)
_RESPONSE_HEADERS = frozenset({"Content-Type", "Retry-After", "WWW-Authenticate"})
_TOKEN_REFUSED = b'"urn:quire:problem:forbidden"'
_SERVES_NOT_YET = re.compile(rb'"urn:quire:problem:(not-leader|no-leader|leader-not-serving)"')

log = structlog.get_logger(__name__)

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(eq=False, slots=True)
class Call:
    """A request or a stream that goes to the leader of an epoch, and when that one was last heard."""

    leader: str
    epoch: int
    end: Callable[[], None]
    heard_at: float
    is_lost: bool = False
    is_deposed: bool = False
    """The leader was lost, and another leads."""


class _Lost(LeaderUnreachable):
    """The leader has the request, and its answer will not come."""


class LeaderHop:
    """A node's connections to the leader's HTTP interface. `run` it as a cleanup context of the application."""

    def __init__(self, node: NodeView, streams_limit: StreamLimit) -> None:
        """`streams_limit` counts the streams that this node carries, too."""
        self._node = node
        self._streams_limit = streams_limit
        self._connector: Connector
        self._requests: aiohttp.ClientSession
        self._streams: aiohttp.ClientSession
        self._calls: dict[Call, None] = {}  # In order: which call ends first must not depend on addresses in memory.
        node.leadership.on_change(self._role_changed)

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Keep the connections while the application runs."""
        names, dial_s = self._node.names, connect_timeout_s(self._node)
        self._connector = Connector(names, dial_s, limit=CONNECTION_LIMIT, keepalive_timeout=KEEPALIVE_S)
        requests = aiohttp.ClientSession(
            connector=self._connector,
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(send_once,),
            response_class=NodeAnswer,
        )
        # Each stream occupies a connection as long as it lives. The streams themselves have a limit.
        streams = aiohttp.ClientSession(
            connector=Connector(names, dial_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=dial_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            ws_response_class=DialledSocket,
            middlewares=(refuse_redirects,),
        )
        async with requests as self._requests, streams as self._streams:
            watching = asyncio.create_task(self._watch(), name="calls to the leader")
            yield
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        """End the calls to a leader that is no longer heard: its answers may never arrive."""
        loop, patience_s = asyncio.get_running_loop(), self._node.config.election_timeout_ms / 1000
        while True:
            await asyncio.sleep(patience_s / 2)
            heard, now = self._node.leadership.leader_id, loop.time()
            for call in self._calls:
                if call.leader == heard:
                    call.heard_at = now
                elif now - call.heard_at >= patience_s:
                    call.end()

    def _role_changed(self, role: RoleChanged) -> None:
        """End the calls to a leader that was lost, once another serves."""
        leads = role.leader_id if role.serving or role.leader_id != self._node.config.node else None
        for call in self._calls:
            if leads is None:
                call.is_lost |= role.epoch == call.epoch  # In a greater one, it may be handing over.
            elif leads == call.leader:
                call.epoch, call.is_lost = role.epoch, False
            elif call.is_lost:
                call.is_deposed = True
                call.end()

    async def forward(
        self, request: web.Request, body: bytes | None, *, writes: bool, repeats: bool | None = None
    ) -> web.Response | None:
        """The leader's response; None if this node leads and must answer itself.

        `repeats`: once its leader was lost, it may be sent to the next; by default, if it does not write.

        Raises:
            NotLeader: the request was forwarded already.
            NoLeader, LeaderUnreachable: it was not sent, or it is not a write; or it is IN_DOUBT.
            OutcomeUnknown: it was sent, and no response arrived.
        """
        time_is_over = asyncio.get_running_loop().time() + self._node.config.request_timeout_ms / 1000
        deadline = time_is_over + CONNECT_TIMEOUT_S
        try:
            return await self._ask(request, body, deadline, writes=writes)
        except _Lost as lost:
            if not (repeats if repeats is not None else not writes):
                raise (OutcomeUnknown(lost.reason) if writes else lost) from None
            failure = lost
        request[DEADLINE] = time_is_over
        if writes:
            request[IN_DOUBT] = True
        response = await self._ask_next(request, body, deadline, failure, writes=writes)
        if writes and response is not None and response.status != HTTPStatus.OK:
            raise OutcomeUnknown(f"the next leader answered {response.status}")
        return response

    async def _ask_next(
        self, request: web.Request, body: bytes | None, deadline: float, failure: ClusterError, *, writes: bool
    ) -> web.Response | None:
        """What `forward` returns, of whoever leads, once it serves. Raises the last failure."""
        pause_s, losses = AGAIN_S, 0
        while asyncio.get_running_loop().time() < deadline:
            try:
                response = await self._ask(request, body, deadline, writes=writes)
                if response is None or not _serves_not_yet(response):
                    return response
                failure = NoLeader()
            except (NoLeader, LeaderUnreachable) as error:
                failure = error
                losses += isinstance(error, _Lost)
                if losses == LOSSES:
                    break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_LIMIT_S)
        raise failure

    async def _ask(
        self, request: web.Request, body: bytes | None, deadline: float, *, writes: bool
    ) -> web.Response | None:
        """Ask the leader of now, until the deadline of the loop's clock. Raises _Lost, and as `forward`."""
        node = self._node
        if node.leadership.is_leader:
            return None
        leader, url, context, name = self._leader_at(request)
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers |= hop_headers(node, request, leader)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s(node))
        try:
            async with (
                self._call_to(leader, url, deadline),
                self._requests.request(
                    request.method,
                    url,
                    ssl=context,
                    server_hostname=name,
                    data=sendable(body),
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                ) as response,
            ):
                content = await _held_content(request, response, writes=writes)
                if (token := caller_of(request).name) is not None:
                    node.credentials.answered(leader, token, refuses=_refuses_token(response.status, content))
                kept = {name: value for name, value in response.headers.items() if _is_kept(name)}
                return web.Response(status=response.status, body=content, headers=kept)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = str(error) or type(error).__name__
            log.warning("the leader cannot be reached", leader=leader, why=reason)
            raise LeaderUnreachable(leader, reason) from None
        except (aiohttp.ClientError, OSError) as error:
            why = "no answer came" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            reason = f"the connection to the leader {leader} broke ({why})"
            log.warning("forwarding failed", leader=leader, why=reason)
            raise _Lost(leader, reason) from None

    @asynccontextmanager
    async def _call_to(self, leader: str, url: URL, deadline: float) -> AsyncGenerator[None]:
        """Raise TimeoutError at the deadline, or when the leader is given up; _Lost if another leads."""
        timeout = asyncio.timeout_at(deadline)

        def end() -> None:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

        with self._noted(leader, end) as call:
            try:
                async with timeout:
                    yield
            except (aiohttp.ClientError, OSError) as error:
                self._connector.drop_kept(url)
                if call.is_deposed and isinstance(error, TimeoutError):
                    raise _Lost(leader, "another node leads, and it did not answer before") from None
                raise

    @contextmanager
    def _noted(self, leader: str, end: Callable[[], None]) -> Generator[Call]:
        """A call that is ended when its leader is given up."""
        role = self._node.leadership.role
        call = Call(leader, role.epoch, end, asyncio.get_running_loop().time(), is_lost=role.leader_id != leader)
        self._calls[call] = None
        try:
            yield call
        finally:
            del self._calls[call]

    async def carry(self, request: web.Request, socket: web.WebSocketResponse, slot: OpenStream) -> web.StreamResponse:
        """Carry a stream between a client and the leader; when either end closes, so does the other.

        If the leader does not open it, its refusal is returned.

        Raises:
            NotLeader: the request was forwarded already.
            NoLeader, LeaderUnreachable: the stream was not opened.
        """
        leader, url, context, name = self._leader_at(request)
        credentials, may_open = self._node.credentials, slot.is_allowed
        distrusts = credentials.distrusts
        slot.is_allowed = lambda: may_open() and credentials.distrusts == distrusts  # The leader proves itself anew.
        deadline = asyncio.get_running_loop().time() + self._node.config.request_timeout_ms / 1000
        try:
            async with self._call_to(leader, url, deadline):
                # No size limit: a message of the leader's is as long as its machine's results are.
                connected = await self._streams.ws_connect(
                    url,
                    ssl=context,
                    server_hostname=name,
                    headers=hop_headers(self._node, request, leader),
                    max_msg_size=0,
                    heartbeat=ping_s(self._node),
                    timeout=WS_TIMEOUT,
                )
        except aiohttp.WSServerHandshakeError as error:
            # Such an answer is shown without its body. The same request as a plain GET is refused for the same reason.
            refusal = await self.forward(request, None, writes=False)
            if refusal is None or refusal.status == HTTPStatus.BAD_REQUEST:
                raise LeaderUnreachable(leader, f"it answered {error.status}") from None
            return refusal
        except (aiohttp.ClientError, OSError) as error:
            raise LeaderUnreachable(leader, str(error) or type(error).__name__) from error
        upstream = cast("DialledSocket", connected)
        try:
            async with upstream:
                with self._noted(leader, slot.ended.set) as call:
                    await socket.prepare(request)
                    ways: list[asyncio.Task[object]] = [
                        asyncio.create_task(_pump(socket, upstream, slot.sent)),
                        asyncio.create_task(_pump(upstream, socket, slot.answered)),
                        asyncio.create_task(slot.ended.wait()),
                    ]
                    in_order = await done_or_stalled(request, ways, lambda: self._streams_limit.is_over(slot))
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                await close(request, socket)
                if not in_order or call.is_lost:
                    await _drop(upstream)
        finally:
            upstream.break_cycle()
        return socket

    def _leader_at(self, request: web.Request) -> tuple[str, URL, SSLContext | bool, str | None]:
        """The leader's id, the request's URL there, and how to dial it. Raises NotLeader, NoLeader."""
        node = self._node
        if request.app[ADMISSION].is_forwarded(request):
            raise NotLeader(node.leadership.leader_id)
        leader = node.leadership.leader_id
        address = node.addresses.reached(leader) if leader is not None else None
        if leader is None or leader == node.config.node or address is None:
            raise node.leadership.no_leader()
        scheme, context, name = node.credentials.dialled_by(leader)
        return leader, URL(f"{scheme}://{address}{request.rel_url.raw_path_qs}", encoded=True), context, name


def _serves_not_yet(response: web.Response) -> bool:
    """Whether the response says that another node may lead, or this one soon."""
    return response.status == HTTPStatus.SERVICE_UNAVAILABLE and bool(
        _SERVES_NOT_YET.search(cast("bytes", response.body))
    )


def _refuses_token(status: int, content: bytes) -> bool:
    return status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and _TOKEN_REFUSED in content)


async def _held_content(request: web.Request, response: aiohttp.ClientResponse, *, writes: bool) -> bytes:
    """The leader's whole answer, which counts as held for the caller. Raises Overloaded, OutcomeUnknown."""
    admission, pieces, size = request.app[ADMISSION], [], 0
    responses, origin = admission.response_bodies, admission.origin_of(request)
    try:
        if (length := response.content_length or 0) > PIECE_BYTES:
            responses.reserve(request, origin, length)
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > max(length, PIECE_BYTES):
                responses.reserve(request, origin, size)
    except Overloaded:
        if writes:
            raise OutcomeUnknown("the request was executed, but there was no room for its long response") from None
        raise
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def connect_timeout_s(node: NodeView) -> float:
    """How long connecting to the leader may take: as long as a leader may be silent, within a request's deadline."""
    config = node.config
    return max(CONNECT_TIMEOUT_S, min(config.election_timeout_ms, config.request_timeout_ms) / 1000)


def ping_s(node: NodeView) -> float:
    """How long the leader may be silent on a stream before it is pinged."""
    return max(SHORTEST_PING_S, PING_TIMEOUTS * node.config.election_timeout_ms / 1000)


def hop_headers(node: NodeView, request: web.Request, member: str) -> dict[str, str]:
    """The headers that a node adds to a request that it forwards to a member: that it was forwarded, and its id.

    `Host` is the member's own address, even if a link is used. The caller's token goes only to a node that proves its
    name: the leader checks it against its own file.
    """
    address = node.addresses.of(member)
    if address is None or name_in(address) is None:
        address = node.config.members.get(member, "")
    headers = {FORWARDED: node.config.node, REQUEST_ID: hop_id(request[REQUEST_ID_KEY]), hdrs.HOST: address}
    if trace := trace_of(request):
        headers[TRACE] = trace
    token = request.headers.get(hdrs.AUTHORIZATION)
    return headers if token is None or node.credentials.tls is None else {**headers, hdrs.AUTHORIZATION: token}


def _is_kept(name: str) -> bool:
    return name in _RESPONSE_HEADERS or name.startswith("Quire-")


async def _pump(source: Socket, target: Socket, passed: Callable[[], None]) -> None:
    while (message := await source.receive()).type in MESSAGES:
        passed()
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)  # The leader answers with what is wrong with it.
        else:
            await target.send_bytes(message.data)


async def _drop(upstream: aiohttp.ClientWebSocketResponse) -> None:
    """Close at once: a closing handshake would read outstanding answers, and so make the leader send more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await upstream.close()
