"""Log messages of a process: structlog on stderr, as plain lines or JSON.

Characters that a terminal interprets are escaped in both (cluster/terminal.py), since `journalctl` shows them. Only the
program's own text can start a line: line feeds in fields are escaped, and tracebacks, which may quote input, are
indented.
"""

import logging
import sys
from io import StringIO
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from ..terminal import escaped
from .standard_streams import OutputQueue, lines_were_dropped


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


def configure_logging(form: str, node_id: str, output: OutputQueue) -> None:
    """Set up structlog, and route warnings of the standard library's logging (aiohttp, asyncio) through it.

    Every line is written to `output`, including the notice that lines were dropped.
    """

    def name_node(_logger: object, _method: str, message: EventDict) -> EventDict:
        message["node"] = node_id
        return message

    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        name_node,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor
    if form == "json":
        chain.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()  # It writes everything but printable ASCII as \uXXXX.
    else:
        # Its colours are escape sequences, too, so its input is escaped, not the rendered line.
        chain.append(_escape_fields)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)
    structlog.configure(
        processors=[*chain, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Lines(output),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer], foreign_pre_chain=chain
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # It logs a warning with the name of every requested subprotocol: any caller could fill the journal.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)

    def notice(lines: int, why: str) -> str:
        message: Any = {"event": lines_were_dropped(lines, why)}
        for processor in (*chain, renderer):
            message = processor(None, "warning", message)
        return f"{message}\n"

    output.notice = notice
