"""A server that is closed in a test leaves no connection behind that nobody has."""

import asyncio
import socket

from tests.cluster.closing import close_server
from tests.ports import HOST
from tests.replication.loopback import until


class Counted(asyncio.Protocol):
    """Notes that it was given a connection, and hangs up."""

    def __init__(self, taken: list[asyncio.BaseTransport]) -> None:
        self._taken = taken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._taken.append(transport)
        transport.close()


async def test_a_connection_that_is_being_taken_as_its_server_is_closed_is_served() -> None:
    taken: list[asyncio.BaseTransport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Counted(taken), HOST, 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        tasks = len(asyncio.all_tasks())
        await until(lambda: len(asyncio.all_tasks()) > tasks)  # The first step has made a task of the second.

        await close_server(server)

        await until(lambda: taken)
