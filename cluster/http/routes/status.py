"""`/status` and the two health calls."""

from aiohttp import web

from ..encoding import answer
from ..keys import NODE
from ..parameters import parameters_of
from ..problems import NotReady


async def get_status(request: web.Request) -> web.Response:
    """What this node knows of itself: role, epoch, indices, lag, digest."""
    parameters_of(request)
    return answer(request, request.app[NODE].status())


async def get_healthz(request: web.Request) -> web.Response:
    """200 as long as this process answers."""
    parameters_of(request)
    return answer(request, {"alive": True})


async def get_readyz(request: web.Request) -> web.Response:
    """200 if this node can serve; else a problem with the reasons."""
    parameters_of(request)
    reasons = request.app[NODE].not_ready_reasons()
    if reasons:
        raise NotReady(reasons)
    return answer(request, {"ready": True})
