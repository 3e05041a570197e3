"""Errors as HTTP responses: RFC 9457 problem+json with stable types. The only module that maps errors to a status.

A problem's `type` is `urn:quire:problem:<name>`; the error's attributes are its other members. What a client may
conclude:

- 4xx and 503: nothing was written
- 504: the outcome is unknown
- 500: a fault of the node; a write's outcome is unknown, except after `check-failed`: nothing was written

This holds for this request only. Only the session knows what became of an earlier copy of a write.
"""

import json
from typing import Any, NamedTuple

import orjson
from aiohttp import hdrs, web

from ..access.tokens import without_tokens
from ..errors import (
    AddressUnusable,
    BodyTimeout,
    ChangeRefused,
    ChangeUnderWay,
    CheckFailedError,
    ClusterError,
    CommandsRefused,
    CorruptHere,
    CursorOwned,
    CursorRefused,
    CursorsFull,
    CursorUnknown,
    DiskFullError,
    Expired,
    FeatureNotInUse,
    Forbidden,
    HistoryChanged,
    HoldsFull,
    HostRefused,
    LeaderNotServing,
    LeaderUnreachable,
    LimitExceeded,
    MachineFailed,
    Malformed,
    MembersFull,
    NodeBehind,
    NodeNotConnected,
    NodeStopping,
    NodeUnknown,
    NodeUnreachable,
    NoLeader,
    NotCommitted,
    NotInThisMode,
    NotLeader,
    OriginRefused,
    OutcomeUnknown,
    OutOfBounds,
    Overloaded,
    QueryRefused,
    ResourcesExhaustedError,
    SequenceRefused,
    SessionOwned,
    SessionRefused,
    SessionsFull,
    SessionUnknown,
    SnapshotFailed,
    SnapshotUnknown,
    StateUnavailable,
    TransferFailed,
    Truncated,
    Unauthorized,
    VotersUnheard,
    WrongIndex,
)

TYPE_PREFIX = "urn:quire:problem:"
SESSION_CODE = "Quire-Session-Code"  # Sent as a header, because a WebSocket client cannot read the body of a refusal.
PROBLEM_JSON = "application/problem+json"
CHALLENGE = 'Bearer realm="quire"'


class UnsupportedMedia(Malformed):
    """The call does not take the body's content type."""


class ExpectationUnknown(Malformed):
    """The request has an `Expect` that the server cannot meet."""


