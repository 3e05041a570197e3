"""A service as a process, from startup to a clean stop.

It binds the port before it opens the data directory, so that a mistaken start changes nothing on disk. Connections that
arrive in between wait in the socket's backlog.
"""

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
import uvloop
from aiohttp import web

from quire.log import LogError, sentence_of
from quire.replication.address import host_and_port

from ..access.credentials import Credentials
from ..cli.output import Exit
from ..config.settings import ConfigInvalid, service_variables
from ..errors import ClusterError
from ..http.admission.connections import CONNECTIONS_LIMIT, ConnectionLimit
from ..http.app import serve_app
from ..http.listener import BACKLOG
from ..node.turn_times import TurnTimes
from ..terminal import escaped
from .collector import Collector
from .descriptors import TooFewFiles, connections_of
from .heap import give_large_blocks_back
from .journal import LineRates

SHUTDOWN_TIMEOUT_S = 5.0
EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # It is not in the kernel, or switched off.

log = structlog.get_logger(__name__)


class CannotStart(ClusterError):
    """The service cannot start; the text says why and what to do."""


class Service(Protocol):
    """The service that a process runs."""

    @property
    def title(self) -> str:
        """Its name in the startup message."""
        ...

    @property
    def connections_reserve(self) -> int:
        """How many of its connections are reserved for peers."""
        ...

    @property
    def own_files(self) -> int:
        """How many files it opens besides connections and the log's segments."""
        ...

    @property
    def carried_streams(self) -> int:
        """How many of its connections may each need another one, to the leader."""
        ...

    @property
    def ended(self) -> asyncio.Event:
        """Set when it cannot continue."""
        ...

    async def start(self) -> None:
        """Open the log or node that it serves. Raises OSError, LogError, CannotStart."""
        ...

    def app(self, connections: ConnectionLimit, turns: TurnTimes) -> web.Application:
        """The web application; called after `start`. `turns` are those of the loop, for its metrics."""
        ...

    @property
    def credentials(self) -> Credentials:
        """Its certificates and the tokens of its callers, which SIGHUP has read again."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it serves; before that it may still be busy starting."""
        ...

    async def leave(self) -> None:
        """Prepare to stop before the port is closed, for example by handing over leadership."""
        ...

    @property
    def was_removed(self) -> bool:
        """Whether it ended because its node was removed from its cluster: a restart changes nothing."""
        ...

    async def stop(self, finish_requests: Callable[[], Awaitable[None]]) -> str | None:
        """Stop, and call `finish_requests` at the right time; return why it failed, None if it did not."""
        ...


def run(service: Callable[[], Service], listen_on: str, data_dir: Path, rates: LineRates) -> int:
    """Serve until SIGTERM, SIGINT or the service's end; return the exit code. `service` is called on the event loop.

    `rates` are those of the journal, which at the end says how many lines were left out.
    """
    give_large_blocks_back()
    if ignored := service_variables():
        log.info("variables of a service named quire are ignored", names=ignored)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(service, listen_on, data_dir, rates))
    except CannotStart as error:
        return _refuse([str(error)], Exit.FAILED)
    finally:
        rates.say()


def refuse_settings(error: ConfigInvalid) -> int:
    """Print what is wrong with the configuration; return the exit code."""
    return _refuse(error.problems, Exit.USAGE)


def _refuse(sentences: Sequence[str], code: int) -> int:
    for sentence in sentences:
        print(f"quire serve: {escaped(sentence)}", file=sys.stderr)
    return code


async def _serve(make: Callable[[], Service], listen_on: str, data_dir: Path, rates: LineRates) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reload = _Reload(loop)
    files = _raise_files_limit()  # First: the log opens as many segments as the limit allows.
    listening = listen(listen_on)
    try:
        service, limit = await _started(make, data_dir, files)
    except BaseException:
        listening.close()
        raise
    connections = ConnectionLimit(limit, reserve=service.connections_reserve)
    turns = TurnTimes()
    runner = web.AppRunner(service.app(connections, turns), shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    credentials = service.credentials
    reload.begin(credentials, stop)
    listener = await serve_app(runner, connections, listening, lambda: credentials.tls)
    collector = Collector()
    collector.start()
    turns.start(lambda: service.is_ready, collector.look)
    print(f"quire: {service.title} listens on {listen_on}", flush=True)
    saying = asyncio.create_task(rates.say_forever(), name="lines that were left out")
    await _first_of(stop, service.ended)
    log.info("stopping")
    saying.cancel()
    turns.stop()
    collector.stop()
    await service.leave()
    await listener.close()
    failure = await service.stop(runner.cleanup)
    log.info("stopped")
    return 0 if failure is None else _refuse([failure], Exit.REMOVED if service.was_removed else Exit.FAILED)


class _Reload:
    """What SIGHUP does: it has the files read again. Without such files, a lost terminal stops the process.

    A signal that comes while the process starts counts once it has started: it must not end a node that a service
    manager tells to reload.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._was_asked = False
        loop.add_signal_handler(signal.SIGHUP, self._ask)

    def _ask(self) -> None:
        self._was_asked = True

    def begin(self, credentials: Credentials, stop: asyncio.Event) -> None:
        """Handle signals from now on, and the one that came before."""
        handler = credentials.reload if credentials.has_files else stop.set
        self._loop.add_signal_handler(signal.SIGHUP, handler)
        if self._was_asked:
            handler()


async def _started(make: Callable[[], Service], data_dir: Path, files: int) -> tuple[Service, int]:
    """The service, and how many connections it may have in a process that may open `files` files."""
    try:
        service = make()
        limit = _connections_limit(files, service)
        await service.start()
    except LogError as error:
        raise CannotStart(f"data_dir {data_dir} cannot be used: {error}; nothing in it was changed") from None
    except OSError as error:
        why = sentence_of(error, data_dir)
        if isinstance(error, FileExistsError | NotADirectoryError):
            why = f"{error.filename or data_dir} cannot be used: it is a file, or its path leads through one"
        raise CannotStart(f"{why}; correct it or give another --data-dir") from None
    return service, limit


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _raise_files_limit() -> int:
    """Raise the limit of open files as far as allowed; return it, or -1 if there is none."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return -1 if most == resource.RLIM_INFINITY else most


def _connections_limit(files: int, service: Service) -> int:
    try:
        limit = connections_of(files, service.connections_reserve, service.own_files, service.carried_streams)
    except TooFewFiles as error:
        raise CannotStart(str(error)) from None
    if limit < CONNECTIONS_LIMIT:
        log.warning("the limit of open files is low, so fewer connections are accepted", connections=limit, files=files)
    return limit


def listen(address: str) -> socket.socket:
    """A socket bound to HOST:PORT; that of `[::]` takes IPv4 connections as well. Raises CannotStart."""
    host, port = host_and_port(address)
    is_both = host == EVERY_ADDRESS
    try:
        if is_both and not socket.has_dualstack_ipv6():
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_both)
    except OSError as error:
        if is_both and error.errno in NO_IPV6:
            instead = f"use --listen {EVERY_IPV4_ADDRESS}:{port} for IPv4 alone"
            raise CannotStart(f"cannot listen on {address}: this machine has no IPv6; {instead}") from None
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(f"cannot listen on {address}: {reason}; stop what uses it or change --listen") from None
