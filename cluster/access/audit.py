"""The audit log: who called what, from where, and what came of it. One line each, on the logger `quire.audit`.

A line is written for each call of an operator's route, for each refusal, and for a token's first use from an address.
No line holds a token, a body or a query. Refusals come from strangers, so at most one of a kind is written a second.
"""

import time
from collections import Counter, OrderedDict

import structlog

REFUSALS_S = 1.0
MAX_KNOWN = 10_000
"""Pairs of a token's name and an address that are remembered; the least recently used is forgotten."""

log = structlog.get_logger("quire.audit", log="quire.audit")


class Audit:
    """Writes the audit log of one server. One event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._refused_at: dict[str, float] = {}
        self._kept_back: Counter[str] = Counter()

    def called(self, who: str, address: str, what: str, status: int, request_id: str) -> None:
        """An operator's call was answered."""
        log.info("admin call", who=who, address=address, what=what, status=status, request_id=request_id)

    def refused(self, who: str, address: str, what: str, why: str, request_id: str) -> None:
        """A request was refused; `why` is the problem's name. `kept_back` counts those that no line was written for."""
        now = time.monotonic()
        if now < self._refused_at.get(why, float("-inf")) + REFUSALS_S:
            self._kept_back[why] += 1
            return
        self._refused_at[why] = now
        more = {"kept_back": kept_back} if (kept_back := self._kept_back.pop(why, 0)) else {}
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
