"""`POST /commands`: a batch of commands becomes one frame; the response holds their results.

`write_values` and `write_within_deadline` are the write path of every POST that appends.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from quire.log import pack
from quire.log.json_text import to_json
from quire.replication import Write

from ...errors import CommandsRefused, LimitExceeded, OutcomeUnknown, SessionRefused
from ...node.pending import FutureWaiter, WriteReply
from ..api import API, NodeApi
from ..bodies import (
    JSON,
    MSGPACK,
    NDJSON,
    answer,
    answer_type_of,
    content_type_of,
    decode_commands,
    pack_records,
    read_body,
)
from ..cut import cut_to, places_within
from ..request import NO_SESSION, WriteId, parameters_of, write_id_of

if TYPE_CHECKING:
    from ...node.node import Node

BODIES = (JSON, MSGPACK, NDJSON)
SESSION_CODES = frozenset(("SESSION_FENCED", "SESSION_EXPIRED", "SEQUENCE_GAP", "REPLY_GONE", "SEQUENCE_REUSED"))


async def post_commands(request: web.Request) -> web.StreamResponse:
    """{"index", "epoch", "results"} of commands that are on a majority's disks and applied on this node.

    Where `apply` refused some, their results are null and `refused` lists [place, code, text]. If they are longer than
    `answer_bytes`, `cut` is the place from which on they are left out: those commands were executed, too.
    """
    api = request.app[API]
    parameters_of(request)
    write_id = write_id_of(request)
    content_type = content_type_of(request, BODIES)
    limit = api.node.config.max_request_bytes
    body = await read_body(request, limit)
    forwarded = await api.leader.forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    await api.decoding.turn(len(body))
    commands = decode_commands(content_type, body, api.node.config.max_commands)
    reply = await write_values(api, commands, limit, applied=True, write_id=write_id)
    document: dict[str, Any] = {}
    encode = to_json if answer_type_of(request) == JSON else pack
    places = places_within(reply, api.node.config.answer_bytes, encode)
    if places < len(reply.results):
        reply, document = cut_to(reply, places), {"cut": places}
    document |= {"index": reply.index, "epoch": reply.epoch, "results": reply.results}
    if reply.refused:
        document["refused"] = reply.refused
    return answer(request, document)


async def write_values(
    api: NodeApi,
    values: list[Any],
    limit: int,
    *,
    applied: bool,
    expected_index: int | None = None,
    write_id: WriteId = NO_SESSION,
) -> WriteReply:
    """Write the values, at most `limit` bytes as msgpack, as one frame.

    On return they are on a majority's disks, and applied here if `applied` or under a session.

    Raises:
        CommandsRefused, LimitExceeded, Overloaded: nothing was written.
        SessionRefused: the session answered none of them.
        OutcomeUnknown: `request_timeout_ms` passed first.
        ClusterError: as `Node.write`.
    """
    node = api.node
    refused = await node.check(values)
    if refused:
        raise CommandsRefused(refused)
    payload, count = pack_records(values, limit), len(values)
    del values  # They take many times as much memory as the payload, and this may wait for long.
    session, sequence = write_id
    waiter = FutureWaiter(applied=applied or session != 0)
    write = Write(payload, count, expected_index=expected_index, session=session, sequence=sequence, owner=waiter)
    if session and count > node.session_window:
        raise LimitExceeded("the number of records under a session", count, node.session_window)
    reply = await write_within_deadline(api, write)
    _refuse_by_session(reply)
    return reply


def _refuse_by_session(reply: WriteReply) -> None:
    """Raise SessionRefused for a write of which the session answered no record."""
    if reply.refused and len(reply.refused) == reply.count:
        _, code, text = reply.refused[0]
        if code in SESSION_CODES:
            raise SessionRefused(code, text, reply.refused)


async def write_within_deadline(api: NodeApi, write: Write[FutureWaiter]) -> WriteReply:
    """`Node.write`, with an unknown outcome after `request_timeout_ms`.

    Raises:
        Overloaded: more than the session's window would be in flight; nothing was written.
    """
    if not write.session:
        return await _write(api.node, write)
    with api.sessions.slots(write.session, write.count, api.node.session_window):
        return await _write(api.node, write)


async def _write(node: "Node", write: Write[FutureWaiter]) -> WriteReply:
    try:
        async with asyncio.timeout(node.config.request_timeout_ms / 1000):
            return await node.write(write)
    except TimeoutError:
        timeout_ms = node.config.request_timeout_ms
        reason = f"no majority acknowledged the write within {timeout_ms} ms"
        if write.owner.applied and (backlog := node.backlog):
            reason = f"the write was not applied within {timeout_ms} ms: {backlog}"
        raise OutcomeUnknown(reason) from None
