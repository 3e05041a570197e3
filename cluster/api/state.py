"""`/state`, `/status` and the two health calls."""

import asyncio

from aiohttp import web

from ..errors import LimitExceeded, Malformed, StateUnavailable
from .encoding import answer
from .forwarding import forward
from .keys import NODE
from .parameters import integer_of, parameters_of
from .problems import NotReady

CONSISTENCIES = ("linearizable", "leader", "local")


async def get_state(request: web.Request) -> web.StreamResponse:
    """{"state", "applied_index", "digest"}: the machine's whole state, and what it has applied to reach it.

    `linearizable` (the default) and `leader` are answered by the leader, `local` by this node.
    """
    node = request.app[NODE]
    parameters = parameters_of(request, "consistency", "max_lag")
    consistency = parameters.get("consistency", CONSISTENCIES[0])
    if consistency not in CONSISTENCIES:
        raise Malformed(f"consistency must be one of {', '.join(CONSISTENCIES)}, not {consistency[:24]!r}")
    max_lag = integer_of(parameters, "max_lag")
    if max_lag is not None and consistency != "local":
        raise Malformed("max_lag goes with consistency=local only")
    if consistency != "local":
        forwarded = await forward(request, None, writes=False)
        if forwarded is not None:
            return forwarded
    try:
        async with asyncio.timeout(node.config.request_timeout_ms / 1000):
            state = await node.state(consistency, max_lag)
    except TimeoutError:
        raise StateUnavailable(f"no {consistency} read was possible in {node.config.request_timeout_ms} ms") from None
    document = {"state": state.state, "applied_index": state.applied_index, "digest": state.digest.hex()}
    response = answer(request, document)
    if isinstance(response.body, bytes) and len(response.body) > node.config.state_limit_bytes:
        raise LimitExceeded("the state", len(response.body), node.config.state_limit_bytes)
    return response


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
