"""`/sessions`: opening, showing and closing sessions."""

from aiohttp import web

from quire.log import Kind, encode_system
from quire.replication import Write

from ...errors import Malformed, SessionsFull, SessionUnknown
from ...node.pending import FutureWaiter
from ..api import API
from ..bodies import answer, decode_document, read_body
from ..request import parameters_of, parse_integer
from .commands import write_within_deadline

NAME_CHARACTERS = 200
BODY_BYTES = 4096


async def post_sessions(request: web.Request) -> web.StreamResponse:
    """{"session", "sequence", "session_window", "max_request_bytes"} of a new session.

    `sequence` is the last one that was used under its name, or 0. The other two limit what it may send at once.
    """
    api = request.app[API]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    name = _name_of(request, body)
    forwarded = await api.leader.forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    waiter = FutureWaiter(applied=True)
    write = Write(encode_system({"type": "open_session", "name": name}), 1, kind=Kind.SYSTEM, owner=waiter)
    reply = await write_within_deadline(api, write)
    if reply.refused:
        raise SessionsFull(reply.refused[0][2])
    window = min(api.node.session_window, api.node.config.max_commands)
    limits = {"session_window": window, "max_request_bytes": api.node.config.max_request_bytes}
    return answer(request, {**reply.results[0], **limits})


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
    """{"session", "name", "sequence"} of an open session, linearizable."""
    api = request.app[API]
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session")
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    status = await api.node.session(session)
    if status is None:
        raise SessionUnknown(session)
    return answer(request, status._asdict())


async def delete_session(request: web.Request) -> web.StreamResponse:
    """{"session", "sequence"} of a session that this request closed."""
    api = request.app[API]
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session")
    forwarded = await api.leader.forward(request, None, writes=True)
    if forwarded is not None:
        return forwarded
    waiter = FutureWaiter(applied=True)
    write = Write(encode_system({"type": "close_session", "session": session}), 1, kind=Kind.SYSTEM, owner=waiter)
    reply = await write_within_deadline(api, write)
    if reply.refused:
        raise SessionUnknown(session)
    return answer(request, reply.results[0])
