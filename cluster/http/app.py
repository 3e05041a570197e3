"""The aiohttp application: routes, the middleware that turns errors into problems, the header that names the leader."""

import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from quire.replication.net.sockets import drop_frames

from ..access.roles import Role
from ..errors import ClusterError, LeaderUnreachable, Malformed, OutcomeUnknown, Overloaded
from ..node.components import NodeView
from ..node.turn_times import TurnTimes
from ..node.views.metrics import Gauge, Metrics
from ..request_id import REQUEST_ID
from .admission.admission import ADMISSION, Admission
from .admission.authorization import ADMITTED, Authorization, Route, refuse_token
from .admission.browsers import OWN_PAGES_ONLY, BrowserGuard, share_with_origin
from .admission.connections import ConnectionLimit, check_whole, meet_expectation
from .admission.streams import StreamLimit
from .api import API, NodeApi
from .forwarding import LeaderHop
from .handshakes import ContextsInForce
from .listener import Listener
from .members import MemberStatuses
from .problems import UnsupportedMedia, answer_of, problem, problem_of
from .request import (
    ANSWER_ID_KEY,
    FORWARDED,
    HISTORY,
    IN_DOUBT,
    REQUEST_ID_KEY,
    SEQUENCE,
    SESSION,
    identify,
    waits_on_purpose,
)
from .routes.admin import post_accept_code, post_expire, post_snapshot, post_transfer
from .routes.cluster import get_cluster
from .routes.commands import post_commands
from .routes.cursors import delete_cursor, get_cursor, get_cursors, put_cursor
from .routes.leader import get_leader
from .routes.members import delete_member, get_members, patch_member, post_members
from .routes.peers import PEER_ROUTES
from .routes.ranges import get_records
from .routes.records import get_index_bounds, get_record, post_records, post_truncate
from .routes.sessions import delete_session, get_session, get_sessions, post_close, post_sessions
from .routes.snapshots import get_chunk, get_genesis, get_snapshot
from .routes.state import get_state, post_query
from .routes.status import count_answer, get_front, get_healthz, get_metrics, get_readyz, get_status
from .routes.stream import commands_stream

log = structlog.get_logger(__name__)

HEADERS = frozenset(name.lower() for name in (FORWARDED, HISTORY, SESSION, SEQUENCE, REQUEST_ID))
SLOW_REQUEST_S = 1.0  # A request that takes longer is logged, unless it waits on purpose.

IDENTITY = "identity"
READ_HEADERS = (  # By aiohttp, the others, when a WebSocket is opened.
    *("Accept", "Content-Type", "Upgrade", "Connection"),
    *("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"),
)
READING_METHODS = frozenset({"GET", "HEAD"})
QUERY_PATH = "/query"  # A POST that writes nothing.
REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})  # They tell a stranger nothing else.
EXPECTED_ERRORS = (ClusterError, web.HTTPException, HttpProcessingError, web.RequestPayloadError)

ROUTES = (
    Route("POST", "/commands", post_commands, Role.WRITE),
    Route("GET", "/commands/stream", commands_stream, Role.WRITE),
    Route("POST", "/sessions", post_sessions, Role.WRITE),
    Route("GET", "/sessions", get_sessions, Role.READ),
    Route("POST", "/sessions/close", post_close, Role.WRITE),
    Route("GET", "/sessions/{session}", get_session, Role.READ),
    Route("DELETE", "/sessions/{session}", delete_session, Role.WRITE),
    Route("GET", "/cursors", get_cursors, Role.READ),
    Route("PUT", "/cursors/{name}", put_cursor, Role.WRITE),
    Route("GET", "/cursors/{name}", get_cursor, Role.READ),
    Route("DELETE", "/cursors/{name}", delete_cursor, Role.WRITE),
    Route("POST", "/records", post_records, Role.WRITE),
    Route("GET", "/records", get_records, Role.READ),
    Route("GET", "/records/{index}", get_record, Role.READ),
    Route("GET", "/index_bounds", get_index_bounds, Role.READ),
    Route("POST", "/rpc/truncate", post_truncate, Role.ADMIN),
    Route("GET", "/state", get_state, Role.READ),
    Route("POST", QUERY_PATH, post_query, Role.READ),
    Route("GET", "/status", get_status, Role.READ),
    Route("GET", "/cluster", get_cluster, Role.READ),
    Route("GET", "/leader", get_leader, Role.READ),
    Route("GET", "/members", get_members, Role.READ),
    Route("POST", "/members", post_members, Role.ADMIN),
    Route("PATCH", "/members/{node}", patch_member, Role.ADMIN),
    Route("DELETE", "/members/{node}", delete_member, Role.ADMIN),
    Route("POST", "/admin/transfer", post_transfer, Role.ADMIN),
    Route("POST", "/admin/snapshot", post_snapshot, Role.ADMIN),
    Route("POST", "/admin/expire", post_expire, Role.ADMIN),
    Route("POST", "/admin/accept-code", post_accept_code, Role.ADMIN),
    Route("GET", "/admin/genesis", get_genesis, Role.ADMIN),
    Route("GET", "/admin/snapshots/{index}", get_snapshot, Role.ADMIN),
    Route("GET", "/admin/snapshots/{index}/{chunk}", get_chunk, Role.ADMIN),
    Route("GET", "/", get_front, Role.OPEN),
    Route("GET", "/healthz", get_healthz, Role.OPEN),
    Route("GET", "/readyz", get_readyz, Role.OPEN),
    Route("GET", "/metrics", get_metrics, Role.READ),
)


