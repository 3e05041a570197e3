"""One hop to the leader, for what only the leader may answer.

A request is forwarded once: what arrives with `Quire-Forwarded` and finds no leader here is answered 503. A
connection that could not be made proves that nothing was written; one that breaks after the request went out proves
nothing, so a write's outcome is then unknown.
"""

from collections.abc import AsyncIterator
from io import BytesIO
from typing import TYPE_CHECKING

import aiohttp
import structlog
from aiohttp import web
from aiohttp.payload import TOO_LARGE_BYTES_BODY
from yarl import URL

from ..errors import LeaderUnreachable, NoLeader, NotLeader, OutcomeUnknown
from .keys import CARRYING, FORWARDING, NODE
from .request_ids import REQUEST_ID, REQUEST_ID_KEY, SeldomLog

if TYPE_CHECKING:
    from ..node.node import Node

FORWARDED = "Quire-Forwarded"
CONNECT_TIMEOUT_S = 1.0
CONNECTION_LIMIT = 256  # Towards the leader; what comes on top of them waits, within its deadline.
KEPT_ALIVE_S = 15.0  # Shorter than the server keeps its side open.
READ_BUFFER_BYTES = 1 << 18

_REQUEST_HEADERS = ("Content-Type", "Accept", "Quire-Session", "Quire-Sequence")
_OWN_HEADERS = frozenset({"Content-Type", "Retry-After"})

seldom = SeldomLog(structlog.get_logger(__name__))


class HopBroken(aiohttp.ClientError):
    """The connection to the leader broke after the request, or a part of it, was sent."""


async def _only_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request, and never a second time.

    aiohttp sends a DELETE or PUT again whose connection broke. The first may have been done, and the second would then
    be answered, falsely, that there was nothing to do.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise HopBroken(str(error) or type(error).__name__) from error


def connect_timeout_s(node: "Node") -> float:
    """How long a connection to the leader may take: as long as a leader may be silent, within a request's deadline."""
    config = node.config
    return max(CONNECT_TIMEOUT_S, min(config.election_timeout_ms, config.request_timeout_ms) / 1000)


async def forwarding_session(app: web.Application) -> AsyncIterator[None]:
    """The application's connections to the leader."""
    connector = aiohttp.TCPConnector(limit=CONNECTION_LIMIT, keepalive_timeout=KEPT_ALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_only_once,),
    ) as session:
        app[FORWARDING] = session
        yield


async def carrying_session(app: web.Application) -> AsyncIterator[None]:
    """Connections for the streams that are carried to the leader: of their own, since each holds one as long as it
    lives. Their number is that of the streams, which has a limit.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s(app[NODE]))
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        app[CARRYING] = session
        yield


def leader_url(node: "Node", path: str) -> tuple[str, URL]:
    """The leader's id, and where it answers a path and query. Raises NoLeader."""
    leader = node.leader_id
    address = node.config.address_of(leader) if leader is not None else None
    if leader is None or leader == node.node_id or address is None:
        raise NoLeader
    return leader, URL(f"http://{address}{path}", encoded=True)


async def forward(request: web.Request, body: bytes | None, *, writes: bool) -> web.Response | None:
    """The leader's answer; None where this node leads and answers itself.

    Raises:
        NotLeader: the request was forwarded already.
        NoLeader, LeaderUnreachable: it was not sent.
        OutcomeUnknown: it was sent, and the answer did not come.
    """
    node = request.app[NODE]
    if node.is_leader:
        return None
    if FORWARDED in request.headers:
        raise NotLeader(node.leader_id)
    leader, url = leader_url(node, request.rel_url.raw_path_qs)
    headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
    headers |= hop_headers(request)
    timeout = aiohttp.ClientTimeout(
        total=node.config.request_timeout_ms / 1000 + CONNECT_TIMEOUT_S, sock_connect=connect_timeout_s(node)
    )
    try:
        async with request.app[FORWARDING].request(
            request.method, url, data=sendable(body), headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if _is_kept(name)}
            return web.Response(status=answer.status, body=content, headers=kept)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        seldom.warning("the leader cannot be reached", leader=leader, why=str(error) or type(error).__name__)
        raise LeaderUnreachable(leader, str(error) or type(error).__name__) from None
    except (aiohttp.ClientError, OSError) as error:
        reason = f"the link to the leader {leader} broke ({str(error) or type(error).__name__})"
        seldom.warning("forwarding failed", leader=leader, why=reason)
        if writes:
            raise OutcomeUnknown(reason) from None
        raise LeaderUnreachable(leader, reason) from None


def hop_headers(request: web.Request) -> dict[str, str]:
    """What a node says of a request that it passes on: that it does, and the request's name."""
    return {FORWARDED: request.app[NODE].node_id, REQUEST_ID: request[REQUEST_ID_KEY]}


def sendable(body: bytes | None) -> bytes | BytesIO | None:
    """The body as aiohttp takes it without a warning: it wants large ones as files."""
    return body if body is None or len(body) <= TOO_LARGE_BYTES_BODY else BytesIO(body)


def _is_kept(name: str) -> bool:
    return name in _OWN_HEADERS or name.startswith("Quire-")
