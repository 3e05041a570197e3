"""`quire serve --standalone`: a log as a process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiohttp import web

from quire.log import LogError

from ..access.credentials import Credentials
from ..config.settings import ConfigInvalid, load_settings
from ..data_dir.identity import DataDirRefused
from ..errors import ClusterError
from ..http.admission.connections import ConnectionLimit
from ..node.turn_times import TurnTimes
from ..standalone.app import READS_LIMIT, WRITES_LIMIT, make_app
from ..standalone.config import MODE, StandaloneConfig
from ..standalone.service import LogService
from ..standard_streams import OutputQueue
from .arguments import parse_standalone
from .descriptors import OWN_FILES
from .journal import configure_logging
from .process import CannotStart, refuse_settings, run

LOG_FILES = OWN_FILES + WRITES_LIMIT + READS_LIMIT
"""Each write may have a spool, and each read of a large record its store."""

log = structlog.get_logger(__name__)


def serve_log(arguments: Sequence[str], stderr: OutputQueue) -> int:
    """Serve a log until SIGTERM or SIGINT; return the exit code."""
    flags, config_file = parse_standalone(StandaloneConfig, arguments)
    try:
        config = load_settings(StandaloneConfig, flags, config_file)
    except ConfigInvalid as error:
        return refuse_settings(error)
    rates = configure_logging(config.log_format, MODE, stderr)
    return run(lambda: _LogService(config), config.listen, config.data_dir, rates)


class _LogService:
    title = "a log"
    connections_reserve = 0
    own_files = LOG_FILES
    carried_streams = 0

    def __init__(self, config: StandaloneConfig) -> None:
        try:
            self._log = LogService(config)
        except ClusterError as error:
            raise CannotStart(str(error)) from None

    @property
    def ended(self) -> asyncio.Event:
        return self._log.ended

    async def start(self) -> None:
        try:
            await self._log.start()
        except DataDirRefused as error:
            raise CannotStart(str(error)) from None

    def app(self, connections: ConnectionLimit, turns: TurnTimes) -> web.Application:
        return make_app(self._log, connections)

    @property
    def credentials(self) -> Credentials:
        return self._log.credentials

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def was_removed(self) -> bool:
        return False

    async def leave(self) -> None:
        """Nothing to do: there are no followers."""

    async def stop(self, finish_requests: Callable[[], Awaitable[None]]) -> str | None:
        await finish_requests()  # First, so that what they appended is flushed before the log is closed.
        not_closed = None
        try:
            await self._log.stop()
        except LogError as error:
            not_closed = str(error)
            log.error("the log could not be closed", why=not_closed)
        failure = self._log.failure or not_closed
        return None if failure is None else f"the log has failed: {failure}; restart it"
