"""A link between two nodes that a demo can cut and heal: bytes are passed on, or every connection is closed."""

import asyncio
from contextlib import suppress

CHUNK_BYTES = 65_536
HOST = "127.0.0.1"


class Relay:
    """Listens on a port of this machine and passes what connects there on to another."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def heal(self) -> None:
        """Accept connections. Raises OSError where the port is taken."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self.port)

    async def cut(self) -> None:
        """Close every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._connections.add(task)
        try:
            there = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()  # The node is not there; who dialled learns that as without a relay.
        else:
            with suppress(asyncio.CancelledError):  # By `cut` alone.
                await self._carry((reader, writer), there)
        finally:
            self._connections.discard(task)

    async def _carry(
        self,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Both directions, until one ends: a node never closes half of a connection."""
        ways = [asyncio.create_task(_pass_on(here[0], there[1])), asyncio.create_task(_pass_on(there[0], here[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            here[1].transport.abort()
            there[1].transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
