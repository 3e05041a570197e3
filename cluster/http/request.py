"""What every request has besides its body: its id, its query parameters, its session and sequence.

The request id is in the response's `Quire-Request-Id`, in a problem's `request_id`, and in each log line about the
request, on this node and on the leader that it was forwarded to. A caller may send its own. An id that is unsafe in a
log line, or holds a token, is replaced, not refused. A node that forwards a request adds a number to the id (`hop_id`):
the leader returns both, so that each answer is matched to its request, and logs the caller's id.

Query parameters are read strictly: unknown and repeated ones and malformed numbers are refused.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple

from aiohttp import web
from structlog.contextvars import bind_contextvars

from quire.replication.net.hello import PEER_PATHS

from ..access.tokens import has_token
from ..errors import Malformed
from ..request_id import REQUEST_ID, new_request_id

REQUEST_ID_CHARACTERS = 64
REQUEST_ID_KEY = web.RequestKey("request_id", str)
ANSWER_ID_KEY = web.RequestKey("answer_id", str)  # The id in the response.
IN_DOUBT = web.RequestKey("in_doubt", bool)  # It is a write that was sent to another leader, without an answer.
DEADLINE = web.RequestKey("deadline", float)  # By the loop's clock, of what was sent to another leader.

FORWARDED = "Quire-Forwarded"  # The node that passed the request on.
SESSION = "Quire-Session"
SEQUENCE = "Quire-Sequence"
HISTORY = "Quire-History"  # In hex: that of a session, of a reader's position, or of an answer.
INDEX_HIGHEST = 2**64 - 1

TRACE = "traceparent"
"""Of W3C Trace Context. It is logged as the request id is, and passed on to the leader."""
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAFE_ID = re.compile(rf"([A-Za-z0-9._:-]{{1,{REQUEST_ID_CHARACTERS}}})")
_HOP_ID = re.compile(rf"{_SAFE_ID.pattern}:[0-9a-f]{{1,16}}")


def identify(request: web.BaseRequest) -> str:
    """Give the request its id, bind it to the log lines of the current task, and return it.

    It is not bound for a peer's request: its WebSocket lives as long as the node, so later messages on it have nothing
    to do with that request.
    """
    given = request.headers.get(REQUEST_ID)
    match = None if given is None else _id_in(given, is_forwarded=FORWARDED in request.headers)
    if given is None or match is None:
        request_id = answer_id = new_request_id()
    else:
        request_id, answer_id = match[1], given
    request[REQUEST_ID_KEY], request[ANSWER_ID_KEY] = request_id, answer_id
    if request.path not in PEER_PATHS:
        bind_contextvars(request_id=request_id)
        if trace := trace_of(request):
            bind_contextvars(traceparent=trace)
    return request_id


def trace_of(request: web.BaseRequest) -> str:
    """The trace of the caller's that the request is part of; empty if it names none, or not as it should."""
    trace = request.headers.get(TRACE, "")
    return trace if _TRACE.fullmatch(trace) else ""


def _id_in(given: str, *, is_forwarded: bool) -> re.Match[str] | None:
    if has_token(given):
        return None
    # A node of an older version forwards an id as it came.
    return (_HOP_ID.fullmatch(given) if is_forwarded else None) or _SAFE_ID.fullmatch(given)


def waits_on_purpose(request: web.BaseRequest) -> bool:
    """Whether the request asks to wait until something happens: a long poll, or a WebSocket."""
    return "wait_ms" in request.query or request.headers.get("Upgrade", "").lower() == "websocket"


class WriteId(NamedTuple):
    """A write's session and the sequence of its first record; `NO_SESSION` without one."""

    session: int
    sequence: int


NO_SESSION = WriteId(0, 0)


def timeout_ms_of(request: web.Request, timeout_ms: int) -> int:
    """How long the request may still take: `timeout_ms`, or what another leader left of it."""
    if DEADLINE not in request:
        return timeout_ms
    return max(0, int((request[DEADLINE] - asyncio.get_running_loop().time()) * 1000))


def write_id_of(request: web.Request) -> WriteId:
    """The session and sequence in the request's headers. Raises Malformed."""
    session, sequence = request.headers.get(SESSION), request.headers.get(SEQUENCE)
    if session is None and sequence is None:
        return NO_SESSION
    if session is None or sequence is None:
        raise Malformed(f"{SESSION} and {SEQUENCE} go together; send both or neither")
    write_id = WriteId(parse_integer(session, SESSION), parse_integer(sequence, SEQUENCE))
    if 0 in write_id:
        raise Malformed(f"{SESSION} and {SEQUENCE} begin at 1")
    return write_id


def parameters_of(request: web.Request, *known: str) -> Mapping[str, str]:
    """The query's parameters, each at most once. Raises Malformed."""
    query = request.query
    for name in query:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise Malformed(f"query parameter {name!r} is not known to {request.method} {request.path}; {takes}")
        if len(query.getall(name)) > 1:
            raise Malformed(f"query parameter {name!r} is given more than once")
    return query


def integer_of(parameters: Mapping[str, str], name: str, highest: int = INDEX_HIGHEST) -> int | None:
    """A parameter that is an integer from 0 to `highest`; None if it is absent. Raises Malformed."""
    text = parameters.get(name)
    return None if text is None else parse_integer(text, name, highest)


def seconds_of(parameters: Mapping[str, str], name: str) -> float | None:
    """A parameter that is a decimal number of seconds, of at most nine digits each side of the point; None if absent.

    Raises:
        Malformed: it is something else.
    """
    text = parameters.get(name)
    if text is not None and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise Malformed(f"{name} must be a number of seconds like 2 or 0.5, not {text[:24]!r}")
    return None if text is None else float(text)


def parse_integer(text: str, name: str, highest: int = INDEX_HIGHEST) -> int:
    """The text as an integer from 0 to `highest`. Raises Malformed."""
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > highest:
        raise Malformed(f"{name} must be an integer from 0 to {highest}, not {text[:24]!r}")
    return int(text)
