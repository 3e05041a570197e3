"""`GET /state` and `POST /query`: the machine's answers, with the consistency that the caller requests."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from quire.log import PayloadInvalid

from ...errors import LimitExceeded, MachineFailed, Malformed, StateUnavailable
from ...node.reading import Consistency, Staleness, StateAnswer, late_read
from ..admission.admission import work_of
from ..admission.decoding import LARGE_BYTES
from ..admission.turns import BYTES_IN_TURN
from ..answer_size import size_up_to
from ..api import API
from ..bodies import JSON, MSGPACK, answer, content_type_of, decode_query, read_body, size_of
from ..request import integer_of, parameters_of, seconds_of, timeout_ms_of

UNAPPLIED = "Quire-Unapplied"


async def get_state(request: web.Request) -> web.StreamResponse:
    """{"state", "applied_index", "digest"}: the machine's whole state, and how much of the log it has applied.

    The header `Quire-Unapplied` is the number of records that this node knows to be committed but has not applied.

    `linearizable` (the default) and `leader` are answered by the leader, `local` by this node.
    """
    api = request.app[API]
    consistency, allowed = _consistency_of(request)
    if consistency is not Consistency.LOCAL:
        forwarded = await api.leader.forward(request, None, writes=False)
        if forwarded is not None:
            return forwarded

    def encoded(found: StateAnswer) -> web.Response:
        document = {"state": found.state, "applied_index": found.applied_index, "digest": found.digest.hex()}
        return _bounded(request, document, found.unapplied, "the state")

    work = work_of(request)
    return await _query(request, None, consistency, allowed, encoded, partial(work.turn, size=BYTES_IN_TURN))


async def post_query(request: web.Request) -> web.StreamResponse:
    """{"answer", "applied_index"}: the machine's answer to {"request": r}; the rest as in `get_state`."""
    api = request.app[API]
    consistency, allowed = _consistency_of(request)
    content_type = content_type_of(request, (JSON, MSGPACK))
    body = await read_body(request, api.node.config.max_request_bytes)
    if consistency is not Consistency.LOCAL:
        forwarded = await api.leader.forward(request, body, writes=False)
        if forwarded is not None:
            return forwarded

    work = work_of(request)

    def encoded(found: StateAnswer) -> web.Response:
        document = {"answer": found.state, "applied_index": found.applied_index}
        return _bounded(request, document, found.unapplied, "the answer")

    if len(body) > LARGE_BYTES:
        await work.turn(size=len(body))
    question, turn = decode_query(content_type, body), partial(work.turn, alone=True)
    response = await _query(request, question, consistency, allowed, encoded, turn)
    work.charge(size=size_of(response))
    return response


def _consistency_of(request: web.Request) -> tuple[Consistency, Staleness]:
    """The parameters consistency, max_lag and max_lag_s. Raises Malformed."""
    parameters = parameters_of(request, "consistency", "max_lag", "max_lag_s")
    named = parameters.get("consistency", Consistency.LINEARIZABLE)
    try:
        consistency = Consistency(named)
    except ValueError:
        raise Malformed(f"consistency must be one of {', '.join(Consistency)}, not {named[:24]!r}") from None
    allowed = Staleness(integer_of(parameters, "max_lag"), seconds_of(parameters, "max_lag_s"))
    if allowed != Staleness() and consistency is not Consistency.LOCAL:
        raise Malformed("max_lag and max_lag_s are for consistency=local only")
    return consistency, allowed


async def _query(
    request: web.Request,
    question: Any,
    consistency: Consistency,
    allowed: Staleness,
    encode: Callable[[StateAnswer], web.Response],
    turn: Callable[[], Awaitable[None]],
) -> web.Response:
    node = request.app[API].node
    components, timeout_ms = node.components, timeout_ms_of(request, node.config.request_timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await components.reading.query(question, consistency, allowed, encode, turn)
    except TimeoutError:
        raise StateUnavailable(late_read(consistency, timeout_ms, components.writing.backlog)) from None


def _bounded(request: web.Request, document: dict[str, Any], unapplied: int, what: str) -> web.Response:
    """The document as a response. Raises LimitExceeded, MachineFailed."""
    limit = request.app[API].node.config.state_limit_bytes
    if (size := size_up_to(document, limit)) > limit:
        raise LimitExceeded(what, size, limit)
    try:
        response = answer(request, document, {UNAPPLIED: str(unapplied)})
    except (PayloadInvalid, TypeError, RecursionError) as error:
        raise MachineFailed("query", f"its answer cannot be encoded ({error})") from error
    if (size := size_of(response)) > limit:
        raise LimitExceeded(what, size, limit)
    return response