def make_app(
    node: NodeView,
    connections: ConnectionLimit | None = None,
    turns: TurnTimes | None = None,
    dropped_lines: Callable[[], int] = lambda: 0,
) -> web.Application:
    """The application of `node`: the HTTP API, and the node's routes for its peers.

    It refuses requests on connections that `connections` accepted above its limit. `turns` are those of the loop, if
    they are measured; `dropped_lines` counts lines of the process's output that were dropped.
    """
    app = web.Application(middlewares=[errors_as_problems(HEADERS)])
    connections = ConnectionLimit() if connections is None else connections
    browsers = _browser_guard(node)
    authorization = Authorization(node.credentials, node.config.node)
    app[ADMISSION] = admission = Admission(connections, browsers, authorization, node.addresses)
    gauges = _gauges(admission, lambda: app[API])
    metrics = Metrics(node, gauges, TurnTimes() if turns is None else turns, dropped_lines)
    streams = StreamLimit()
    app[API] = api = NodeApi(node, LeaderHop(node, streams), MemberStatuses(node), metrics, streams)
    app.cleanup_ctx.append(api.leader.run)
    app.cleanup_ctx.append(api.members.run)
    app.on_response_prepare.append(_add_leader)
    set_headers_of_all(app, browsers)
    app.on_response_prepare.append(count_answer)
    node.credentials.on_distrust(connections.end_peers_before)
    app.cleanup_ctx.append(authorization.context(streams))
    authorization.add_routes(app, ROUTES)
    authorization.add_routes(app, PEER_ROUTES)
    return app


async def serve_app(
    runner: web.AppRunner,
    connections: ConnectionLimit,
    listening: socket.socket,
    tls: ContextsInForce = lambda: None,
) -> Listener:
    """Set the runner up and accept the connections of a bound socket, up to their limit; with TLS if `tls` gives it."""
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("a runner that is set up has a server")
    listener = Listener(runner.server, connections, listening, tls)
    listener.start()
    return listener


def _browser_guard(node: NodeView) -> BrowserGuard:
    config = node.config

    def named_elsewhere() -> Iterable[str]:
        members = () if node.formed is None else node.formed.replica.core.members.members
        yield from (member.address for member in members)
        if node.credentials.tls is not None:
            yield from node.credentials.tls.dns_names

    configured = (config.listen, *config.members.values(), *config.link.values())
    return BrowserGuard(configured, config.allow, named_elsewhere)


def _gauges(admission: Admission, api: Callable[[], NodeApi]) -> list[Gauge]:
    """The gauges of the application; the node does not know these values."""
    bodies, responses, connections = admission.request_bodies, admission.response_bodies, admission.connections
    return [
        Gauge("quire_http_waiting", "Requests waiting at the end of the log", lambda: len(api().long_polls)),
        Gauge("quire_http_body_bytes", "Bytes of the bodies of unanswered requests", lambda: bodies.held_bytes),
        Gauge(
            "quire_http_held_bytes",
            "Bytes of long responses that callers have not read",
            lambda: responses.held_bytes,
        ),
        Gauge("quire_http_connections", "Open connections, including those of peers", lambda: len(connections)),
        Gauge("quire_http_streams", "Open streams of commands", lambda: len(api().streams)),
    ]


def errors_as_problems(known_headers: frozenset[str], unknown_path: str = "Not Found") -> Middleware:
    """A middleware that turns errors of handlers into problems, and refuses unknown `Quire-` headers.

    `unknown_path` is what a caller of a path that is not there gets to know.
    """

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        admission = request.app[ADMISSION]
        try:
            return await _sent(request, await answered(request, handler), admission)
        finally:
            admission.response_bodies.release(request)

    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        admission, request_id, began = request.app[ADMISSION], identify(request), time.monotonic()
        authorization = admission.authorization
        try:
            refuse_token(request)
            check_whole(request)
            preflight = admission.browsers.admit(request, known_headers)
            if admission.connections.refuses(request):
                raise admission.connections.refusal()
            if preflight is None:
                authorization.admit(request)
                _refuse_headers(request, known_headers)
                await meet_expectation(request)
                response = await handler(request)
                authorization.check_again(request, response)
            else:
                response = preflight
        except EXPECTED_ERRORS as error:
            response = _problem_for(request, error, request_id, unknown_path)
        except ConnectionError:
            raise  # The caller is gone: there is nobody to answer.
        except Exception:
            log.exception("a fault while a request was handled", method=request.method, path=request.path)
            detail = "see the node's log; a write's outcome is unknown"
            response = problem(500, "internal", "A fault of this node", detail, {"request_id": request_id})
        finally:
            admission.request_bodies.release(request)
        authorization.answered(request, response)
        took_s = time.monotonic() - began
        if took_s > SLOW_REQUEST_S and ADMITTED in request and not waits_on_purpose(request):
            values = {"method": request.method, "path": request.path, "status": response.status}
            log.warning("slow request", **values, took_s=round(took_s, 3))
        if admission.connections.refuses(request):
            response.force_close()
        return response

    return answer_errors


