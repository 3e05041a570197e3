"""A name for each request, by which all that is said about it is found again.

It stands in the answer's `Quire-Request-Id`, in a problem's `request_id`, and in every log line about the request, here
and on the leader that it was forwarded to. A caller may bring its own; one that cannot stand in a log line as it is, is
replaced, since a request is not worth refusing for that.
"""

import os
import re
import time
from collections import Counter
from itertools import count
from typing import Any

from aiohttp import web
from structlog.contextvars import bind_contextvars
from structlog.typing import FilteringBoundLogger

from quire.replication.net.hello import PEER_PATHS

REQUEST_ID = "Quire-Request-Id"
REQUEST_ID_CHARACTERS = 64
REQUEST_ID_KEY = web.RequestKey("request_id", str)
LOG_INTERVAL_S = 1.0

_SANE = re.compile(rf"[A-Za-z0-9._:-]{{1,{REQUEST_ID_CHARACTERS}}}")
_PROCESS = os.urandom(6).hex()
_numbers = count(1)


def name_request(request: web.BaseRequest) -> str:
    """Give the request its name, and let every log line of the current task carry it.

    But for a peer's: its socket lives as long as the node, and what comes in there is no request's doing.
    """
    given = request.headers.get(REQUEST_ID)
    request_id = given if given is not None and _SANE.fullmatch(given) else f"{_PROCESS}-{next(_numbers):x}"
    request[REQUEST_ID_KEY] = request_id
    if request.path not in PEER_PATHS:
        bind_contextvars(request_id=request_id)
    return request_id


class SeldomLog:
    """Warnings about single requests: at most one of a kind each second, so that an overload is not made worse by
    telling of it. `kept_back` says how many more there were since the last one.
    """

    def __init__(self, log: FilteringBoundLogger, interval_s: float = LOG_INTERVAL_S) -> None:
        self._log = log
        self.interval_s = interval_s
        self._told_at: dict[str, float] = {}
        self._kept_back: Counter[str] = Counter()

    def warning(self, event: str, **values: Any) -> None:
        """Log it, or count it."""
        now = time.monotonic()
        if now < self._told_at.get(event, float("-inf")) + self.interval_s:
            self._kept_back[event] += 1
            return
        self._told_at[event] = now
        if kept_back := self._kept_back.pop(event, 0):
            values["kept_back"] = kept_back
        self._log.warning(event, **values)
