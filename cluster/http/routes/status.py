"""`/`, `/status`, `/healthz`, `/readyz` and `/metrics`: what this node is, and how it is doing."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ...node.views.fitness import Sentence, fitness_alarms
from ...node.views.status import halted, node_status, not_ready_reasons
from ..admission.admission import ADMISSION, work_of
from ..admission.turns import ROWS_IN_TURN
from ..api import API
from ..bodies import answer
from ..front_page import FrontPage, front_page
from ..problems import NotReady
from ..request import parameters_of

STATUS_ROWS = 128
"""A status takes as long as so many rows."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
ABOUT = "A node of a replicated state machine: one durable log, and the same state on every node."
MAIN_CALLS = {
    "GET /status": "this node: its role, its indices, its lag, its alarms",
    "GET /cluster": "the status of every member",
    "GET /members": "the members, and how many voters may fail",
    "GET /readyz": "200 if this node can serve, otherwise the reasons",
    "GET /healthz": "200 as long as this process answers and its files are in place",
    "GET /metrics": "metrics in Prometheus' text format",
    "GET /state": "the machine's whole state",
    "POST /query": "the machine's answer to a request",
    "POST /commands": "executes a batch of commands; the reply has their results",
    "GET /records": "a range of the log's records",
    "GET /records/{index}": "one record",
}


async def get_front(request: web.Request) -> web.Response:
    """What this server is and which calls it takes: a page, or a document if the caller accepts that."""
    parameters_of(request)
    node = request.app[API].node
    is_open = node.credentials.tokens is None
    return front_page(request, FrontPage(f"quire node {node.config.node}", ABOUT, MAIN_CALLS, is_open))


async def get_status(request: web.Request) -> web.Response:
    """This node's status: role, epoch, indices, lag, digest; `docs/architecture.md` lists the fields."""
    parameters_of(request)
    await work_of(request).turn(STATUS_ROWS)
    return answer(request, node_status(request.app[API].node))


async def get_healthz(request: web.Request) -> web.Response:
    """200 as long as this process answers and its files are in place; otherwise a problem that says what to do.

    A caller without a token gets the reasons' names alone, here and from `/readyz`.
    """
    parameters_of(request)
    node = request.app[API].node
    if node.health.stranded:
        raise _not_ready(request, [halted(node)])
    return answer(request, {"alive": True})


async def get_readyz(request: web.Request) -> web.Response:
    """200 if this node can serve, with its alarms; otherwise a problem with the reasons."""
    parameters_of(request)
    node = request.app[API].node
    reasons, alarms = not_ready_reasons(node), fitness_alarms(node)
    if reasons:
        others = (alarm for alarm in alarms if not any(alarm in reason for reason in reasons))
        raise _not_ready(request, [*reasons, *others])
    return answer(request, {"ready": True, "alarms": _told(request, alarms)})


def _not_ready(request: web.Request, reasons: list[Sentence]) -> NotReady:
    return NotReady(_told(request, reasons))


def _told(request: web.Request, reasons: list[Sentence]) -> list[str]:
    """The sentences; for a stranger, who may not know paths, process ids and addresses, their names."""
    knows = request.app[ADMISSION].authorization.knows(request)
    return [str(reason) if knows else reason.name for reason in reasons]


async def get_metrics(request: web.Request) -> web.Response:
    """This node's metrics in Prometheus' text format."""
    parameters_of(request)
    await work_of(request).turn(ROWS_IN_TURN)
    body = request.app[API].metrics.exposition()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def count_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Count a response by method, route and status. Callers cannot make the number of label values grow."""
    resource = request.match_info.route.resource
    method = request.method if request.method in METHODS else "other"
    path = resource.canonical if resource is not None else "unknown"
    request.app[API].metrics.answers[method, path, response.status] += 1
