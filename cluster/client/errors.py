"""Errors that a call of the client raises.

- CommandRefused: the state machine refused the command; `index` and `repeated` say whether the command is in the log
- ResultsCut: the commands were executed, but their results are too long to be sent
- BadRequest, NotFound: the cluster cannot do what was requested; nothing was written
- Unauthorized, Forbidden: the cluster does not know the caller, or its token may not do that; nothing was written
- Unavailable: no server could do it before the deadline, or nobody is there; nothing was written; try again later
- OutcomeUnknown: the write may have happened, may still happen, or may never happen
- SessionFenced, SessionExpired, ReplyGone: the client's session no longer answers this command
- SessionOwned: the session, or the one that has the client's name, belongs to another token's name
- CursorTaken: another consumer took the cursor, or an operator moved it; nothing was committed
- RecordsLost: records expired before a consumer read them
- ReshardRefused: the shares of a consumer cannot be changed like that
- Halted: an earlier command failed, so this one was not sent
- ForkedClient: a forked child used its parent's client; this is a bug in the program, and not a ClientError
- ServerFault: a node failed during a read, or its machine failed in `check` or `query`; nothing was written

The client reports "nothing was written" only if it sent the request once, or if every earlier attempt provably failed.
If a server refuses a command that an earlier stream may have carried, the call fails with OutcomeUnknown: a node with
other code or other limits may have executed the earlier copy.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeAlias, TypeGuard

from quire import QuireError
from quire.log import Value

from ..errors import ClusterError

Refusal: TypeAlias = list[int | str]
"""A refused command: [position, code, text]."""

Problem: TypeAlias = Mapping[str, Value]
"""A server's problem document: `type`, `status`, `detail` and more."""


class ClientError(ClusterError):
    """Base class of all errors that the client raises."""


class ForkedClient(QuireError, RuntimeError):
    """A forked child used a client that its parent opened. Nothing was sent; the parent can still use the client."""

    def __init__(self, opened_in: int) -> None:
        super().__init__(
            f"the client was opened in process {opened_in}, and this is a fork of it: open another client in the child,"
            " after the fork"
        )
        self.opened_in = opened_in


class CommandRefused(ClientError):
    """The state machine refused a command, with a code and a text.

    `index` is the command's index in the log if `apply` refused it, and None if `check` refused the request before
    anything was written. It is also None if the refusal is `repeated`: `apply` refused an earlier copy of the command,
    and the session repeated its reply; the index of that copy is not known. `position` is that of the first refused
    command in the request, from 0. `refused` lists all refused commands of the request as [position, code, text].
    """

    def __init__(self, refused: list[Refusal], index: int | None = None, *, repeated: bool = False) -> None:
        position, code, text = refused[0]
        which = f"command {position}, the first of {len(refused)} refused," if len(refused) > 1 else "the command"
        super().__init__(f"{which} was refused, {code}: {text}")
        self.position = int(position)
        self.code = str(code)
        self.text = str(text)
        self.refused = refused
        self.index = index
        self.repeated = repeated


class ResultsCut(ClientError):
    """The commands were executed, but their results did not fit into the answer.

    `index` is that of the first command, None if it is unknown because the answer is a repeated one.
    """

    def __init__(self, index: int | None) -> None:
        which = "the command" if index is None else f"the command at {index}"
        super().__init__(
            f"{which} was executed, but the results of its message were too long for one answer;"
            " send fewer commands at once"
        )
        self.index = index


class BadRequest(ClientError):
    """The request is malformed, too large, or not valid for this cluster; nothing was written.

    `status` and `type` are those of the server's problem document, which is `problem`.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or problem))
        self.problem = problem
        status = problem["status"]
        self.status: int = status if isinstance(status, int) else HTTPStatus.BAD_REQUEST
        self.type = str(problem.get("type", "about:blank"))


class NotFound(BadRequest):
    """The record, node or session does not exist yet or no longer exists; `type` says which."""


class Unauthorized(BadRequest):
    """The servers asked for a token, or do not know the one that was sent, or it has expired; nothing was written."""


class Forbidden(BadRequest):
    """The token does not allow it: its role, or whose the cursor is; the text names both; nothing was written."""


class Unavailable(ClientError):
    """No server could do it before the deadline, or nobody is there; nothing was written.

    `reason` says what each server that was tried did last, such as `127.0.0.1:7001 refuses connections, for 30 s`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the cluster is not available: {reason}")
        self.reason = reason


