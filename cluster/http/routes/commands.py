"""`POST /commands`: a batch of commands becomes one frame; the response holds their results.

`write_values` and `write_within_deadline` are the write path of every POST that appends.
"""

import asyncio
from dataclasses import replace
from typing import Any

from aiohttp import web

from quire.log import Kind, pack
from quire.log.json_text import to_json
from quire.replication import Write
from quire.sm import SESSION_CODES, Applier, ApplyFailed

from ...errors import CommandsRefused, LimitExceeded, OutcomeUnknown, SessionRefused, WrongIndex, session_refused
from ...node.components import Components
from ...node.tables.sessions import refuse_other_history
from ...node.writing import FutureWaiter, WriteReply
from ..admission.admission import work_of
from ..admission.authorization import caller_of
from ..admission.decoding import LARGE_BYTES
from ..admission.turns import BYTES_IN_TURN
from ..answer_size import first_results, results_within
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
from ..request import HISTORY, NO_SESSION, WriteId, parameters_of, timeout_ms_of, write_id_of

BODIES = (JSON, MSGPACK, NDJSON)


async def post_commands(request: web.Request) -> web.StreamResponse:
    """{"index", "epoch", "results"} of commands that are on a majority's disks and applied on this node.

    The result of a refused command is null, and `refused` lists its [position, code, text]. If the results are longer
    than `answer_bytes`, those from position `cut` on are left out; their commands have executed, too. If the session
    answered some with recorded replies, `repeated` is true and there is no `index`: they executed at an earlier one.
    """
    api = request.app[API]
    parameters_of(request)
    write_id = write_id_of(request)
    content_type = content_type_of(request, BODIES)
    limit = api.node.config.max_request_bytes
    body = await read_body(request, limit)
    forwarded = await api.leader.forward(request, body, writes=True, repeats=write_id != NO_SESSION)
    if forwarded is not None:
        return forwarded
    await api.decoding.turn(len(body))
    commands = decode_commands(content_type, body, api.node.config.max_commands)
    reply = await write_values(request, commands, limit, are_commands=True, write_id=write_id)
    reply, document = await _within_answer(request, reply)
    document |= {"repeated": True} if reply.repeated else {"index": reply.index}
    document |= {"epoch": reply.epoch, "results": reply.results}
    if reply.refused:
        document["refused"] = reply.refused
    return answer(request, document)


async def records_written(request: web.Request, reply: WriteReply) -> web.Response:
    """The answer to a `POST /records`: that of `post_commands`, with the count in place of the results."""
    document: dict[str, Any] = {}
    if reply.refused:
        reply, document = await _within_answer(request, reply._replace(results=[None] * reply.count))
    document |= {"repeated": True} if reply.repeated else {"write_index": reply.index}
    document["count"] = reply.count
    if reply.refused:
        document["refused"] = reply.refused
    return answer(request, document)


async def _within_answer(request: web.Request, reply: WriteReply) -> tuple[WriteReply, dict[str, Any]]:
    """The part of a reply that fits into one answer, and {"cut": position} if that is not all of it.

    A long one has to be encoded in the turn in which this returns.
    """
    if not reply.surely_fits(LARGE_BYTES):
        work = work_of(request)
        work.has_begun = True
        await work.turn(size=min(reply.size, BYTES_IN_TURN))
    encode = to_json if answer_type_of(request) == JSON else pack
    limit = request.app[API].node.config.answer_bytes
    if reply.surely_fits(limit):
        return reply, {}
    count = results_within(reply, limit, encode)
    return (first_results(reply, count), {"cut": count}) if count < len(reply.results) else (reply, {})


async def write_values(
    request: web.Request,
    values: list[Any],
    limit: int,
    *,
    are_commands: bool,
    expected_index: int | None = None,
    write_id: WriteId = NO_SESSION,
) -> WriteReply:
    """Write the values, at most `limit` bytes as msgpack, as one frame.

    On return they are on a majority's disks, and applied here if they are commands or under a session.

    Raises:
        CommandsRefused, LimitExceeded: nothing was written.
        ClusterError: as `write_within_deadline`.
    """
    components = request.app[API].node.components
    refused = await components.writing.check(values)
    check_s = components.writing.check_s
    if refused:
        raise CommandsRefused(refused)
    payload, count = pack_records(values, limit), len(values)
    del values  # They take many times as much memory as the payload, and the wait may be long.
    session, sequence = write_id
    waiter = FutureWaiter(applied=are_commands or session != 0)
    write = Write(payload, count, Kind.RECORDS, expected_index, session, sequence, are_commands, check_s, owner=waiter)
    if session and count > (window := components.sessions.window):
        raise LimitExceeded("the number of records under a session", count, window)
    return await write_within_deadline(request, write)


