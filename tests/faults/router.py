"""Routes `/peer` and `/peer/stream`, which share a port, apart: reads a connection's first line and relays the rest.

toxiproxy sees ports alone. With a proxy for each of the two behind a router, the control plane can starve while the
log flows, and the reverse. A router adds no fault of its own: it passes on bytes, ends of one direction and broken
connections, and reads no faster than the other side takes.

Of nodes that speak TLS a router has the certificates: it stands in for the dialled one before the dialler, and for the
dialler before the dialled one. So it sees the paths, and each proxy, behind it, passes on what is encrypted.
"""

import asyncio
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.ports import HOST

FIRST_LINE_BYTES = 8_192
CHUNK_BYTES = 65_536
FIRST_LINE_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0
GONE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@dataclass(frozen=True)
class StandIn:
    """What a router needs between two nodes that speak TLS."""

    dialled: ssl.SSLContext
    """The dialled node's, for its peers."""
    dialler: ssl.SSLContext
    """The dialler's, for dialling."""
    dialled_name: str
    """The name that the dialled node proves."""


class Router:
    """One listening port; `ports` says where each path leads, and "" where every other does."""

    def __init__(self, ports: Mapping[str, int], stand_in: StandIn | None = None) -> None:
        self._ports = dict(ports)
        self._stand_in = stand_in
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], int] = {}
        self._silent: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        """Listen. Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(
            self._serve,
            HOST,
            port,
            limit=FIRST_LINE_BYTES,
            ssl=None if self._stand_in is None else self._stand_in.dialled,
        )

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def silence(self, ports: Collection[int]) -> None:
        """Pass nothing more on what is established to these ports, not even its end. New connections pass."""
        for connection, port in self._connections.items():
            if port in ports:
                self._silent.add(connection)

    async def break_silent(self) -> None:
        """Break the connections that were silenced and are still there."""
        silent, self._silent = self._silent, set()
        for connection in silent:
            connection.cancel()
        await asyncio.gather(*silent, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = 0
        task.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(FIRST_LINE_TIMEOUT_S):
                line = await reader.readuntil(b"\r\n")
            self._connections[task] = port = self.port_for(line)
            there = await self._dial(port)
        except GONE:
            writer.transport.abort()
            return
        there[1].write(line)
        try:
            await asyncio.gather(
                self._relay(task, reader, there[1], writer), self._relay(task, there[0], writer, there[1])
            )
        except asyncio.CancelledError:
            return  # By `close` alone.
        finally:
            writer.close()
            there[1].close()

    async def _dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._stand_in is None:
            return await asyncio.open_connection(HOST, port)
        return await asyncio.open_connection(
            HOST,
            port,
            ssl=self._stand_in.dialler,
            server_hostname=self._stand_in.dialled_name,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        )

    def port_for(self, line: bytes) -> int:
        """Where a request with this first line goes."""
        _, _, target = line.decode("latin-1").partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        return self._ports.get(path, self._ports[""])

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._silent.discard(task)

    async def _relay(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        """One direction to its end; a connection that breaks on one side breaks on both."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                if task in self._silent:
                    break
                writer.write(data)
                await writer.drain()
            if task in self._silent:
                await _for_ever()
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()  # With TLS, no connection is half open.
        except (OSError, RuntimeError):  # uvloop says RuntimeError of a transport that was closed meanwhile
            if task in self._silent:
                await _for_ever()
            writer.transport.abort()
            other.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            other.transport.abort()
            raise


async def _for_ever() -> None:
    """Until it is cancelled."""
    await asyncio.get_running_loop().create_future()
