"""A TCP proxy for the link between two nodes, which a demo can cut and heal."""

import asyncio
from contextlib import suppress

CHUNK_BYTES = 65_536
HOST = "127.0.0.1"


class LinkProxy:
    """Listens on a port of this machine and forwards connections to another port."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def heal(self) -> None:
        """Accept connections. Raises OSError if the port is taken."""
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
            target = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()  # The node is down. The dialler sees a broken connection, as without a proxy.
        else:
            with suppress(asyncio.CancelledError):  # Only `cut` cancels it.
                await self._forward((reader, writer), target)
        finally:
            self._connections.discard(task)

    async def _forward(
        self,
        dialler: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Copy both directions until one ends: nodes never half-close a connection."""
        copies = [asyncio.create_task(_copy(dialler[0], target[1])), asyncio.create_task(_copy(target[0], dialler[1]))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            dialler[1].transport.abort()
            target[1].transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
