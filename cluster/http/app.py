"""The aiohttp application: routes, the middleware that turns errors into problems, the header that names the leader."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ..errors import ClusterError, Malformed, Overloaded
from ..node.metrics import Gauge, Metrics
from .admission.door import Door
from .admission.inflow import Inflow
from .admission.outflow import Outflow
from .admission.places import STREAMS_LIMIT, Places
from .admission.waiting import Waiting
from .admission.windows import Windows
from .forwarding import FORWARDED, carrying_session, forwarding_session
from .keys import DOOR, INFLOW, KNOWN_HEADERS, METRICS, NODE, OUTFLOW, STREAMS, WAITING, WINDOWS
from .problems import UnsupportedMedia, answer_of, problem, problem_of
from .request_ids import REQUEST_ID, REQUEST_ID_KEY, SeldomLog, name_request
from .routes.admin import get_members, post_expire, post_members, post_snapshot, post_transfer
from .routes.cluster import asking_session, get_cluster
from .routes.commands import post_commands
from .routes.metrics import count_answer, get_metrics
from .routes.ranges import get_records
from .routes.records import get_index_bounds, get_record, post_records, post_truncate
from .routes.sessions import SEQUENCE, SESSION, delete_session, get_session, post_sessions
from .routes.state import get_state, post_query
from .routes.status import get_healthz, get_readyz, get_status
from .routes.stream import commands_stream
from .tracebacks import let_go_of_frames

if TYPE_CHECKING:
    from ..node.node import Node

log = structlog.get_logger(__name__)
seldom = SeldomLog(log)

HEADERS = frozenset(name.lower() for name in (FORWARDED, SESSION, SEQUENCE, REQUEST_ID))
SLOW_REQUEST_S = 1.0  # A request above it is worth a log line, unless it is one of those that wait on purpose.

BACKLOG = 1024
IDENTITY = "identity"
READ_HEADERS = ("Accept", "Content-Type")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(node: "Node", door: Door | None = None) -> web.Application:
    """The application that answers for `node`: the HTTP API, and the node's routes for its peers.

    It refuses the calls of those whom `door` takes beyond its limit.
    """
    app = web.Application(middlewares=[answer_errors])
    app[NODE], app[KNOWN_HEADERS] = node, HEADERS
    app[INFLOW], app[OUTFLOW] = Inflow(), Outflow()
    app[WAITING], app[STREAMS] = Waiting(), Places(STREAMS_LIMIT)
    app[DOOR], app[WINDOWS] = Door() if door is None else door, Windows()
    app[METRICS] = Metrics(node, _gauges(app))
    app.cleanup_ctx.append(forwarding_session)
    app.cleanup_ctx.append(carrying_session)
    app.cleanup_ctx.append(asking_session)
    app.on_response_prepare.append(_name_leader_and_request)
    app.on_response_prepare.append(count_answer)
    app.add_routes(
        [
            web.post("/commands", post_commands),
            web.get("/commands/stream", commands_stream),
            web.post("/sessions", post_sessions),
            web.get("/sessions/{session}", get_session),
            web.delete("/sessions/{session}", delete_session),
            web.post("/records", post_records),
            web.get("/records", get_records),
            web.get("/records/{index}", get_record),
            web.get("/index_bounds", get_index_bounds),
            web.post("/rpc/truncate", post_truncate),
            web.get("/state", get_state),
            web.post("/query", post_query),
            web.get("/status", get_status),
            web.get("/cluster", get_cluster),
            web.post("/admin/transfer", post_transfer),
            web.get("/admin/members", get_members),
            web.post("/admin/members", post_members),
            web.post("/admin/snapshot", post_snapshot),
            web.post("/admin/expire", post_expire),
            web.get("/healthz", get_healthz),
            web.get("/readyz", get_readyz),
            web.get("/metrics", get_metrics),
        ]
    )
    app.add_routes(node.routes())
    return app


async def serve_app(runner: web.AppRunner, door: Door, listening: socket.socket) -> asyncio.Server:
    """Set the runner up, and take the connections of a bound socket through the door."""
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("a runner that is set up has a server")
    return await asyncio.get_running_loop().create_server(
        door.protocols(runner.server), sock=listening, backlog=BACKLOG
    )


def _gauges(app: web.Application) -> list[Gauge]:
    """What the application, and not the node, knows."""
    return [
        Gauge("quire_http_waiting", "Requests that wait at the end of the log", lambda: len(app[WAITING])),
        Gauge("quire_http_body_bytes", "Bodies of requests that are not answered", lambda: app[INFLOW].held_bytes),
        Gauge("quire_http_held_bytes", "Long answers that callers have not taken", lambda: app[OUTFLOW].held_bytes),
        Gauge("quire_http_connections", "Connections that are open, peers' included", lambda: len(app[DOOR])),
        Gauge("quire_http_streams", "Streams of commands that are open", lambda: len(app[STREAMS])),
    ]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler's answer, or a problem for whatever it raised."""
    request_id, began = name_request(request), time.monotonic()
    try:
        if request.app[DOOR].refuses(request):
            raise Overloaded()
        _refuse_headers(request)
        response = await handler(request)
    except ClusterError as error:
        response = _of_cluster_error(request, error, request_id)
        let_go_of_frames(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = _of_http_exception(request, error, request_id)
    except (HttpProcessingError, web.RequestPayloadError) as error:
        response = problem_of(Malformed(f"the body cannot be read: {error}"), request_id)
        let_go_of_frames(error)
    except ConnectionError:
        raise  # The caller went away; there is nobody to answer.
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        detail = "see the node's log; a write's outcome is unknown"
        response = problem(500, "internal", "A fault of this node", detail, {"request_id": request_id})
    finally:
        request.app[INFLOW].release(request)
    if (took_s := time.monotonic() - began) > SLOW_REQUEST_S and not _waits_on_purpose(request):
        values = {"method": request.method, "path": request.path, "status": response.status}
        seldom.warning("slow request", **values, took_s=round(took_s, 3))
    if request.app[DOOR].refuses(request):
        response.force_close()
    return response


def _waits_on_purpose(request: web.Request) -> bool:
    return "wait_ms" in request.query or "Upgrade" in request.headers


def _of_cluster_error(request: web.Request, error: ClusterError, request_id: str) -> web.Response:
    answer = answer_of(error)
    if answer.status in (500, 504):  # A 503 wrote nothing and goes away by itself; each would only repeat the last.
        seldom.warning("request failed", method=request.method, path=request.path, problem=answer.name, why=str(error))
    return problem_of(error, request_id)


def _refuse_headers(request: web.Request) -> None:
    # What a later version promises in such a header (exactly-once, say) must not be dropped silently.
    for name in request.headers:
        if name.lower().startswith("quire-") and name.lower() not in request.app[KNOWN_HEADERS]:
            raise Malformed(f"header {name} is not known to this version")
    for name in READ_HEADERS:
        if not request.headers.get(name, "").isascii():
            raise Malformed(f"header {name} holds other characters than those of ASCII")
    # Bytes that are called something else than what they are would stand in the log for ever.
    if (coding := request.headers.get("Content-Encoding", IDENTITY)).strip().lower() != IDENTITY:
        raise UnsupportedMedia(f"content encoding {coding[:24]!r} is not supported; send the body as it is")


def _of_http_exception(request: web.Request, error: web.HTTPException, request_id: str) -> web.Response:
    said = " ".join((error.text or "").split()).removeprefix(f"{error.status}: ") or error.reason
    detail = f"{request.method} {request.path}: {said}"
    response = problem(error.status, "http", error.reason or "HTTP error", detail, {"request_id": request_id})
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response


async def _name_leader_and_request(request: web.Request, response: web.StreamResponse) -> None:
    node = request.app[NODE]
    leader = node.leader_id
    if leader is not None and leader in node.config.members:
        response.headers["Quire-Leader"] = f"{leader}={node.config.members[leader]}"
    await name_the_request(request, response)


async def name_the_request(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's name into its answer."""
    if (request_id := request.get(REQUEST_ID_KEY)) is not None:
        response.headers[REQUEST_ID] = request_id
