"""What a call of the client can end in, apart from its answer.

- Refused: the machine said no; whether it stands in the log is told by `index`
- BadRequest, NotFound: the cluster cannot do what was asked; nothing was written
- Unavailable: nobody could be reached who could; nothing was written, try again later
- OutcomeUnknown: the write may have happened, may happen yet, or not at all
- SessionFenced, SessionExpired, ReplyGone: the client's session answers this no more
- Halted: something before it failed, so it was not sent
- ServerFault: a node failed at a read in a way that it should not, or its machine at a check or a query; nothing was
  written
"""

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The root of what the client raises."""


class Refused(ClientError):
    """The machine refused a command.

    `index` is its place in the log where `apply` refused it; None where the check refused the whole request and nothing
    was written. `refused` lists all refused commands of the request as [place, code, text].
    """

    def __init__(self, refused: list[list[Any]], index: int | None = None) -> None:
        place, self.code, self.text = refused[0]
        which = f"command {place} of {len(refused)} refused ones" if len(refused) > 1 else "the command"
        super().__init__(f"{which} was refused, {self.code}: {self.text}")
        self.place: int = place
        self.refused = refused
        self.index = index


class BadRequest(ClientError):
    """The request is malformed, too large, or not for this cluster. `problem` holds the server's words and numbers."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or problem))
        self.problem = problem
        self.status: int = problem["status"]
        self.type: str = problem.get("type", "about:blank")


class NotFound(BadRequest):
    """There is no such record, not yet, or no more: `type` tells which."""


class Unavailable(ClientError):
    """No server could do it before the deadline; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the cluster is not available: {reason}")
        self.reason = reason


class OutcomeUnknown(ClientError):
    """The request went out and no answer says what became of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the outcome is unknown: {reason}")
        self.reason = reason


class ServerFault(ClientError):
    """A server answered with a fault of its own, or of its machine's code; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server failed: {reason}")
        self.reason = reason


class SessionError(ClientError):
    """The session does not answer this command, which was not executed. `code` is the server's word for why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SessionFenced(SessionError):
    """Somebody else opened the session's name and holds it now; connect again to take it back."""


class SessionExpired(SessionError):
    """The session was closed, or forgotten for being idle too long."""


class ReplyGone(SessionError):
    """The command was executed, but too long ago: its reply is kept no more."""


class Halted(ClientError):
    """Something before this failed, and the client was to send nothing behind that; nothing was written."""

    def __init__(self) -> None:
        super().__init__("an earlier command failed; nothing of this was written")
