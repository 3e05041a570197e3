"""Requests to whichever server can answer them: finds the leader, follows it, and sends again what is safe to.

A write is sent again only if the failure proves that nothing was written: the connection could not be made, or the
server's own problem says so (503, 429). A connection that broke later, a timeout, or a 5xx of somebody else proves
nothing and ends in OutcomeUnknown. Reads are tried again on every failure.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from io import BytesIO
from typing import Any, NamedTuple

import aiohttp
import orjson
import stamina
from aiohttp.payload import TOO_LARGE_BYTES_BODY

from quire.log.packing import ExtType, unpack_trusted

from .errors import BadRequest, ClientError, NotFound, OutcomeUnknown, Refused, ServerFault, Unavailable

CONNECT_TIMEOUT_S = 1.0
READ_ATTEMPT_TIMEOUT_S = 5.0  # A read may be asked of another server; a write waits for its own answer.
BACKOFF_FIRST_S = 0.02
BACKOFF_LONGEST_S = 1.0
LAST_SHARE = 0.1  # No attempt begins in the last tenth of a call's time: too short, it would only make a write unknown.
UNREACHABLE_FOR_S = 30.0  # A leader's address that this client cannot reach, as from outside of its network.
READ_BUFFER_BYTES = 1 << 18
STREAM_CONNECT_TIMEOUT_S = 3.0  # A follower connects to the leader first.
HEARTBEAT_S = 4.0  # A stream whose server is silent for one and a half of these is given up.
ANSWER_BYTES = 64 << 20
MSGPACK = "application/msgpack"
OWN_TYPE = "urn:quire:problem:"
MACHINE_FAILED = OWN_TYPE + "machine-failed"  # The one 500 that proves that nothing was written.


class Reply(NamedTuple):
    """A good answer."""

    body: bytes
    content_type: str
    headers: Mapping[str, str]


def document_of(reply: Reply) -> dict[str, Any]:
    """The map that an answer holds. Raises ClientError."""
    document = value_of(reply)
    if not isinstance(document, dict):
        raise ClientError(f"a server answered {reply.content_type} that is no map; is it a quire node?")
    return document


def value_of(reply: Reply) -> Any:
    """What an answer holds. Raises ClientError: it is of no kind that a quire node gives."""
    match reply.content_type:
        case "application/msgpack":
            return unpack_trusted(reply.body, ExtType)
        case "application/json":
            return orjson.loads(reply.body)
        case "application/octet-stream":
            return reply.body
        case _:
            raise ClientError(f"a server answered {reply.content_type}, which no quire node does; check the address")


class NothingWritten(Exception):
    """An attempt failed, provably without effect."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Transport:
    """Connections to the cluster's servers, kept open. For one event loop; calls may run at the same time."""

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        self.servers = tuple(servers)
        self.timeout_s = timeout_s
        self._leader: str | None = None
        self._unreachable: dict[str, float] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0),
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        writes: bool = False,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> Reply:
        """The answer of the leader, or of another server that will do; of `server` alone if one is named.

        Raises:
            Refused, BadRequest, NotFound, Unavailable: nothing was written.
            OutcomeUnknown: of a write.
            ServerFault: of a read.
        """
        deadline = time.monotonic() + self.timeout_s
        attempt = _Attempt(method, path, writes, body, headers or {})
        failure: NothingWritten | None = None
        try:
            async for retry in stamina.retry_context(
                on=_backoff,
                attempts=None,
                timeout=self.timeout_s,
                wait_initial=BACKOFF_FIRST_S,
                wait_max=BACKOFF_LONGEST_S,
                wait_jitter=BACKOFF_FIRST_S,
            ):
                with retry:
                    if failure is not None and deadline - time.monotonic() < self.timeout_s * LAST_SHARE:
                        raise failure
                    try:
                        if server is not None:
                            return await self._send(server, attempt, deadline)
                        return await self._try_each(self._candidates(), attempt, deadline)
                    except NothingWritten as error:
                        failure = error
                        raise
        except NothingWritten as error:
            raise Unavailable(f"{error}, for {self.timeout_s:g} s") from None
        raise Unavailable("no attempt was made")

    async def call_once(self, method: str, path: str, body: bytes | None = None) -> Reply:
        """`call` in msgpack, of what may be asked of one server after the other, and of each once.

        Raises NothingWritten where `call` would ask again.
        """
        headers = {"Accept": MSGPACK} if body is None else {"Accept": MSGPACK, "Content-Type": MSGPACK}
        attempt = _Attempt(method, path, False, body, headers)
        return await self._try_each(self._candidates(), attempt, time.monotonic() + self.timeout_s)

    async def connect(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to the leader, or to another server, which carries it there. Raises NothingWritten."""
        failure = NothingWritten("no server is named")
        for server in self._candidates():
            try:
                async with asyncio.timeout(STREAM_CONNECT_TIMEOUT_S):
                    return await self._session.ws_connect(
                        f"http://{server}{path}",
                        heartbeat=HEARTBEAT_S,
                        max_msg_size=ANSWER_BYTES,
                    )
            except aiohttp.WSServerHandshakeError as error:
                failure = NothingWritten(f"{server} says {error.status}")
                if error.headers is not None:
                    self._learn_leader(error.headers.get("Quire-Leader"))
            except aiohttp.InvalidURL:
                failure = NothingWritten(f"{server} is no HOST:PORT")
            except (aiohttp.ClientError, OSError) as error:
                self._forget(server)
                failure = NothingWritten(f"{server} cannot be reached ({_reason(error)})")
        raise failure

    def _candidates(self) -> list[str]:
        """The leader if it is known and can be reached, then the servers that were named."""
        now = time.monotonic()
        leader = self._leader
        if leader is None or self._unreachable.get(leader, 0) > now:
            return list(self.servers)
        return [leader, *(server for server in self.servers if server != leader)]

    async def _try_each(self, servers: list[str], attempt: "_Attempt", deadline: float) -> Reply:
        failure: NothingWritten | NotFound = NothingWritten("no server is named")
        for server in servers:
            try:
                return await self._send(server, attempt, deadline)
            except NothingWritten as error:
                failure = error
            except NotFound as error:
                # A follower may not have heard yet what the leader has committed.
                failure = error
                leader = self._leader
                if leader in (None, server):
                    break
                if leader not in servers:
                    servers.append(leader)
        raise failure

    async def _send(self, server: str, attempt: "_Attempt", deadline: float) -> Reply:
        left = max(0.001, deadline - time.monotonic())
        total = left if attempt.writes else min(left, READ_ATTEMPT_TIMEOUT_S)
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=min(total, CONNECT_TIMEOUT_S))
        url = f"http://{server}{attempt.path}"
        try:
            async with self._session.request(
                attempt.method,
                url,
                data=attempt.sendable(),
                headers=attempt.headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                content = await answer.read()
        except aiohttp.InvalidURL:
            raise NothingWritten(f"{server} is no HOST:PORT") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._forget(server)
            raise NothingWritten(f"{server} cannot be reached ({_reason(error)})") from None
        except (aiohttp.ClientError, OSError) as error:
            self._forget(server)
            reason = f"the connection to {server} broke ({_reason(error)})"
            if attempt.writes:
                raise OutcomeUnknown(reason) from None
            raise NothingWritten(reason) from None
        self._learn_leader(answer.headers.get("Quire-Leader"))
        if answer.status == HTTPStatus.OK:
            return Reply(content, answer.content_type, answer.headers)
        raise _failure_of(server, attempt, answer, content)

    def _learn_leader(self, header: str | None) -> None:
        self._leader = header.partition("=")[2] or None if header else None

    def _forget(self, server: str) -> None:
        if server == self._leader:
            self._leader = None
        if server not in self.servers:
            self._unreachable[server] = time.monotonic() + UNREACHABLE_FOR_S


class _Attempt(NamedTuple):
    method: str
    path: str
    writes: bool
    body: bytes | None
    headers: Mapping[str, str]

    def sendable(self) -> bytes | BytesIO | None:
        """The body as aiohttp takes it without a warning: it wants large ones as files."""
        return self.body if self.body is None or len(self.body) <= TOO_LARGE_BYTES_BODY else BytesIO(self.body)


def _backoff(error: Exception) -> bool | float:
    if not isinstance(error, NothingWritten):
        return False
    return error.retry_after_s or True


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return str(error) or type(error).__name__


def _failure_of(server: str, attempt: _Attempt, answer: aiohttp.ClientResponse, content: bytes) -> Exception:
    """What an answer other than 200 means."""
    problem = _parse_problem(answer.status, content)
    own = str(problem.get("type", "")).startswith(OWN_TYPE)
    detail = f"{server} says {answer.status}: {problem.get('detail') or problem.get('title')}"
    match answer.status:
        case HTTPStatus.TOO_MANY_REQUESTS if own:
            patience = answer.headers.get("Retry-After", "")
            return NothingWritten(detail, float(patience) if patience.isdecimal() else None)
        case HTTPStatus.SERVICE_UNAVAILABLE if own:
            return NothingWritten(detail)
        case HTTPStatus.UNPROCESSABLE_ENTITY if problem.get("refused"):
            return Refused(problem["refused"])
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return NotFound(problem)
        case status if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadRequest(problem)
        case HTTPStatus.INTERNAL_SERVER_ERROR if problem.get("type") == MACHINE_FAILED:
            return ServerFault(detail)
        case _:
            return _server_failure(attempt, answer.status, detail)


def _server_failure(attempt: _Attempt, status: int, detail: str) -> Exception:
    if attempt.writes:
        return OutcomeUnknown(detail)
    return ServerFault(detail) if status == HTTPStatus.INTERNAL_SERVER_ERROR else NothingWritten(detail)


def _parse_problem(status: int, content: bytes) -> dict[str, Any]:
    try:
        problem = orjson.loads(content)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": content[:200].decode(errors="replace")}
    return {**problem, "status": status}
