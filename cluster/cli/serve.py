"""`quire serve`: one node as a process, from its configuration to a clean stop.

The port is taken first and the data directory second, so that a wrong start changes nothing on disk. Connections that
come in between wait in the socket's backlog.
"""

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence

import structlog
import uvloop
from aiohttp import web

from quire.log import LogError
from quire.sm import MachineError

from ..api.app import BACKLOG, make_app, serve_app
from ..api.door import CONNECTIONS_LIMIT, PEER_RESERVE, Door
from ..config import ConfigInvalid, ServeConfig, host_and_port, load_config
from ..errors import ClusterError
from ..node import Node
from .arguments import STANDALONE, parse_serve
from .journal import configure_logging

EXIT_FAILED = 1
EXIT_USAGE = 2
FILES_RESERVE = 512  # Of the files that the process may have open: for the log, the peers and the hop to the leader.
SHUTDOWN_TIMEOUT_S = 5.0
GC_ALLOCATIONS = 100_000
GC_PAUSE_S = 10.0
SWITCH_S = 0.0005  # How long a thread whose flush has ended waits at most for the loop to let it say so; Python: 5 ms.

log = structlog.get_logger(__name__)


class CannotStart(Exception):
    """The node cannot start; the text says why and what to do."""


def serve(arguments: Sequence[str]) -> int:
    """Run a node, or a standalone log, until SIGTERM or SIGINT; return the exit code."""
    if STANDALONE in arguments:
        from .serve_log import serve_log  # noqa: PLC0415  # It needs none of a node's modules, and a node none of its.

        return serve_log(arguments)
    flags, config_file = parse_serve(arguments)
    try:
        config = load_config(flags, config_file)
    except ConfigInvalid as error:
        for sentence in error.problems:
            print(f"quire serve: {sentence}", file=sys.stderr)
        return EXIT_USAGE
    if ":" in config.machine:
        # A machine of your own may stand where you are. Last, so that nothing there takes an installed module's place.
        sys.path.append(os.getcwd())
    configure_logging(config.log_level, config.log_format, config.node)
    sys.setswitchinterval(SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config))
    except CannotStart as error:
        print(f"quire serve: {error}", file=sys.stderr)
        return EXIT_FAILED


async def _run(config: ServeConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listening = listen(config.listen)
    try:
        node = await _started(config)
    except BaseException:
        listening.close()
        raise
    door = Door(connections_limit())
    runner = web.AppRunner(make_app(node, door), shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    server = await serve_app(runner, door, listening)
    collecting = asyncio.create_task(collect_less_often(), name="collector")
    print(f"quire: node {config.node} listens on {config.listen}", flush=True)
    await first_of(stop, node.ended)
    log.info("stopping")
    collecting.cancel()
    await node.hand_over()
    server.close()
    await node.stop()
    await runner.cleanup()
    log.info("stopped")
    if node.failure is not None:
        print(f"quire serve: the node has halted: {node.failure}", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def first_of(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def collect_less_often() -> None:
    """Collect garbage at a server's pace, for ever."""
    # A batch of commands is thousands of small lists that live for milliseconds and form no cycles. At its default
    # threshold of 700 the cyclic collector walks them again and again: measured, a third of a node's time under load.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    while True:
        # Few objects can hold many bytes: the frames of a failed request hold its body until they are collected.
        await asyncio.sleep(GC_PAUSE_S)
        gc.collect(1)


def connections_limit() -> int:
    """As many connections as the process may have files for, once it has asked for all that it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    room = CONNECTIONS_LIMIT if most == resource.RLIM_INFINITY else most - PEER_RESERVE - FILES_RESERVE
    if room < CONNECTIONS_LIMIT:
        log.warning("few open files are allowed, so fewer connections are taken", connections=max(1, room), files=most)
    return max(1, min(room, CONNECTIONS_LIMIT))


def listen(address: str) -> socket.socket:
    """A socket bound to HOST:PORT. Raises CannotStart."""
    host, port = host_and_port(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(f"cannot listen on {address}: {reason}; stop what uses it or change --listen") from None


async def _started(config: ServeConfig) -> Node:
    try:
        node = Node(config)
        await node.start()
    except (MachineError, ClusterError) as error:
        raise CannotStart(str(error)) from None
    except LogError as error:
        raise CannotStart(f"data_dir {config.data_dir} cannot be used: {error}; nothing in it was changed") from None
    except OSError as error:
        where = error.filename or config.data_dir
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(f"{where} cannot be used: {reason}; correct it or give another --data-dir") from None
    return node