class NotReady(ClusterError):
    """The node runs but should get no traffic yet."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Answer(NamedTuple):
    """How one error is answered. `retry_after_s` is set if the same request may succeed later."""

    status: int
    name: str
    title: str
    retry_after_s: int | None = None


ANSWERS: dict[type[Exception], Answer] = {
    Malformed: Answer(400, "malformed", "The request is malformed"),
    Unauthorized: Answer(401, "unauthorized", "A token is needed"),
    Forbidden: Answer(403, "forbidden", "The caller's role may not do this"),
    HostRefused: Answer(403, "host-refused", "The node does not have this name"),
    OriginRefused: Answer(403, "origin-refused", "A web page that is not allowed sent the request"),
    SessionOwned: Answer(403, "session-owned", "The session belongs to another owner"),
    CursorOwned: Answer(403, "cursor-owned", "The cursor belongs to another owner"),
    OutOfBounds: Answer(404, "out-of-bounds", "There is no such record"),
    NotCommitted: Answer(404, "not-committed", "The record is not committed yet"),
    SessionUnknown: Answer(404, "session-unknown", "There is no such session"),
    CursorUnknown: Answer(404, "cursor-unknown", "There is no such cursor"),
    NodeUnknown: Answer(404, "node-unknown", "There is no such node"),
    SnapshotUnknown: Answer(404, "snapshot-unknown", "There is no such snapshot"),
    BodyTimeout: Answer(408, "body-timeout", "The body did not arrive in time"),
    WrongIndex: Answer(409, "wrong-index", "The log's next index is not the expected one"),
    Truncated: Answer(409, "truncated", "The records were truncated before they were flushed"),
    SequenceRefused: Answer(409, "sequence-refused", "The sequence is not the next one"),
    HistoryChanged: Answer(409, "history-changed", "The cluster was recovered; this is of an earlier history"),
    SessionRefused: Answer(409, "session-refused", "The session refuses the request"),
    CursorRefused: Answer(409, "cursor-refused", "The cursor is left as it is"),
    CursorsFull: Answer(409, "cursors-full", "No further cursor can be created"),
    HoldsFull: Answer(409, "holds-full", "All cursors together may hold no more of the log"),
    ChangeUnderWay: Answer(409, "change-under-way", "Another change of members is in progress"),
    ChangeRefused: Answer(409, "change-refused", "The members are not changed like that"),
    AddressUnusable: Answer(409, "address-unusable", "Another node answers there"),
    MembersFull: Answer(409, "members-full", "The cluster has its maximum number of members"),
    NotInThisMode: Answer(409, "not-in-this-mode", "Not available with this machine or in this mode"),
    Expired: Answer(410, "expired", "The record has expired"),
    LimitExceeded: Answer(413, "limit-exceeded", "Too large"),
    UnsupportedMedia: Answer(415, "unsupported-media-type", "The body's content type is not supported"),
    ExpectationUnknown: Answer(417, "expectation-unknown", "The expectation cannot be met"),
    CommandsRefused: Answer(422, "commands-refused", "The machine refuses the request"),
    SessionsFull: Answer(429, "sessions-full", "No further session can be opened", 60),
    QueryRefused: Answer(422, "query-refused", "The machine refuses the query"),
    Overloaded: Answer(429, "overloaded", "The node is overloaded", 1),
    CheckFailedError: Answer(500, "check-failed", "The machine's own check failed"),
    MachineFailed: Answer(500, "machine-failed", "The machine's own code failed"),
    NotLeader: Answer(503, "not-leader", "This node does not lead", 1),
    TransferFailed: Answer(503, "transfer-failed", "Leadership was not moved", 1),
    LeaderNotServing: Answer(503, "leader-not-serving", "The leader has just been elected", 1),
    NodeNotConnected: Answer(503, "node-not-connected", "The node is not connected", 1),
    NodeBehind: Answer(503, "node-behind", "The node has not caught up", 1),
    VotersUnheard: Answer(503, "voters-unheard", "Too few voters would remain", 1),
    NoLeader: Answer(503, "no-leader", "No leader is known", 1),
    NodeUnreachable: Answer(503, "node-unreachable", "The node cannot be reached", 1),
    LeaderUnreachable: Answer(503, "leader-unreachable", "The leader cannot be reached", 1),
    StateUnavailable: Answer(503, "state-unavailable", "This node cannot read its machine", 1),
    CorruptHere: Answer(503, "corrupt-here", "The record is corrupt on this node", 1),
    FeatureNotInUse: Answer(503, "feature-not-in-use", "Not every member has this feature", 5),
    DiskFullError: Answer(503, "disk-full", "The disk is full", 10),
    ResourcesExhaustedError: Answer(503, "resources-exhausted", "No file or memory is left for the process", 1),
    SnapshotFailed: Answer(503, "snapshot-failed", "No snapshot was taken", 10),
    NodeStopping: Answer(503, "stopping", "The node is stopping", 1),
    NotReady: Answer(503, "not-ready", "The node is not ready", 1),
    OutcomeUnknown: Answer(504, "outcome-unknown", "The outcome is unknown"),
}

# Attributes of an error that have another name in a problem. A reason is left out: it is in the detail.
MEMBER_NAMES = {"lowest": "lowest_index", "highest": "highest_index", "reason": None, "shown": None}


def answer_of(error: ClusterError) -> Answer:
    """The row of an error's class, or of its nearest base class. Raises KeyError if there is none."""
    for base in type(error).__mro__:
        if base in ANSWERS:
            return ANSWERS[base]
    raise KeyError(type(error))


def problem_of(error: ClusterError, request_id: str) -> web.Response:
    """The response to the request with that id, which failed with this error."""
    answer = answer_of(error)
    names = ((MEMBER_NAMES.get(name, name), value) for name, value in vars(error).items())
    members = {name: value for name, value in names if name is not None} | {"request_id": request_id}
    response = problem(answer.status, answer.name, answer.title, str(error), members)
    if isinstance(error, Overloaded):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    elif answer.retry_after_s is not None:
        response.headers["Retry-After"] = str(answer.retry_after_s)
    match error:
        case Unauthorized():
            response.headers[hdrs.WWW_AUTHENTICATE] = CHALLENGE + (', error="invalid_token"' if error.shown else "")
        case SessionUnknown():
            response.headers[SESSION_CODE] = "SESSION_EXPIRED"
        case SessionRefused():
            response.headers[SESSION_CODE] = error.code
        case _:
            pass
    return response


def problem(status: int, name: str, title: str, detail: str, members: dict[str, Any] | None = None) -> web.Response:
    """A problem+json response."""
    body = {"type": TYPE_PREFIX + name, "title": title, "status": status, "detail": detail, **(members or {})}
    text = without_tokens(_as_json(body).decode())  # An error may quote a header.
    return web.Response(status=status, body=text.encode(), content_type=PROBLEM_JSON)


def _as_json(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body, default=repr)
    except TypeError:  # An error may quote a lone surrogate or an integer beyond 64 bits, as a machine's refusal can.
        return json.dumps(body, default=repr, ensure_ascii=False).encode(errors="replace")
