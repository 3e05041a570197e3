"""The audit log: who called what, from where, and what came of it. One line each, of the logger `quire.audit`.

A line is written for each call of an operator's route, for each refusal, and for a token's first use from an address.
No line holds a token, a body or a query. Refusals come from strangers, who must not fill the disk: of equal ones, one
is written in a second, and at most REFUSALS_IN_SECOND in all. The next line has the number of those left out.
"""

import time
from collections import OrderedDict

import structlog

REFUSALS_IN_SECOND = 100
MAX_KNOWN = 10_000
"""Pairs of a token's name and an address that are remembered; the least recently used is forgotten."""

log = structlog.get_logger("quire.audit", log="quire.audit")


class Audit:
    """Writes the audit log of one server. One event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._second = 0
        self._refused: set[tuple[str, str, str, str]] = set()
        self._left_out = 0

    def called(self, who: str, address: str, what: str, status: int, request_id: str) -> None:
        """An operator's call was answered."""
        log.info("admin call", who=who, address=address, what=what, status=status, request_id=request_id)

    def refused(self, who: str, address: str, what: str, why: str, request_id: str) -> None:
        """A request was refused; `why` is the problem's name."""
        second, refusal = int(time.monotonic()), (who, address, what, why)
        if second != self._second:
            self._second = second
            self._refused.clear()
        if refusal in self._refused or len(self._refused) >= REFUSALS_IN_SECOND:
            self._left_out += 1
            return
        self._refused.add(refusal)
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        log.warning("refused", who=who, address=address, what=what, why=why, request_id=request_id, **more)

    def used(self, name: str, address: str, what: str, request_id: str) -> None:
        """A token was used; a line is written the first time that it is from this address."""
        if (name, address) in self._known:
            self._known.move_to_end((name, address))
            return
        self._known[name, address] = None
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        log.info("token used from a new address", who=name, address=address, what=what, request_id=request_id)
