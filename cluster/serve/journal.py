"""Log messages of a process: structlog on stderr, as plain lines or JSON.

Characters that a terminal interprets are escaped in both (cluster/terminal.py), since `journalctl` shows them. Only the
program's own text can start a line: line feeds in fields are escaped, and tracebacks, which may quote input, are
indented. No line holds a token, wherever it comes from.

Callers and peers cause most lines, and must not fill the disk. So each kind of line has a rate, with or without a
traceback, whoever logs it: quire, aiohttp, asyncio or PySyncObj. Past it lines are left out, and counted: in the next
line of the kind, or in a line of their own within `SAY_S`. Only the audit log's lines of changes have none.
"""

import asyncio
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NamedTuple, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from ..access.audit import AUDIT_LOG, LINES_PER_SECOND, tells_a_change
from ..access.tokens import without_tokens
from ..standard_streams import OutputQueue, lines_were_dropped
from ..terminal import escaped

BURST_LINES = 20
BURST_PER_SECOND = 1.0
"""Of a kind of line: so many at once, then so many a second."""
ALARMS_PER_SECOND = 10.0
"""More than of others, so that an alarm that a peer repeats leaves room for other alarms."""
KINDS_LIMIT = 1_000
"""Kinds that have a rate of their own, and as many of the audit log's, which callers' names make: there the least
recently used is forgotten. The texts of the others are constants, and the code has fewer; if values make kinds by
mistake, the rest share a rate, but for those in RATES."""
KIND_CHARACTERS = 100
SAY_S = 60.0
"""How often it is logged how many lines were left out, if no later line of their kind says it."""

log = structlog.get_logger(__name__)


class LineRate(NamedTuple):
    """How many lines of a kind are written: `burst` at once, then `per_second`; of equal ones, perhaps one a second."""

    burst: int
    per_second: float
    no_equals: bool = False


ORDINARY = LineRate(BURST_LINES, BURST_PER_SECOND)
RATES = {
    "alarm": LineRate(BURST_LINES, ALARMS_PER_SECOND, no_equals=True),
    f"{AUDIT_LOG} refused": LineRate(LINES_PER_SECOND, LINES_PER_SECOND, no_equals=True),
}
AUDIT = LineRate(LINES_PER_SECOND, LINES_PER_SECOND)


def rate_of(log_name: str, kind: str) -> LineRate:
    """The rate of a kind of line; `log_name` is that of the audit log, or of any other."""
    is_audit = log_name == AUDIT_LOG
    return RATES.get(f"{AUDIT_LOG} {kind}" if is_audit else kind, AUDIT if is_audit else ORDINARY)


_Key = tuple[str, str, str]
"""The log's name, the kind, and in the audit log the caller: none hides the lines of another."""
_OTHERS: _Key = ("", "others", "")


@dataclass(slots=True)
class _Kind:
    """A kind's token bucket, how many of its lines were left out since its last one, and this second's lines."""

    rate: LineRate
    tokens: float
    filled_at: float
    left_out: int = 0
    second: int = 0
    written: set[str] = field(default_factory=set)

    def admits(self, message: EventDict, now: float) -> bool:
        self.tokens = min(self.rate.burst, self.tokens + (now - self.filled_at) * self.rate.per_second)
        self.filled_at = now
        if self.tokens < 1 or (self.rate.no_equals and self._has_equal(message, now)):
            return False
        self.tokens -= 1
        return True

    def _has_equal(self, message: EventDict, now: float) -> bool:
        if int(now) != self.second:
            self.second = int(now)
            self.written.clear()
        shown = repr([value for name, value in message.items() if name != "request_id"])
        is_known = shown in self.written
        self.written.add(shown)
        return is_known


def _kind_in(kinds: dict[_Key, _Kind], key: _Key, now: float) -> _Kind:
    rate = rate_of(key[0], key[1])
    return kinds.setdefault(key, _Kind(rate, rate.burst, now))


