"""Log messages of a process: structlog on stderr, as plain lines or JSON."""

import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from .standard_streams import OutputQueue, lines_were_dropped

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Lines:
    """A logger whose messages are lines of a queue. It has no lock: structlog's own would be held across a fork."""

    def __init__(self, output: OutputQueue) -> None:
        self._output = output

    def line(self, message: str) -> None:
        self._output.write(message + "\n")

    debug = info = warning = error = critical = line


def configure_logging(level: str, form: str, node_id: str, output: OutputQueue) -> None:
    """Set up structlog, and route warnings of the standard library's logging (aiohttp, asyncio) through it.

    Every line goes to `output`, as does the notice that lines were dropped.
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
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*chain, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _Lines(output),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer], foreign_pre_chain=chain
        )
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[handler], force=True)

    def notice(lines: int, why: str) -> str:
        message: Any = {"event": lines_were_dropped(lines, why)}
        for processor in (*chain, renderer):
            message = processor(None, "warning", message)
        return f"{message}\n"

    output.notice = notice
