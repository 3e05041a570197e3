"""HTTP requests to the cluster: finds the leader, follows it, and retries what is safe to retry.

A write is retried only if the failure proves that nothing was written: the connection could not be made, or a quire
node answered with a problem that says so (503, 429). A connection that broke later, a timeout, or an answer of a proxy
proves nothing, so the call fails with OutcomeUnknown. Reads are retried after every failure, and so are the changes
that an operator may repeat; but once an attempt of such a change got no answer, the call either succeeds or fails with
OutcomeUnknown.

With a CA, a connection is used only after the server proved the cluster's name (OpenSSL checks it in the handshake),
and the token is sent over such connections only. A 401 proves that nothing was written: the request is sent again if
the token's file has changed, and then to the other servers, one of which may have read its own file already.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import aiohttp
import orjson
from yarl import URL

from quire.log import Value
from quire.replication.names import Connector, Names

from ..access.client_credentials import ClientCredentials, Shown
from ..outgoing import OwnAnswer, send_once, sendable
from ..request_id import REQUEST_ID, new_request_id
from .attempts import (
    INVALID,
    NO_LEADER,
    NOT_ASKED,
    Backoff,
    Cause,
    NothingWritten,
    NotVerified,
    cause_of,
    failed_at,
    latest,
    reason_of,
    together,
)
from .errors import (
    BadRequest,
    ClientError,
    CommandRefused,
    Forbidden,
    HistoryChanged,
    NotFound,
    OutcomeUnknown,
    Problem,
    ServerFault,
    SessionError,
    SessionExpired,
    SessionFenced,
    SessionOwned,
    Unauthorized,
    Unavailable,
    refusals_of,
)
from .forks import Sockets, closed, opened
from .leader.servers import Servers
from .leader.turns import HEARD_FOR_S, Turns

REFUSED_GRACE_S = 3.0  # A client that nobody served yet waits so long for nodes that are just being started.
CONNECT_TIMEOUT_S = 1.0
TLS_CONNECT_TIMEOUT_S = 3.0  # With the handshake, which a node that many dial at once begins after some others.
READ_ATTEMPT_TIMEOUT_S = 5.0  # Another server can answer a read; a write waits for its own answer. Doubled each time.
WAIT_SHARE, WAIT_S = 0.6, 60.0  # Of an attempt's time, and at most: then a server says that no record came.
# No attempt starts in the last tenth of a call's time: it would only turn a write into an unknown one.
LAST_SHARE = 0.1
READ_BUFFER_BYTES = 1 << 18
STREAM_CONNECT_TIMEOUT_S = 3.0  # A follower first connects to the leader itself.
HEARTBEAT_S = 4.0  # Idle time before a ping. The stream is closed if the answer takes longer than half of this.
ANSWER_BYTES = 64 << 20
PING = "/healthz"
OF_ONE_NODE = frozenset({"/status", "/readyz", PING, "/leader"})  # A node answers these without any other.
DENIED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
NOT_NOW = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
MSGPACK = "application/msgpack"
OWN_TYPE = "urn:quire:problem:"
CHECK_FAILED = OWN_TYPE + "check-failed"  # The only 500 that proves that nothing was written.
HOST_REFUSED = OWN_TYPE + "host-refused"
SNAPSHOT_FAILED = OWN_TYPE + "snapshot-failed"
MACHINE_FAILED = OWN_TYPE + "machine-failed"
FORBIDDEN = OWN_TYPE + "forbidden"
CURSOR_OWNED = OWN_TYPE + "cursor-owned"
SESSION_OWNED = OWN_TYPE + "session-owned"
HISTORY_CHANGED = OWN_TYPE + "history-changed"
HISTORY_TEXT = "the cluster was recovered; compare the state, then open another client"
TLS_REQUIRED = OWN_TYPE + "tls-required"
NO_LEADER_KNOWN = OWN_TYPE + "no-leader"

Result = TypeVar("Result")


class Reply(NamedTuple):
    """A response with status 200."""

    body: bytes
    content_type: str
    headers: Mapping[str, str]


class Transport:
    """Pooled connections to the cluster's servers, for one event loop. Calls may run concurrently."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        credentials: ClientCredentials | None = None,
        refused_grace_s: float = REFUSED_GRACE_S,
        names: Names | None = None,
    ) -> None:
        self.servers = Servers(servers, lambda server: self._connector.drop_kept(URL(f"http://{server}")))
        self.timeout_s = timeout_s
        self._refused_grace_s = refused_grace_s
        self._credentials = credentials or ClientCredentials()
        self._answered = False  # By any server: only its files, or the network, may be wrong later.
        self._served = False  # With anything but "not now", by more than one node: it worked, so it will again.
        self._sockets = Sockets()
        self._connector = Connector(names or Names(), STREAM_CONNECT_TIMEOUT_S, socket_factory=self._sockets.create)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(send_once,),
            response_class=OwnAnswer,
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
        awaits_start: bool = False,
        awaits_record: bool = False,
    ) -> Reply:
        """The reply of the leader or of another server; of `server` only, if it is given.

        `writes`: the call changes something. `repeatable`: it does, but may be sent again after it was sent once.
        `awaits_start`: nobody need be there yet; the call waits until its deadline.
        `awaits_record`: `wait_ms` is added to the path, with a query, as the time of each attempt allows.

        Raises:
            CommandRefused, BadRequest, NotFound, Unavailable, ServerFault: nothing was written.
            Unauthorized, Forbidden: nothing was written, either.
            OutcomeUnknown: a write was sent and got no answer.
        """
        attempt = _Attempt(method, path, writes, repeatable, body, headers or {}, writes, awaits_record=awaits_record)
        deadline = time.monotonic() + self.timeout_s
        try:
            async with self._turns(deadline) as turns:
                return await self._call(attempt, server, turns, deadline, awaits_start=awaits_start)
        except (CommandRefused, BadRequest, Unavailable, ServerFault) as error:
            if not attempt.in_doubt:
                raise
            raise OutcomeUnknown(f"an attempt got no answer; then {error}") from None

    async def _call(
        self, attempt: "_Attempt", server: str | None, turns: Turns, deadline: float, *, awaits_start: bool
    ) -> Reply:
        began_at = deadline - self.timeout_s
        backoff = Backoff(f"{attempt.method} {attempt.path}")
        failure: NothingWritten | None = None
        while True:
            try:
                if server is not None:
                    return await self._send(server, attempt, deadline)
                return await self._try_each(turns, attempt, deadline)
            except NothingWritten as error:
                failure = latest(failure, error)
            attempt.patience = attempt.next_patience
            if not awaits_start and (why := self.hopeless(failure, began_at)):
                raise Unavailable(why)
            await backoff.wait(failure, deadline if awaits_start else self.next_look(began_at, deadline))
            if (left := deadline - time.monotonic()) < self.timeout_s * LAST_SHARE:
                await asyncio.sleep(left)
                raise Unavailable(f"{failure}, for {self.timeout_s:g} s")

    def hopeless(self, failure: NothingWritten, began_at: float) -> str | None:
        """Why it makes no sense to try again what was begun then (`time.monotonic()`); None as long as it does.

        It does for a client that was served before: its cluster restarts, or elects another leader. A client that was
        never served waits `refused_grace_s` for nodes that are being started: from then on, if nobody is there at any
        server; from when they heard no leader, if those that answer say that their voters are no majority.
        """
        if self._served:
            return None
        if failure.none_there and time.monotonic() >= began_at + self._refused_grace_s:
            return f"no server answers: {failure}"
        return f"{failure}: {why}" if (why := failure.no_majority(self._refused_grace_s)) else None

    def next_look(self, began_at: float, deadline: float | None = None) -> float | None:
        """When to try again at the latest: at the deadline, or when the time ends that `hopeless` grants."""
        end = began_at + self._refused_grace_s
        if self._served or end <= time.monotonic():
            return deadline
        return end if deadline is None else min(end, deadline)

    async def call_once(self, method: str, path: str, body: bytes | None = None, *, once: bool = False) -> Reply:
        """`call` in msgpack, for idempotent requests: asks each server once; with `once`, one after the other.

        Raises:
            NothingWritten: no server answered; the caller may retry.
        """
        headers = {"Accept": MSGPACK} if body is None else {"Accept": MSGPACK, "Content-Type": MSGPACK}
        attempt = _Attempt(method, path, False, True, body, headers, once)
        deadline = time.monotonic() + self.timeout_s
        async with self._turns(deadline) as turns:
            return await self._try_each(turns, attempt, deadline)

    async def ask(self, server: str, path: str, wait_s: float) -> Reply:
        """The reply of one server to a read for which it may wait on purpose. Raises ClientError."""
        return await self._ask(server, path, time.monotonic() + wait_s + READ_ATTEMPT_TIMEOUT_S, wait_s)

    async def _ask(self, server: str, path: str, deadline: float, wait_s: float = 0.0) -> Reply:
        attempt = _Attempt("GET", path, False, True, None, {"Accept": MSGPACK}, once=False, wait_s=wait_s)
        return await self._send(server, attempt, deadline)

    async def is_silent(self, server: str) -> bool:
        """Whether another server answers a ping first, although it is sent later. It is avoided then."""
        began_at = time.monotonic()
        order = [server, *(other for other in self.servers.in_order() if other != server)]
        async with (
            self._turns(began_at + READ_ATTEMPT_TIMEOUT_S) as turns,
            aclosing(turns.each(order, _named, heard_for_s=0.0)) as outcomes,
        ):
            async for _, outcome in outcomes:
                with suppress(NothingWritten):
                    return await outcome != server and not self.servers.heard_since(server, began_at)
        return False

    def _turns(self, deadline: float) -> Turns:
        async def ping(server: str) -> None:
            sent_at = time.monotonic()
            try:
                await self._ask(server, PING, deadline)
            except NothingWritten:
                if not self.servers.heard_since(server, sent_at):
                    raise
            except ClientError:
                pass  # It is there. What is to be sent will say what is wrong.

        return Turns(self.servers, self._connector, ping)

    async def connect(self, path: str) -> tuple[str, aiohttp.ClientWebSocketResponse]:
        """A WebSocket to the leader, or to another server, which relays it to the leader; and that server.

        Raises:
            NothingWritten: no server opened one.
            SessionError: the session is gone, or another's.
            Unauthorized, Forbidden: no server opened one, and one refused the caller.
        """
        failures: list[NothingWritten] = []
        denied: Unauthorized | Forbidden | None = None

        def opening(server: str) -> Coroutine[object, object, aiohttp.ClientWebSocketResponse]:
            return self._showing(partial(self._open_stream, server, path))

        servers, deadline = self.servers.in_order(), time.monotonic() + STREAM_CONNECT_TIMEOUT_S
        async with self._turns(deadline) as turns, aclosing(turns.each(servers, opening, HEARD_FOR_S)) as outcomes:
            async for server, outcome in outcomes:
                try:
                    return server, await outcome
                except NothingWritten as error:
                    failures.append(error)
                except (Unauthorized, Forbidden) as error:
                    denied = error
            failures += turns.failures
        raise denied or together(failures)

    async def _open_stream(self, server: str, path: str, shown: Shown) -> aiohttp.ClientWebSocketResponse:
        try:
            async with asyncio.timeout(STREAM_CONNECT_TIMEOUT_S):
                return await self._session.ws_connect(
                    shown.url(server, path),
                    headers={**shown.headers, REQUEST_ID: new_request_id()},
                    ssl=shown.context or True,
                    server_hostname=shown.server_name,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=ANSWER_BYTES,
                )
        except aiohttp.WSServerHandshakeError as error:
            headers: Mapping[str, str] = error.headers or {}
            self.servers.learn_leader(headers.get("Quire-Leader"))
            _raise_if_gone(headers.get("Quire-Session-Code"))
            if error.status in DENIED:
                problem: Problem = {"status": error.status, "detail": "it does not open a stream of commands"}
                raise _denial_of(server, problem, shown) from None
            raise failed_at(server, Cause.of(f"answered {error.status}")) from None
        except aiohttp.InvalidURL:
            raise failed_at(server, INVALID) from None
        except (aiohttp.ClientError, OSError) as error:
            self.servers.lost(server, silent=isinstance(error, TimeoutError))
            raise _unreachable(server, error, shown, STREAM_CONNECT_TIMEOUT_S) from None

    async def _try_each(self, turns: Turns, attempt: "_Attempt", deadline: float) -> Reply:
        servers, failures = self.servers.in_order(), list[NothingWritten]()
        refusal: BadRequest | None = None  # Raised if no failure after it says that it is worth another attempt.
        denied: Unauthorized | None = None
        not_verified: list[NothingWritten] = []
        sending = partial(self._send, attempt=attempt, deadline=deadline)
        async with aclosing(turns.each(servers, sending, HEARD_FOR_S if attempt.once else None)) as outcomes:
            async for server, outcome in outcomes:
                try:
                    return await outcome
                except NotVerified as error:
                    not_verified.append(error)
                except NothingWritten as error:
                    failures.append(error)
                    refusal = None
                except Unauthorized as error:
                    denied = error
                except NotFound as error:
                    # A follower may not know yet what the leader has committed.
                    refusal, denied = error, None
                    leader = self.servers.leader
                    if leader in (None, server):
                        break
                    if leader not in servers:
                        servers.append(leader)
                except BadRequest as error:
                    # Names are accepted node by node: another one may have been started with this one already.
                    if error.type != HOST_REFUSED:
                        raise
                    refusal = refusal or (None if failures else error)
            failures += turns.failures
        if (final := denied or refusal) is not None:
            raise final
        if not_verified and not failures and not self._answered:
            raise Unavailable(str(together(not_verified)))  # Wrong from the start: it will not change by itself.
        raise together([*not_verified, *failures])

    async def _send(self, server: str, attempt: "_Attempt", deadline: float) -> Reply:
        if time.monotonic() >= deadline:
            raise failed_at(server, NOT_ASKED)
        return await self._showing(partial(self._send_once, server, attempt, deadline))

    async def _showing(self, send: Callable[[Shown], Awaitable[Result]]) -> Result:
        """The result of a request with the credentials of now; if they are refused and have changed, of another one."""
        shown = self._credentials.shown()
        try:
            try:
                return await send(shown)
            except (Unauthorized, NotVerified):
                if not self._credentials.renewed(shown):
                    raise
            return await send(self._credentials.shown())
        except Unauthorized as error:
            if self._credentials.settling:
                raise NothingWritten(f"{error}; the token is new, and this server may read it in a moment") from None
            raise

    async def _send_once(self, server: str, attempt: "_Attempt", deadline: float, shown: Shown) -> Reply:
        sent_at = time.monotonic()
        left = max(0.001, deadline - sent_at)
        total = left
        if not attempt.writes or attempt.repeatable:
            total = min(left, READ_ATTEMPT_TIMEOUT_S * attempt.patience + attempt.wait_s)
        wait_ms = 1000 * min(total * WAIT_SHARE, WAIT_S)
        path = f"{attempt.path}&wait_ms={wait_ms:.0f}" if attempt.awaits_record else attempt.path
        connect = CONNECT_TIMEOUT_S if shown.tls is None else TLS_CONNECT_TIMEOUT_S
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=min(total, connect))
        try:
            async with self._session.request(
                attempt.method,
                shown.url(server, path),
                data=sendable(attempt.body),
                headers={**attempt.headers, **shown.headers, REQUEST_ID: new_request_id()},
                ssl=shown.context or True,
                server_hostname=shown.server_name,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                content = await answer.read()
        except aiohttp.InvalidURL:
            raise failed_at(server, INVALID) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self.servers.lost(server, silent=isinstance(error, TimeoutError))
            raise _unreachable(server, error, shown, min(total, connect)) from None
        except TimeoutError:
            attempt.next_patience = 2 * attempt.patience
            self._lost(server, attempt, silent=not self.servers.heard_since(server, sent_at))
            raise attempt.unanswered(server, f"did not answer within {total:.3g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            self._lost(server, attempt)
            raise attempt.unanswered(server, f"broke the connection ({reason_of(error)})") from None
        if answer.status == HTTPStatus.OK and REQUEST_ID not in answer.headers:
            raise attempt.foreign(server, answer.content_type)
        self._answered = True
        self.servers.answered(server)
        if attempt.path.partition("?")[0] not in OF_ONE_NODE:
            if answer.status not in NOT_NOW:
                self._served, self.servers.served_at = True, time.monotonic()
            self.servers.learn_leader(answer.headers.get("Quire-Leader"))
        if answer.status == HTTPStatus.OK:
            return Reply(content, answer.content_type, answer.headers)
        raise _failure_of(server, attempt, answer, content, shown)

    def _lost(self, server: str, attempt: "_Attempt", *, silent: bool = False) -> None:
        """A request was sent and not answered. It may have opened a session; a write is in doubt anyway."""
        self.servers.lost(server, silent=silent)
        self._served |= attempt.method != "GET" and not attempt.writes


@dataclass(slots=True)
class _Attempt:
    method: str
    path: str
    writes: bool
    repeatable: bool
    body: bytes | None
    headers: Mapping[str, str]
    once: bool  # Of two copies both would take effect, or the later one would undo the first.
    awaits_record: bool = False
    wait_s: float = 0.0  # How long a server may wait on purpose.
    patience: int = 1  # In this round.
    next_patience: int = 1
    in_doubt: bool = False  # It writes, and was sent and not answered.

    def unanswered(self, server: str, what: str) -> NothingWritten | OutcomeUnknown:
        """The error for an attempt whose outcome is unknown: what the server did, as a predicate."""
        self.in_doubt |= self.writes
        failure = failed_at(server, Cause.of(what))
        return OutcomeUnknown(str(failure)) if self.writes and not self.repeatable else failure

    def foreign(self, server: str, content_type: str) -> ClientError:
        """The error for the answer of another program, which the next attempt would get, too."""
        said = f"{server} answered with {content_type}; it is not a quire node; check the address"
        return OutcomeUnknown(said) if self.writes else ClientError(said)


async def _named(server: str) -> str:
    return server


def _raise_if_gone(code: str | None) -> None:
    """Raise the SessionError of a code that says why a session's stream was not opened."""
    match code:
        case "SESSION_EXPIRED":
            raise SessionExpired(code, "the session is not open: closed or expired")
        case "SESSION_FENCED":
            raise SessionFenced(code, "another session of its name took it over")
        case "HISTORY_CHANGED":
            raise HistoryChanged(code, HISTORY_TEXT)
        case "SESSION_OWNED":
            raise SessionOwned(code, "the token of another name opened it")
        case _:
            return


def _refusal_of(server: str, problem: Problem, shown: Shown) -> BadRequest | SessionError | None:
    """The error of a response that refuses the caller, and not the request; None if it is another response."""
    kind = problem.get("type")
    if problem["status"] == HTTPStatus.UNAUTHORIZED or kind in (FORBIDDEN, CURSOR_OWNED):
        return _denial_of(server, problem, shown)
    if kind == SESSION_OWNED:
        return SessionOwned("SESSION_OWNED", str(problem.get("detail")).removeprefix("SESSION_OWNED: "))
    if kind == HISTORY_CHANGED:
        return HistoryChanged("HISTORY_CHANGED", str(problem.get("detail")).removeprefix("HISTORY_CHANGED: "))
    if kind == TLS_REQUIRED:
        return BadRequest({**problem, "detail": f"{server} speaks TLS; give its CA with --ca, QUIRE_CA or ca="})
    return None


def _denial_of(server: str, problem: Problem, shown: Shown) -> Unauthorized | Forbidden:
    """The error of a 401 or 403, with the server's name and, if no token was sent, what to do."""
    status, why = problem["status"], problem.get("detail") or problem.get("title")
    detail = f"{server} answered {status!s}: {why!s}"
    if status == HTTPStatus.FORBIDDEN:
        return Forbidden({**problem, "detail": detail})
    if not shown.has_token:
        detail += "; give a token with --token-file, QUIRE_TOKEN_FILE or token="
    return Unauthorized({**problem, "detail": detail})


def _unreachable(server: str, error: Exception, shown: Shown, connect_s: float) -> NothingWritten:
    """The error of a connection that was not made within `connect_s`."""
    cause = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLError) and (why := shown.refusal_of(server, cause)):
        return NotVerified(why)
    return failed_at(server, cause_of(error, connect_s))


def _failure_of(
    server: str, attempt: _Attempt, answer: aiohttp.ClientResponse, content: bytes, shown: Shown
) -> Exception:
    """The error for a response with a status other than 200."""
    problem = _parse_problem(answer.status, content)
    own = str(problem.get("type", "")).startswith(OWN_TYPE)
    said = f"answered {answer.status}: {problem.get('detail') or problem.get('title')!s}"
    if attempt.writes and not own:
        return attempt.unanswered(server, said)
    if refusal := _refusal_of(server, problem, shown):
        return refusal
    match answer.status:
        case HTTPStatus.TOO_MANY_REQUESTS if own:
            patience = answer.headers.get("Retry-After", "")
            return failed_at(server, Cause.of(said), float(patience) if patience.isdecimal() else None)
        case HTTPStatus.SERVICE_UNAVAILABLE if problem.get("type") == SNAPSHOT_FAILED:
            return ServerFault(f"{server} {said}")  # It was tried: the caller decides whether to try again.
        case HTTPStatus.SERVICE_UNAVAILABLE if own:
            return failed_at(server, _leaderless(problem) if problem.get("type") == NO_LEADER_KNOWN else Cause.of(said))
        case HTTPStatus.UNPROCESSABLE_ENTITY if refused := refusals_of(problem):
            return CommandRefused(refused)
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return NotFound(problem)
        case status if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadRequest(problem)
        case HTTPStatus.INTERNAL_SERVER_ERROR if problem.get("type") == CHECK_FAILED:
            return ServerFault(f"{server} {said}")
        case HTTPStatus.INTERNAL_SERVER_ERROR if not attempt.writes:
            return ServerFault(f"{server} {said}")
        case _:
            return attempt.unanswered(server, said)


def _leaderless(problem: Problem) -> Cause:
    """What a node without a leader says."""
    match problem:
        case {"no_majority": str(why), "leaderless_s": float(leaderless_s)}:
            return NO_LEADER._replace(no_majority=why, leaderless_s=leaderless_s)
        case _:
            return NO_LEADER


def _parse_problem(status: int, content: bytes) -> Problem:
    try:
        problem: Value = orjson.loads(content)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": content[:200].decode(errors="replace")}
    return {**problem, "status": status}