class LineRates:
    """The rates of a journal's lines, as the first processor of each. It has no lock: see `_Lines`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[_Key, _Kind] = {}
        self._audit_kinds: OrderedDict[_Key, _Kind] = OrderedDict()
        self.left_out = 0
        """Lines that were left out since the start."""

    def __call__(self, _logger: object, _method: str, message: EventDict) -> EventDict:
        """The line, with the number of those of its kind that were left out before it. Raises DropEvent."""
        if tells_a_change(message):
            return message
        now = self._clock()
        kind = self._kind_of(message, now)
        if not kind.admits(message, now):
            kind.left_out += 1
            self.left_out += 1
            raise structlog.DropEvent
        if kind.left_out:
            message["left_out"], kind.left_out = kind.left_out, 0
        return message

    def _kind_of(self, message: EventDict, now: float) -> _Kind:
        log_name, name = str(message.get("log", "")), str(message.get("event"))[:KIND_CHARACTERS]
        if isinstance(record := message.get("_record"), logging.LogRecord):
            name = f"{record.name}:{record.lineno}"  # Not its text, which may hold values.
        if log_name == AUDIT_LOG:
            return self._audit_kind((log_name, name, str(message.get("who", ""))), now)
        key = (log_name, name, "")
        if key not in self._kinds and len(self._kinds) >= KINDS_LIMIT and name not in RATES:
            key = _OTHERS
        return _kind_in(self._kinds, key, now)

    def _audit_kind(self, key: _Key, now: float) -> _Kind:
        kind = _kind_in(self._audit_kinds, key, now)
        self._audit_kinds.move_to_end(key)
        if len(self._audit_kinds) > KINDS_LIMIT:
            _, forgotten = self._audit_kinds.popitem(last=False)
            _kind_in(self._kinds, _OTHERS, now).left_out += forgotten.left_out
        return kind

    def say(self) -> None:
        """Log how many lines of each kind were left out and are counted in no line yet."""
        short = [(key, kind) for key, kind in [*self._kinds.items(), *self._audit_kinds.items()] if kind.left_out]
        counts = {" ".join(filter(None, key)): kind.left_out for key, kind in short}
        for _, kind in short:
            kind.left_out = 0
        if counts:
            log.warning("lines were left out", kinds=counts)

    async def say_forever(self) -> None:
        """Say it every SAY_S, until cancelled."""
        while True:
            await asyncio.sleep(SAY_S)
            self.say()


class _Handler(logging.StreamHandler[OutputQueue]):
    """Writes the lines of the standard library's logging that have not been left out."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(structlog.DropEvent):
            super().emit(record)


class _Lines:
    """A logger that puts its messages into a queue. It has no lock: structlog's own could be held across a fork."""

    def __init__(self, output: OutputQueue) -> None:
        self._output = output

    def line(self, message: str) -> None:
        self._output.write(message + "\n")

    debug = info = warning = error = critical = line


_FOR_OTHERS = ("exc_info", "_record", "_from_structlog")  # Consumed by other processors; none is shown as a field.


def _escape_fields(_logger: object, _method: str, message: EventDict) -> EventDict:
    """Names and values as they are shown, on one line: strings unchanged, everything else as its `repr`."""
    fields: EventDict = {}
    for name, value in message.items():
        if name in _FOR_OTHERS:
            fields[name] = value
        else:
            fields[escaped(name)] = escaped(value if isinstance(value, str) else repr(value))
    return fields


def _write_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(escaped(text.getvalue(), keep="\n").replace("\n", "\n  "))


def configure_logging(form: str, node_id: str, output: OutputQueue) -> LineRates:
    """Set up structlog, and route warnings of the standard library's logging (aiohttp, asyncio) through it.

    Every line is written to `output`, including the notice that lines were dropped. Returns the rates of the lines.
    """
    rates = LineRates()

    def name_node(_logger: object, _method: str, message: EventDict) -> EventDict:
        message["node"] = node_id
        return message

    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        name_node,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    shown: Processor
    if form == "json":
        chain.append(structlog.processors.format_exc_info)
        shown = structlog.processors.JSONRenderer()  # It writes everything but printable ASCII as \uXXXX.
    else:
        # Its colours are escape sequences, too, so its input is escaped, not the rendered line.
        chain.append(_escape_fields)
        shown = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)

    def renderer(logger: object, method: str, message: EventDict) -> str:
        return without_tokens(str(shown(logger, method, message)))

    structlog.configure(
        processors=[rates, *chain, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Lines(output),
        cache_logger_on_first_use=True,
    )
    handler = _Handler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[rates, *chain],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # It logs a warning with the name of every requested subprotocol, which any caller chooses.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)

    def notice(lines: int, why: str) -> str:
        message: Any = {"event": lines_were_dropped(lines, why)}
        for processor in (*chain, renderer):
            message = processor(None, "warning", message)
        return f"{message}\n"

    output.notice = notice
    return rates