class OutcomeUnknown(ClientError):
    """The request was sent, but whether it took effect is unknown. `reason` says why.

    Either no answer came, or the request was resent and the answer to the later copy says nothing about the earlier.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the outcome is unknown: {reason}")
        self.reason = reason


class ServerFault(ClientError):
    """The server, or the machine's own code, failed with an internal error; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server failed: {reason}")
        self.reason = reason


class SessionError(ClientError):
    """The session does not answer this command, and did not execute it. `code` and `text` are the server's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SessionFenced(SessionError):
    """Another client opened a session under the same name and now holds it. Connect again to take it back."""


class SessionExpired(SessionError):
    """The session was closed, or evicted because it was idle for too long."""


class HistoryChanged(SessionError):
    """The cluster was recovered or restored, and the session, or the reader's position, is of its earlier history.

    The client resends nothing and gives nothing another sequence: what was in doubt may or may not be in the state.
    Compare the state, then open another client; read records again from an index that you know.
    """


class SessionOwned(SessionError):
    """The session, or the name to open, belongs to another token's name; nothing was executed. It is not retried."""


class ReplyGone(SessionError):
    """The command was executed, but so long ago that the session no longer keeps its reply."""


SESSION_ERRORS: dict[str, type[SessionError]] = {
    "SESSION_FENCED": SessionFenced,
    "SESSION_EXPIRED": SessionExpired,
    "SESSION_OWNED": SessionOwned,
    "HISTORY_CHANGED": HistoryChanged,
    "REPLY_GONE": ReplyGone,
    "SEQUENCE_GAP": SessionError,
    "SEQUENCE_REUSED": SessionError,
}
"""The codes with which a session refuses a command."""


def session_error_of(refused: list[Refusal]) -> SessionError | None:
    """The error of the first of these [position, code, text]; None if any of them came from the machine."""
    if not refused or any(code not in SESSION_ERRORS for _, code, _ in refused):
        return None
    _, code, text = refused[0]
    return SESSION_ERRORS[str(code)](str(code), str(text))


def refusals_of(problem: Problem) -> list[Refusal]:
    """The refused commands that a problem names; none if it names none."""
    refused = problem.get("refused")
    return refused if _are_refusals(refused) else []


def _are_refusals(refused: object) -> TypeGuard[list[Refusal]]:
    return isinstance(refused, list)


class Halted(ClientError):
    """An earlier command failed, and the client was opened with `halt_on_failure`; nothing was written."""

    def __init__(self) -> None:
        super().__init__("an earlier command failed; this one was not sent")


class CursorTaken(ClientError):
    """Another consumer took the cursor, or an operator moved or deleted it. Nothing was committed."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class ReshardRefused(ClientError):
    """The shares of a consumer cannot be changed like that; nothing was changed."""


class RecordsLost(ClientError):
    """Up to `lost` records from `index` on expired before the consumer read them; the log begins at `lowest_index`.

    Consume with `skip_lost=True` to continue there. Then this is raised if no record is left for it below `until`.
    """

    def __init__(self, name: str, index: int, lowest_index: int, until: int | None = None) -> None:
        then = "to continue there, skip them" if until is None else f"no record is left for it below {until}"
        super().__init__(
            f"the consumer of {name} has read up to index {index}, and the log begins at {lowest_index}: up to "
            f"{lowest_index - index:,} records expired before they were read; {then}"
        )
        self.name = name
        self.index = index
        self.lowest_index = lowest_index
        self.lost = lowest_index - index
