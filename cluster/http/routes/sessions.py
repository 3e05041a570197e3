"""Sessions: opening, looking at and closing them; and whose a write is, by its headers."""

from typing import NamedTuple

from aiohttp import web

from quire.log import Kind, encode_system
from quire.replication import Write

from ...errors import Malformed, SessionsFull, SessionUnknown
from ...node.pending import FutureWaiter
from ...values import DEPTH_LIMIT, decode_json, decode_msgpack
from ..decoding import JSON, MSGPACK, content_type_of, read_body
from ..encoding import answer
from ..forwarding import forward
from ..keys import NODE
from ..parameters import INDEX_HIGHEST, parameters_of, parse_integer
from .writing import write_within_deadline

SESSION = "Quire-Session"
SEQUENCE = "Quire-Sequence"
NAME_CHARACTERS = 200
BODY_BYTES = 4096


class Place(NamedTuple):
    """Whose a write is: a session and the sequence of its first record; (0, 0) without one."""

    session: int
    sequence: int


def place_of(request: web.Request) -> Place:
    """The place that the request's headers name. Raises Malformed."""
    session, sequence = request.headers.get(SESSION), request.headers.get(SEQUENCE)
    if session is None and sequence is None:
        return Place(0, 0)
    if session is None or sequence is None:
        raise Malformed(f"{SESSION} and {SEQUENCE} go together; send both or none")
    place = Place(parse_integer(session, SESSION), parse_integer(sequence, SEQUENCE))
    if 0 in place:
        raise Malformed(f"{SESSION} and {SEQUENCE} begin at 1")
    return place


async def post_sessions(request: web.Request) -> web.StreamResponse:
    """A new session, the last sequence that was used under its name (0: none), and what it may send at once."""
    node = request.app[NODE]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    name = _name_of(request, body)
    forwarded = await forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    waiter = FutureWaiter(applied=True)
    write = Write(encode_system({"type": "open_session", "name": name}), 1, kind=Kind.SYSTEM, owner=waiter)
    reply = await write_within_deadline(request.app, write)
    if reply.refused:
        raise SessionsFull(reply.refused[0][2])
    limits = {"session_window": node.session_window, "max_request_bytes": node.config.max_request_bytes}
    return answer(request, {**reply.results[0], **limits})


def _name_of(request: web.Request, body: bytes) -> str | None:
    if not body:
        return None
    content_type = content_type_of(request, (JSON, MSGPACK))
    document = (decode_json if content_type == JSON else decode_msgpack)(body, DEPTH_LIMIT)
    if not isinstance(document, dict) or not set(document) <= {"name"}:
        raise Malformed('the body must be {} or {"name": text}')
    name = document.get("name")
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS):
        raise Malformed(f"a session's name is text of 1 to {NAME_CHARACTERS} characters")
    return name


async def get_session(request: web.Request) -> web.StreamResponse:
    """{"session", "name", "sequence"}: where a session stands, linearizable."""
    node = request.app[NODE]
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session", INDEX_HIGHEST)
    forwarded = await forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    status = await node.session(session)
    if status is None:
        raise SessionUnknown(session)
    return answer(request, status._asdict())


async def delete_session(request: web.Request) -> web.StreamResponse:
    """{"session", "sequence"} of a session that is closed now."""
    parameters_of(request)
    session = parse_integer(request.match_info["session"], "the session", INDEX_HIGHEST)
    forwarded = await forward(request, None, writes=True)
    if forwarded is not None:
        return forwarded
    waiter = FutureWaiter(applied=True)
    write = Write(encode_system({"type": "close_session", "session": session}), 1, kind=Kind.SYSTEM, owner=waiter)
    reply = await write_within_deadline(request.app, write)
    if reply.refused:
        raise SessionUnknown(session)
    return answer(request, reply.results[0])
