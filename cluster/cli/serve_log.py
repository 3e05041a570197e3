"""`quire serve --standalone`: one log as a process, from its configuration to a clean stop."""

import asyncio
import signal
import sys
from collections.abc import Sequence

import structlog
import uvloop
from aiohttp import web

from quire.log import LogError

from ..api.app import serve_app
from ..api.door import Door
from ..config import ConfigInvalid, load_settings
from ..identity import DataDirRefused
from ..standalone.app import make_app
from ..standalone.config import StandaloneConfig
from ..standalone.service import MODE, LogService
from .arguments import parse_standalone
from .journal import configure_logging
from .serve import (
    EXIT_FAILED,
    EXIT_USAGE,
    SHUTDOWN_TIMEOUT_S,
    CannotStart,
    collect_less_often,
    connections_limit,
    first_of,
    listen,
)

log = structlog.get_logger(__name__)


def serve_log(arguments: Sequence[str]) -> int:
    """Serve a log until SIGTERM or SIGINT; return the exit code."""
    flags, config_file = parse_standalone(StandaloneConfig, arguments)
    try:
        config = load_settings(StandaloneConfig, flags, config_file)
    except ConfigInvalid as error:
        for sentence in error.problems:
            print(f"quire serve: {sentence}", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(config.log_level, config.log_format, MODE)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config))
    except CannotStart as error:
        print(f"quire serve: {error}", file=sys.stderr)
        return EXIT_FAILED


async def _run(config: StandaloneConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listening = listen(config.listen)
    try:
        service = await _started(config)
    except BaseException:
        listening.close()
        raise
    door = Door(connections_limit(), reserve=0)
    runner = web.AppRunner(make_app(service, door), shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    server = await serve_app(runner, door, listening)
    collecting = asyncio.create_task(collect_less_often(), name="collector")
    print(f"quire: a log listens on {config.listen}", flush=True)
    await first_of(stop, service.ended)
    log.info("stopping")
    collecting.cancel()
    server.close()
    # Requests in progress are answered first: what they appended is flushed before the log is closed.
    await runner.cleanup()
    await _stopped(service)
    log.info("stopped")
    if service.failure is not None:
        print(f"quire serve: the log has failed: {service.failure}; start it again", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def _stopped(service: LogService) -> None:
    try:
        await service.stop()
    except LogError as error:
        log.error("the log could not be closed", why=str(error))


async def _started(config: StandaloneConfig) -> LogService:
    service = LogService(config)
    try:
        await service.start()
    except DataDirRefused as error:
        raise CannotStart(str(error)) from None
    except LogError as error:
        raise CannotStart(f"data_dir {config.data_dir} cannot be used: {error}; nothing in it was changed") from None
    except OSError as error:
        where = error.filename or config.data_dir
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(f"{where} cannot be used: {reason}; correct it or give another --data-dir") from None
    return service
