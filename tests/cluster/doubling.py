"""Something between a caller and a node that delivers answers twice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from quire.replication.address import host_and_port

PIECE_BYTES = 1 << 16


class DoublingRelay:
    """Passes requests on to a node, and its answers back. While it `doubles`, each answer comes twice.

    The copy comes when its connection is used again: there, it is in the place of the answer to the next request. Links
    of peers pass unchanged.
    """

    def __init__(self, node: str) -> None:
        self.address = ""
        self.doubles = False
        self._node = node

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            node_reader, node_writer = await asyncio.open_connection(*host_and_port(self._node))
        except ConnectionError:  # It is not there yet.
            writer.transport.abort()
            return
        answer: list[bytes] = []
        back = asyncio.create_task(_pass_back(node_reader, writer, answer))
        try:
            with suppress(ConnectionError):
                is_link = None
                while piece := await reader.read(PIECE_BYTES):
                    if is_link is None:
                        is_link = piece.startswith(b"GET /peer")
                    if self.doubles and not is_link:
                        writer.write(b"".join(answer))
                    answer.clear()
                    node_writer.write(piece)
        finally:
            back.cancel()
            node_writer.close()
            writer.transport.abort()


async def _pass_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: list[bytes]) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            answer.append(piece)
            writer.write(piece)
    writer.close()


@asynccontextmanager
async def doubling_relay(node: str) -> AsyncGenerator[DoublingRelay]:
    """A relay to a node."""
    relay = DoublingRelay(node)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    try:
        yield relay
    finally:
        server.close()