async def _sent(request: web.Request, response: web.StreamResponse, admission: Admission) -> web.StreamResponse:
    """The response, sent here if it is long. If there is no room for it, a problem says what became of the write."""
    try:
        origin, work_of = admission.origin_of(request), partial(admission.work_of, request)
        return await admission.response_bodies.send(request, origin, work_of, response)
    except Overloaded as error:
        drop_frames(error)
        nothing_written = _reads(request) or 400 <= response.status < 500 or response.status == 503
        unknown = OutcomeUnknown("the request was executed, but there was no room for its long response")
        return problem_of(error if nothing_written else unknown, request[REQUEST_ID_KEY])


def _reads(request: web.Request) -> bool:
    return request.method in READING_METHODS or request.path == QUERY_PATH


def _problem_for(request: web.Request, error: Exception, request_id: str, unknown_path: str) -> web.Response:
    """The problem that answers one of EXPECTED_ERRORS. An HTTPException below 400 is a response, and raised again."""
    match error:
        case ClusterError():
            response = _of_cluster_error(request, error, request_id)
        case web.HTTPException():
            if error.status < 400:
                raise error
            response = _of_http_exception(request, error, request_id, unknown_path)
        case _:
            response = problem_of(Malformed(f"the body cannot be read: {error}"), request_id)
    drop_frames(error)
    if request.match_info.http_exception is error:  # No route matches. The one that aiohttp makes refers to itself.
        unmatched: Any = request.match_info.route
        unmatched._handler = None  # noqa: SLF001
    return response


def _of_cluster_error(request: web.Request, error: ClusterError, request_id: str) -> web.Response:
    if IN_DOUBT in request:
        then = error.reason if isinstance(error, OutcomeUnknown | LeaderUnreachable) else error
        error = OutcomeUnknown(f"a leader got it, and did not answer; then {then}")
    answer = answer_of(error)
    request.app[ADMISSION].authorization.refused(request, error, answer.name)
    formed = request.app[API].node.formed if API in request.app else None
    refusal = None if formed is None else formed.applying.applier.refusal
    is_known = refusal is not None and str(refusal) in str(error)  # The journal has it, once.
    if answer.status in (500, 504) and not is_known:  # A 503 wrote nothing and is temporary.
        log.warning("request failed", method=request.method, path=request.path, problem=answer.name, why=str(error))
    return problem_of(error, request_id)


def _refuse_headers(request: web.Request, known: frozenset[str]) -> None:
    # A later version may promise something by such a header, such as exactly-once: it must not be ignored.
    for name in request.headers:
        if name.lower().startswith("quire-") and name.lower() not in known:
            raise Malformed(f"header {name} is not known to this version")
    for name in READ_HEADERS:
        if not all(value.isascii() for value in request.headers.getall(name, ())):
            raise Malformed(f"header {name} has characters that are not ASCII")
    # Otherwise compressed bytes would stay in the log forever as the bytes of a value.
    if (coding := request.headers.get("Content-Encoding", IDENTITY)).strip().lower() != IDENTITY:
        raise UnsupportedMedia(f"content encoding {coding[:24]!r} is not supported; send the body uncompressed")


def _of_http_exception(
    request: web.Request, error: web.HTTPException, request_id: str, unknown_path: str
) -> web.Response:
    said = " ".join((error.text or "").split()).removeprefix(f"{error.status}: ") or error.reason
    if isinstance(error, web.HTTPNotFound):
        said = unknown_path
    detail = f"{request.method} {request.path}: {said}"
    response = problem(error.status, "http", error.reason or "HTTP error", detail, {"request_id": request_id})
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response


async def _add_leader(request: web.Request, response: web.StreamResponse) -> None:
    node = request.app[API].node
    leader = node.leadership.leader_id
    address = None if leader is None or response.status in REFUSALS else node.addresses.of(leader)
    if address is not None and request.app[ADMISSION].authorization.knows(request):
        response.headers["Quire-Leader"] = f"{leader}={address}"


def set_headers_of_all(app: web.Application, browsers: BrowserGuard) -> None:
    """Set the headers of every response: the request's id and which pages may read it; remove `Server`."""
    app.on_response_prepare.append(_set_headers)
    if browsers.allowed_origins:
        app.on_response_prepare.append(share_with_origin)


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall(hdrs.SERVER, None)
    if request.method in READING_METHODS:
        response.headers.update(OWN_PAGES_ONLY)
    if (answer_id := request.get(ANSWER_ID_KEY)) is not None:
        response.headers[REQUEST_ID] = answer_id
