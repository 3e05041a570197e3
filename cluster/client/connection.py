"""What one client holds while it is open: the transport of its requests, and the stream of its commands."""

import os
from collections.abc import Coroutine, Sequence
from typing import Protocol, TypeVar

from quire.replication.address import host_and_port

from ..access.client_credentials import ClientCredentials
from .forks import closed, opened, refuse_fork
from .pipeline import Pipeline
from .stream import CommandStream
from .transport import MSGPACK, Reply, Transport

Result = TypeVar("Result")

NOT_OPEN = "the client is not open; use it as in: async with quire.connect(...) as cluster"


def servers_of(servers: str | Sequence[str]) -> tuple[str, ...]:
    """The servers that a caller named, HOST:PORT, comma-separated or as a sequence. Raises ValueError."""
    given = servers.split(",") if isinstance(servers, str) else servers
    named = tuple(server.strip() for server in given if server.strip())
    if not named:
        raise ValueError("name at least one server, as in 127.0.0.1:7001,127.0.0.1:7002")
    for server in named:
        check_server(server)
    return named


def check_server(server: str) -> None:
    """Raise ValueError for a server that is not HOST:PORT, in the words of the command line."""
    try:
        host_and_port(server)
    except ValueError as error:
        if "://" not in server:
            raise
        raise ValueError(f"{error}, without a scheme; for TLS, give the CA with --ca, QUIRE_CA or ca=") from None


class Connection:
    """A client's connection to the cluster, for one event loop. Calls may run concurrently.

    It belongs to the process that opened it: in a forked child its calls raise ForkedClient.
    """

    def __init__(
        self,
        servers: Sequence[str],
        session: str | None,
        timeout_s: float,
        credentials: ClientCredentials,
        *,
        halt_on_failure: bool,
        refused_grace_s: float,
    ) -> None:
        self.timeout_s = timeout_s
        self._refused_grace_s = refused_grace_s
        self.servers = servers
        self._credentials = credentials
        self._name = session
        self._halts = halt_on_failure
        self._transport: Transport | None = None
        self._stream: CommandStream | None = None
        self._opened_in: int | None = None

    def open(self) -> None:
        """Open it, in this process and on the running loop. Nothing is sent before the first call."""
        self._opened_in = os.getpid()
        self._transport = Transport(self.servers, self.timeout_s, self._credentials, self._refused_grace_s)
        pipeline = Pipeline(self.timeout_s, halt_on_failure=self._halts)
        self._stream = CommandStream(self._transport, pipeline, self._name)
        opened(self)

    async def close(self, *, drain: bool) -> None:
        """Close the stream, an unnamed session and the transport. With `drain`, wait for outstanding answers first.

        In a forked child it does nothing: they belong to the parent.
        """
        closed(self)
        transport, self._transport = self._transport, None
        stream, self._stream = self._stream, None
        if transport is None or stream is None:
            return
        try:
            await stream.close(drain=drain)
        finally:
            await transport.close()

    def forked(self) -> None:
        """In a child, every call from here on raises ForkedClient. The transport closes its copied sockets itself."""
        # Their finalizers would report them as unclosed.
        self._left_to_parent = self._transport, self._stream
        self._transport = self._stream = None

    @property
    def stream(self) -> CommandStream:
        """The stream of commands. Raises ForkedClient, and RuntimeError while it is not open."""
        if self._stream is None:
            refuse_fork(self._opened_in)
            raise RuntimeError(NOT_OPEN)
        return self._stream

    async def get(self, path: str, *, server: str | None = None, awaits_record: bool = False) -> Reply:
        """The reply to a read, of `server` if it is given. Raises as `Transport.call`."""
        return await self.call("GET", path, server=server, awaits_record=awaits_record)

    async def change(self, path: str, body: bytes | None = None, *, server: str | None = None) -> Reply:
        """The reply to a change that an operator may safely repeat. Raises as `Transport.call`."""
        content_type = None if body is None else MSGPACK
        return await self.call(
            "POST", path, writes=True, repeatable=True, body=body, content_type=content_type, server=server
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        writes: bool = False,
        repeatable: bool = False,
        body: bytes | None = None,
        content_type: str | None = None,
        server: str | None = None,
        accept: str = MSGPACK,
        awaits_start: bool = False,
        awaits_record: bool = False,
    ) -> Reply:
        """The reply to a request, in `accept` or JSON. Raises as `Transport.call` and `stream`, and ValueError for a
        `server` that is not HOST:PORT.
        """
        if server is not None:
            check_server(server)
        if self._transport is None:
            refuse_fork(self._opened_in)
            raise RuntimeError(NOT_OPEN)
        headers = {"Accept": accept}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return await self._transport.call(
            method,
            path,
            writes=writes,
            repeatable=repeatable,
            body=body,
            headers=headers,
            server=server,
            awaits_start=awaits_start,
            awaits_record=awaits_record,
        )


class Run(Protocol):
    """Runs a call on a client's loop, and returns its result to a thread without one."""

    def __call__(self, call: Coroutine[object, object, Result], /) -> Result: ...
