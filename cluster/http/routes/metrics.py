"""`GET /metrics`, and the count of answers."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ..keys import METRICS
from ..parameters import parameters_of

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


async def get_metrics(request: web.Request) -> web.Response:
    """This node's metrics in Prometheus' text format."""
    parameters_of(request)
    body = request.app[METRICS].exposition()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def count_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Count an answer by method, route and status: names of a fixed number, whatever callers send."""
    resource = request.match_info.route.resource
    method = request.method if request.method in METHODS else "other"
    path = resource.canonical if resource is not None else "unknown"
    request.app[METRICS].answers[method, path, response.status] += 1
