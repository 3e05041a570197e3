"""What is closed leaves nothing behind: a server in a test no connection that nobody has, a node no task."""

import asyncio
import socket
from pathlib import Path

from tests.cluster.closing import close_server
from tests.cluster.running import running_cluster
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


async def test_a_node_that_stopped_leaves_no_task_behind(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with running_cluster(tmp_path, 1):
        pass
    await until(lambda: asyncio.all_tasks() <= before)


async def test_the_times_of_a_configuration_are_those_of_the_core(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, heartbeat_ms=80, election_timeout_ms=2_000) as cluster:
        options = cluster.nodes["n1"].node.components.replica.core.state.options
        assert (options.heartbeat_us, options.election_timeout_us) == (80_000, 2_000_000)
