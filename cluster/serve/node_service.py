"""`quire serve`: a node as a process."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aiohttp import web

from quire.sm import MachineError
from quire.sm.machines.registry import search_current_folder

from ..access.credentials import Credentials
from ..config.serve import ServeConfig, load_config
from ..config.settings import ConfigInvalid
from ..errors import ClusterError
from ..http.admission.connections import PEER_RESERVE, ConnectionLimit
from ..http.admission.streams import STREAMS_LIMIT
from ..http.app import make_app
from ..http.forwarding import CONNECTION_LIMIT
from ..node.node import Node
from ..node.turn_times import TurnTimes
from ..node.views.status import not_ready_reasons
from ..standard_streams import dropped_lines, queue_standard_streams
from .arguments import STANDALONE, parse_serve
from .descriptors import OWN_FILES
from .journal import configure_logging
from .process import CannotStart, refuse_settings, run

PEER_FILES = 192
"""For each of 64 members: a link, a stream, and a snapshot being fetched or calls for its status."""
NODE_FILES = OWN_FILES + PEER_FILES + CONNECTION_LIMIT
SWITCH_S = 0.0005  # The longest that a thread waits for the GIL after its flush; Python's default is 5 ms.


def serve(arguments: Sequence[str]) -> int:
    """Run a node, or a standalone log, until SIGTERM or SIGINT; return the exit code."""
    stderr = queue_standard_streams()
    if STANDALONE in arguments:
        from .log_service import serve_log  # noqa: PLC0415  # A standalone log needs no modules of a node, and vice versa.

        return serve_log(arguments, stderr)
    flags, config_file = parse_serve(arguments)
    try:
        config = load_config(flags, config_file)
    except ConfigInvalid as error:
        return refuse_settings(error)
    search_current_folder(config.machine)
    rates = configure_logging(config.log_format, config.node, stderr)
    sys.setswitchinterval(SWITCH_S)
    service = partial(_NodeService, config, lambda: dropped_lines() + rates.left_out)
    return run(service, config.listen, config.data_dir, rates)


class _NodeService:
    connections_reserve = PEER_RESERVE
    own_files = NODE_FILES
    carried_streams = STREAMS_LIMIT

    def __init__(self, config: ServeConfig, dropped_lines: Callable[[], int]) -> None:
        self.title = f"node {config.node}"
        self._dropped_lines = dropped_lines
        try:
            self._node = Node(config)
        except (MachineError, ClusterError) as error:
            raise CannotStart(str(error)) from None

    @property
    def ended(self) -> asyncio.Event:
        return self._node.health.ended

    async def start(self) -> None:
        try:
            await self._node.start()
        except (MachineError, ClusterError) as error:
            raise CannotStart(str(error)) from None

    def app(self, connections: ConnectionLimit, turns: TurnTimes) -> web.Application:
        return make_app(self._node, connections, turns, self._dropped_lines)

    @property
    def credentials(self) -> Credentials:
        return self._node.credentials

    @property
    def is_ready(self) -> bool:
        return not not_ready_reasons(self._node)

    @property
    def was_removed(self) -> bool:
        return self._node.health.removal is not None

    async def leave(self) -> None:
        await self._node.leadership.hand_over()

    async def stop(self, finish_requests: Callable[[], Awaitable[None]]) -> str | None:
        await self._node.stop()  # First: it answers the requests that wait for a commit that will not come.
        await finish_requests()
        if self.was_removed:
            return f"{self._node.health.removal}; its data_dir cannot be used again, so move it away"
        return None if self._node.health.failure is None else f"the node has halted: {self._node.health.failure}"
