"""HTTP requests to the cluster: finds the leader, follows it, and retries what is safe to retry.

A write is retried only if the failure proves that nothing was written: the connection could not be made, or a quire
node answered with a problem that says so (503, 429). A connection that broke later, a timeout, or an answer of a proxy
proves nothing, so the call fails with OutcomeUnknown. Reads are retried after every failure, and so are the changes
that an operator may repeat; but once an attempt of such a change got no answer, the call either succeeds or fails with
OutcomeUnknown.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
import orjson

from quire.log import Value

from ..outgoing import send_once, sendable
from .backoff import AttemptFailed, Backoff
from .errors import (
    BadRequest,
    CommandRefused,
    NotFound,
    OutcomeUnknown,
    Problem,
    ServerFault,
    SessionExpired,
    SessionFenced,
    Unavailable,
    refusals_of,
)
from .forks import Sockets, closed, opened

CONNECT_TIMEOUT_S = 1.0
READ_ATTEMPT_TIMEOUT_S = 5.0  # Another server can answer a read; a write waits for its own answer.
# No attempt starts in the last tenth of a call's time: it would only turn a write into an unknown one.
LAST_SHARE = 0.1
UNREACHABLE_FOR_S = 30.0  # How long to avoid a leader's address that cannot be reached, as from another network.
READ_BUFFER_BYTES = 1 << 18
STREAM_CONNECT_TIMEOUT_S = 3.0  # A follower first connects to the leader itself.
HEARTBEAT_S = 4.0  # Idle time before a ping. The stream is closed if the answer takes longer than half of this.
ANSWER_BYTES = 64 << 20
MSGPACK = "application/msgpack"
OWN_TYPE = "urn:quire:problem:"
CHECK_FAILED = OWN_TYPE + "check-failed"  # The only 500 that proves that nothing was written.
HOST_REFUSED = OWN_TYPE + "host-refused"
MACHINE_FAILED = OWN_TYPE + "machine-failed"


class Reply(NamedTuple):
    """A response with status 200."""

    body: bytes
    content_type: str
    headers: Mapping[str, str]


class NothingWritten(AttemptFailed):
    """An attempt failed and may be repeated: it provably had no effect, or the call is safe to repeat anyway."""


class Transport:
    """Pooled connections to the cluster's servers, for one event loop. Calls may run concurrently."""

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        self.servers = tuple(servers)
        self.timeout_s = timeout_s
        self._leader: str | None = None
        self._unreachable: dict[str, float] = {}
        self._sockets = Sockets()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0, socket_factory=self._sockets.create),
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(send_once,),
        )
        opened(self)

    async def close(self) -> None:
        """Close every connection."""
        try:
            await self._session.close()
        finally:
            closed(self)

    def forked(self) -> None:
        """In a child: close the copied sockets."""
        self._sockets.leave_to_parent()

    async def call(
        self,
        method: str,
        path: str,
        *,
        writes: bool = False,
        repeatable: bool = False,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> Reply:
        """The reply of the leader or of another server; of `server` only, if it is given.

        `writes`: the call changes something. `repeatable`: it does, but may be sent again after it was sent once.

        Raises:
            CommandRefused, BadRequest, NotFound, Unavailable, ServerFault: nothing was written.
            OutcomeUnknown: a write was sent and got no answer.
        """
        attempt = _Attempt(method, path, writes, repeatable, body, headers or {})
        try:
            return await self._call(attempt, server)
        except (CommandRefused, BadRequest, Unavailable, ServerFault) as error:
            if not attempt.in_doubt:
                raise
            raise OutcomeUnknown(f"an attempt got no answer; then {error}") from None

    async def _call(self, attempt: "_Attempt", server: str | None) -> Reply:
        deadline = time.monotonic() + self.timeout_s
        backoff = Backoff(f"{attempt.method} {attempt.path}")
        while True:
            try:
                if server is not None:
                    return await self._send(server, attempt, deadline)
                return await self._try_each(self._candidates(), attempt, deadline)
            except NothingWritten as error:
                failure = error
            await backoff.wait(failure, deadline)
            if (left := deadline - time.monotonic()) < self.timeout_s * LAST_SHARE:
                await asyncio.sleep(left)
                raise Unavailable(f"{failure}, for {self.timeout_s:g} s")

    async def call_once(self, method: str, path: str, body: bytes | None = None) -> Reply:
        """`call` in msgpack, for idempotent requests: asks each server once.

        Raises:
            NothingWritten: no server answered; the caller may retry.
        """
        headers = {"Accept": MSGPACK} if body is None else {"Accept": MSGPACK, "Content-Type": MSGPACK}
        attempt = _Attempt(method, path, False, True, body, headers)
        return await self._try_each(self._candidates(), attempt, time.monotonic() + self.timeout_s)

    async def connect(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to the leader, or to another server, which relays it to the leader.

        Raises:
            NothingWritten: no server opened one.
            SessionError: the session is gone.
        """
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
                failure = NothingWritten(f"{server} answered {error.status}")
                if error.headers is not None:
                    self._learn_leader(error.headers.get("Quire-Leader"))
                    _raise_if_gone(error.headers.get("Quire-Session-Code"))
            except aiohttp.InvalidURL:
                failure = NothingWritten(f"{server} is not HOST:PORT")
            except (aiohttp.ClientError, OSError) as error:
                self._forget(server)
                failure = NothingWritten(f"{server} cannot be reached ({_reason(error)})")
        raise failure

    def _candidates(self) -> list[str]:
        """The servers to try: the leader, if known and reachable, then those the caller named."""
        now = time.monotonic()
        leader = self._leader
        if leader is None or self._unreachable.get(leader, 0) > now:
            return list(self.servers)
        return [leader, *(server for server in self.servers if server != leader)]

    async def _try_each(self, servers: list[str], attempt: "_Attempt", deadline: float) -> Reply:
        failure: NothingWritten | BadRequest | None = None
        for server in servers:
            try:
                return await self._send(server, attempt, deadline)
            except NothingWritten as error:
                failure = error
            except NotFound as error:
                # A follower may not know yet what the leader has committed.
                failure = error
                leader = self._leader
                if leader in (None, server):
                    break
                if leader not in servers:
                    servers.append(leader)
            except BadRequest as error:
                # Names are accepted node by node: another one may have been started with this one already.
                if error.type != HOST_REFUSED:
                    raise
                failure = failure or error
        raise failure or NothingWritten("no server is named")

    async def _send(self, server: str, attempt: "_Attempt", deadline: float) -> Reply:
        left = max(0.001, deadline - time.monotonic())
        total = left if attempt.writes and not attempt.repeatable else min(left, READ_ATTEMPT_TIMEOUT_S)
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=min(total, CONNECT_TIMEOUT_S))
        url = f"http://{server}{attempt.path}"
        try:
            async with self._session.request(
                attempt.method,
                url,
                data=sendable(attempt.body),
                headers=attempt.headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                content = await answer.read()
        except aiohttp.InvalidURL:
            raise NothingWritten(f"{server} is not HOST:PORT") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._forget(server)
            raise NothingWritten(f"{server} cannot be reached ({_reason(error)})") from None
        except (aiohttp.ClientError, OSError) as error:
            self._forget(server)
            raise attempt.unanswered(f"the connection to {server} broke ({_reason(error)})") from None
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


@dataclass(slots=True)
class _Attempt:
    method: str
    path: str
    writes: bool
    repeatable: bool
    body: bytes | None
    headers: Mapping[str, str]
    in_doubt: bool = False  # It writes, and was sent and not answered.

    def unanswered(self, reason: str) -> NothingWritten | OutcomeUnknown:
        """The error for an attempt whose outcome is unknown."""
        self.in_doubt |= self.writes
        return OutcomeUnknown(reason) if self.writes and not self.repeatable else NothingWritten(reason)


def _raise_if_gone(code: str | None) -> None:
    """Raise the SessionError of a code that says why a session's stream was not opened."""
    match code:
        case "SESSION_EXPIRED":
            raise SessionExpired(code, "the session is not open: closed or expired")
        case "SESSION_FENCED":
            raise SessionFenced(code, "another session of its name took it over")
        case _:
            return


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return str(error) or type(error).__name__


def _failure_of(server: str, attempt: _Attempt, answer: aiohttp.ClientResponse, content: bytes) -> Exception:
    """The error for a response with a status other than 200."""
    problem = _parse_problem(answer.status, content)
    own = str(problem.get("type", "")).startswith(OWN_TYPE)
    detail = f"{server} answered {answer.status}: {problem.get('detail') or problem.get('title')!s}"
    if attempt.writes and not own:
        return attempt.unanswered(detail)
    match answer.status:
        case HTTPStatus.TOO_MANY_REQUESTS if own:
            patience = answer.headers.get("Retry-After", "")
            return NothingWritten(detail, float(patience) if patience.isdecimal() else None)
        case HTTPStatus.SERVICE_UNAVAILABLE if own:
            return NothingWritten(detail)
        case HTTPStatus.UNPROCESSABLE_ENTITY if refused := refusals_of(problem):
            return CommandRefused(refused)
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return NotFound(problem)
        case status if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadRequest(problem)
        case HTTPStatus.INTERNAL_SERVER_ERROR if problem.get("type") == CHECK_FAILED:
            return ServerFault(detail)
        case HTTPStatus.INTERNAL_SERVER_ERROR if not attempt.writes:
            return ServerFault(detail)
        case _:
            return attempt.unanswered(detail)


def _parse_problem(status: int, content: bytes) -> Problem:
    try:
        problem: Value = orjson.loads(content)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": content[:200].decode(errors="replace")}
    return {**problem, "status": status}
