"""`/sessions`: opening, showing and closing sessions.

A session belongs to the name of the token that opened it, once the log has the feature `session_owners`. It is closed
for a caller of that name, or for an admin.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aiohttp import web

from quire.log import SESSION_OWNERS, Kind, encode_system
from quire.replication import Write
from quire.sm import SESSION_OWNED, SessionStatus

from ...access.roles import Role
from ...errors import (
    ClusterError,
    LimitExceeded,
    Malformed,
    OutcomeUnknown,
    SessionOwned,
    SessionsFull,
    SessionUnknown,
)
from ...node.writing import FutureWaiter
from ..admission.admission import work_of
from ..admission.authorization import caller_of, note_call
from ..admission.turns import ROWS_IN_TURN
from ..api import API
from ..bodies import answer, answer_rows, decode_document, read_body
from ..request import integer_of, parameters_of, parse_integer
from .commands import write_within_deadline

NAME_CHARACTERS = 200
BODY_BYTES = 4096
PAGE_SESSIONS = 1_000  # In one page of the list, and closed by one request.
CLOSE_BODY_BYTES = 1 << 15
LOOKUPS_OF_ROW = 8  # To look up so many sessions costs as much as a row.


async def post_sessions(request: web.Request) -> web.StreamResponse:
    """{"session", "sequence", "session_window", "max_request_bytes", "history", "epoch"} of a new session.

    `sequence` is the last one that was used under its name, or 0. The next two limit what it may send at once.
    Commands that name `history` in `Quire-History` are refused by a cluster that was recovered since. `epoch` is
    that of the leader that opened it.
    """
    api = request.app[API]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    name = _name_of(request, body)
    forwarded = await api.leader.forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    components, config = api.node.components, api.node.config
    opening = await api.openings.admit(components, config.request_timeout_ms, name, _closer(request))
    record: dict[str, object] = {"type": "open_session", "name": name}
    if (owner := caller_of(request).name) is not None and SESSION_OWNERS in components.applying.features:
        record["owner"] = owner
    try:
        reply = await write_within_deadline(request, Write(encode_system(record), 1, kind=Kind.SYSTEM, owner=opening))
    except OutcomeUnknown:
        raise  # It may still be applied, and counts until then.
    except ClusterError:
        opening.end()
        raise
    if reply.refused:
        _, code, text = reply.refused[0]
        raise SessionOwned(text) if code == SESSION_OWNED else SessionsFull(text)
    window = min(components.sessions.window, config.max_commands)
    limits = {"session_window": window, "max_request_bytes": config.max_request_bytes}
    its = {"history": components.history, "epoch": reply.epoch}
    return answer(request, {**reply.results[0], **limits, **its})


def _name_of(request: web.Request, body: bytes) -> str | None:
    if not body:
        return None
    document = decode_document(request, body)
    if not isinstance(document, dict) or not set(document) <= {"name"}:
        raise Malformed('the body must be {} or {"name": text}')
    name = document.get("name")
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS):
        raise Malformed(f"a session's name is text of 1 to {NAME_CHARACTERS} characters")
    return name


async def get_session(request: web.Request) -> web.StreamResponse:
    """{"session", "name", "sequence", "owner"} of an open session, linearizable."""
    api = request.app[API]
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session")
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    status = await api.node.components.sessions.find(session)
    if status is None:
        raise SessionUnknown(session)
    return answer(request, status._asdict())


async def get_sessions(request: web.Request) -> web.StreamResponse:
    """{"sessions", "next"}: a page of the open sessions, by id, linearizable; as `get_session`, with `used_at`.

    The page has sessions with ids above `after` and names that start with `prefix`, at most `limit` of them. `next` is
    the `after` of the next page, null on the last one; a page may be empty. `used_at` is the log's timestamp of the
    session's last use, 0 if unknown.
    """
    api = request.app[API]
    parameters = parameters_of(request, "after", "limit", "prefix")
    after, limit = integer_of(parameters, "after"), integer_of(parameters, "limit", PAGE_SESSIONS)
    prefix = parameters.get("prefix", "")
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    work, most = work_of(request), PAGE_SESSIONS if limit is None else max(1, limit)
    turn = partial(work.turn, ROWS_IN_TURN)  # It looks at PAGE_VISITED sessions.
    page = api.node.components.sessions.page(-1 if after is None else after, most, prefix, turn)
    found, following = await page

    async def rows_of(
        sessions: Sequence[tuple[SessionStatus, int]], turn: Callable[[], Awaitable[None]]
    ) -> list[dict[str, object]]:
        await turn()
        return [{**status._asdict(), "used_at": used_at} for status, used_at in sessions]

    return await answer_rows(request, work, "sessions", found, rows_of, next=following)


async def post_close(request: web.Request) -> web.StreamResponse:
    """{"closed"}: the ids of those sessions that were open. One record closes them, or none if one is another's."""
    api = request.app[API]
    parameters_of(request)
    body = await read_body(request, CLOSE_BODY_BYTES)
    sessions = _ids_of(request, body)
    forwarded = await api.leader.forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    work = work_of(request)
    if (closer := _closer(request)) is not None:
        turn = partial(work.turn, len(sessions) // LOOKUPS_OF_ROW)
        sessions = await api.node.components.sessions.open_among(sessions, closer, turn)
    elif caller_of(request).name is not None:
        note_call(request, ", ".join(map(str, sessions)))
    waiter = FutureWaiter(applied=True)
    payload = encode_system({"type": "close_sessions", "sessions": sessions})
    reply = await write_within_deadline(request, Write(payload, 1, kind=Kind.SYSTEM, owner=waiter))
    return answer(request, reply.results[0])


def _ids_of(request: web.Request, body: bytes) -> list[int]:
    document = decode_document(request, body)
    sessions = document.get("sessions") if isinstance(document, dict) and list(document) == ["sessions"] else None
    if not isinstance(sessions, list) or not all(type(each) is int and 0 <= each < 1 << 64 for each in sessions):
        raise Malformed('the body must be {"sessions": [id, ...]} and nothing else')
    if len(sessions) > PAGE_SESSIONS:
        raise LimitExceeded("the number of sessions", len(sessions), PAGE_SESSIONS)
    return sessions


async def delete_session(request: web.Request) -> web.StreamResponse:
    """{"session", "sequence"} of a session that this request closed."""
    api = request.app[API]
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session")
    forwarded = await api.leader.forward(request, None, writes=True)
    if forwarded is not None:
        return forwarded
    if (closer := _closer(request)) is not None:
        if not await api.node.components.sessions.is_open_for(session, closer):
            raise SessionUnknown(session)
    elif caller_of(request).name is not None:
        note_call(request, str(session))
    waiter = FutureWaiter(applied=True)
    write = Write(encode_system({"type": "close_session", "session": session}), 1, kind=Kind.SYSTEM, owner=waiter)
    reply = await write_within_deadline(request, write)
    if reply.refused:
        raise SessionUnknown(session)
    return answer(request, reply.results[0])


def _closer(request: web.Request) -> str | None:
    """The owner whose sessions the caller may close, and whose share it opens; None if it may close and open all."""
    caller = caller_of(request)
    return caller.name if caller.role < Role.ADMIN else None
