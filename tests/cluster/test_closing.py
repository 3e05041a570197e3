"""What is closed leaves nothing behind: a server in a test no connection that nobody has, a node no task."""

import asyncio
import socket
from pathlib import Path

from aiohttp import web

from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from tests.cluster.running import running_cluster
from tests.ports import HOST
from tests.replication.loopback import until


async def test_a_connection_that_is_being_accepted_as_its_listener_closes_is_served() -> None:
    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app, connections = web.Application(), ConnectionLimit()
    app.router.add_get("/", greet)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    listening = socket.create_server((HOST, 0))
    listener = await serve_app(runner, connections, listening)
    with socket.create_connection(listening.getsockname()) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(connections))

        await listener.close()

        assert runner.server is not None
        assert len(runner.server.connections) == len(connections) == 1
        assert (await asyncio.to_thread(caller.recv, 1 << 16)).endswith(b"hello")
    await runner.cleanup()


async def test_a_node_that_stopped_leaves_no_task_behind(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with running_cluster(tmp_path, 1):
        pass
    await until(lambda: asyncio.all_tasks() <= before)


async def test_the_times_of_a_configuration_are_those_of_the_core(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, heartbeat_ms=80, election_timeout_ms=2_000) as cluster:
        options = cluster.nodes["n1"].node.components.replica.core.state.options
        assert (options.heartbeat_us, options.election_timeout_us) == (80_000, 2_000_000)