async def write_within_deadline(request: web.Request, write: Write[FutureWaiter]) -> WriteReply:
    """`Writing.write` with a deadline of `request_timeout_ms`. Under a session it returns once the write is applied.

    Raises:
        SessionRefused: the session refused every record, or belongs to another than the request's caller.
        Overloaded: more than the session's window would be in flight; nothing was written.
        OutcomeUnknown: `request_timeout_ms` passed first.
        ClusterError: as `Writing.write`.
    """
    api = request.app[API]
    components, timeout_ms = api.node.components, timeout_ms_of(request, api.node.config.request_timeout_ms)
    if not write.session:
        return await _write(components, write, timeout_ms)
    await require_history(api, request.headers.get(HISTORY))
    # If the node has no tokens, the record is appended and the session answers when it is applied.
    caller = caller_of(request).name
    if caller is not None and not await components.sessions.is_open_for(write.session, caller):
        raise _not_open(components.applying.applier, write)
    with api.sessions.slots(write.session, write.count, components.sessions.window):
        reply = await _write(components, write, timeout_ms)
    if len(reply.refused) == reply.count and all(code in SESSION_CODES for _, code, _ in reply.refused):
        _, code, text = reply.refused[0]
        raise session_refused(code, text, reply.refused)
    return reply


async def require_history(api: NodeApi, asked: str | None) -> None:
    """Return if the caller's history (hex) is this cluster's; None is not compared. For the leader.

    A leader that has not applied the log up to where it began to lead does so first: until then it may not know that
    the cluster was recovered.

    Raises:
        HistoryChanged: it is another.
        NotLeader, NoLeader, StateUnavailable: this node cannot tell.
    """
    if asked is None:
        return
    components, leading_from = api.node.components, api.node.leadership.leading_from
    if leading_from is None or components.applying.applied_index < leading_from:
        await components.sessions.caught_up()
    refuse_other_history(asked, components.history)


async def _write(components: Components, write: Write[FutureWaiter], timeout_ms: int) -> WriteReply:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                return await components.writing.write(write)
            except WrongIndex as error:
                if not write.session:
                    raise
                again = await _as_retry(components, write, error)
            return await components.writing.write(again)
    except TimeoutError:
        reason = f"no majority acknowledged the write within {timeout_ms} ms"
        if write.owner.applied and (backlog := components.writing.backlog):
            reason = f"the write was not applied within {timeout_ms} ms: {backlog}"
        raise OutcomeUnknown(reason) from None


async def _as_retry(components: Components, write: Write[FutureWaiter], wrong_index: WrongIndex) -> Write[FutureWaiter]:
    """The same write of a session without the expected index, if it has been written before.

    The log has grown since, so a retry cannot get the index of its original; its answer is the recorded reply. The
    condition may be dropped only if no record of the write can execute any more, if all its sequences are below the
    session's next one, which never decreases. To decide, this node first confirms that it still leads and applies its
    log up to the index at which it refused the write: all earlier copies are below that.

    Raises:
        WrongIndex: the session has not reached the end of the write.
        SessionRefused: the session is not open, so no copy of the write executes from here on.
        OutcomeUnknown: this node has stopped applying; an earlier copy may have been written.
        NotLeader, NoLeader, StateUnavailable: as `Reading.linearize`.
    """

    def judge(applier: Applier) -> Write[FutureWaiter]:
        status = applier.sessions.find(write.session)
        if status is None:
            raise _not_open(applier, write)
        if write.sequence + write.count - 1 > status.sequence:
            raise wrong_index
        return replace(write, expected_index=None, owner=FutureWaiter(applied=True))

    try:
        await components.reading.linearize()
        await components.applying.reached(wrong_index.highest)
        return await components.applying.at_boundary(judge, on_loop=True)
    except ApplyFailed as failure:
        raise OutcomeUnknown(str(failure)) from failure


def _not_open(applier: Applier, write: Write[FutureWaiter]) -> SessionRefused:
    """The error for a write under a session that is not open."""
    refusal = applier.sessions.refusal(write.session)
    refused = [[position, refusal.code, refusal.text] for position in range(write.count)]
    return session_refused(refusal.code, refusal.text, refused)
