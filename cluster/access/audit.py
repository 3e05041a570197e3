"""The audit log: who called what, from where, and what came of it. One line each, of the logger `quire.audit`.

A line is written for each call of an operator's route, and each other call that is an operator's (`what` and `subject`
say which), for each refusal, for a token's first use from an address, and when a stream ends with its token. No line
holds a token, a body or a query. A refused token is named by the first digits of its SHA-256, as `quire token list`
shows them. Callers cause these lines, and must not fill the disk: of a kind LINES_PER_SECOND are written, and of equal
refusals one a second. The journal counts the others in the next line (cluster/serve/journal.py). No line of a call that
may have changed something is left out: an admin makes it, or a majority's disks hold a cursor's change first.
"""

from collections import OrderedDict
from typing import NamedTuple

import structlog
from structlog.typing import EventDict

AUDIT_LOG = "quire.audit"
LINES_PER_SECOND = 100
MAX_KNOWN = 10_000
"""Of what is logged the first time alone: pairs of a token's name and an address, and as many calls with `once`. The
least recently used is forgotten."""
SUBJECT_CHARACTERS = 120

log = structlog.get_logger(AUDIT_LOG, log=AUDIT_LOG)


class Call(NamedTuple):
    """A request in the audit log. `what` is its method and route, `subject` what it is about, if that is known."""

    who: str
    address: str
    what: str
    request_id: str
    subject: str = ""
    action: str = ""


_Seen = OrderedDict[tuple[str, ...], None]


class Audit:
    """Writes the audit log of one server. One event loop."""

    def __init__(self) -> None:
        self._used, self._called = _Seen(), _Seen()

    def called(self, call: Call, status: int, *, is_admin: bool, once: bool = False) -> None:
        """An operator's call was answered. With `once`, only the caller's first one from this address is logged."""
        shown = (call.who, call.address, call.what, call.subject, call.action, str(status))
        if not once or _is_new(self._called, *shown):
            log.info("admin call" if is_admin else "call", **_fields(call), status=status)

    def refused(self, call: Call, why: str, token: str) -> None:
        """A request was refused; `why` is the problem's name, `token` the first digits of a refused token's SHA-256."""
        shown = {"token": token} if token else {}
        log.warning("refused", **_fields(call), why=why, **shown)

    def used(self, call: Call) -> None:
        """A token was used; a line is written the first time that it is from this address."""
        if _is_new(self._used, call.who, call.address):
            log.info("token used from a new address", **_fields(call))

    def ended(self, call: Call, token: str) -> None:
        """A stream ends because its token has no effect any more."""
        log.warning("stream ended with its token", **_fields(call), token=token)


def tells_a_change(line: EventDict) -> bool:
    """Whether a line of the journal is of an operator's call that may have changed something: no read, nor refused."""
    if line.get("log") != AUDIT_LOG or "status" not in line:
        return False
    is_refused = 400 <= line["status"] < 500 or line["status"] == 503  # As clients may conclude: http/problems.py.
    return not is_refused and not str(line.get("what", "")).startswith(("GET ", "HEAD "))


def _is_new(seen: _Seen, *what: str) -> bool:
    is_new = what not in seen
    seen[what] = None
    seen.move_to_end(what)
    if len(seen) > MAX_KNOWN:
        seen.popitem(last=False)
    return is_new


def _fields(call: Call) -> dict[str, str]:
    return {name: value[:SUBJECT_CHARACTERS] for name, value in call._asdict().items() if value}
