"""How many connections a node's server accepts in a turn of the loop."""

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack

import uvloop
from aiohttp import web

from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from quire.cluster.http.listener import ACCEPTED_IN_TURN

HOST = "127.0.0.1"
CALLERS = 8 * ACCEPTED_IN_TURN
DEADLINE_S = 60.0


async def turns_to_accept_all(callers: ExitStack) -> int:
    """How many turns of the loop a server needs to accept callers that have come before it listened."""
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(socket.create_server((HOST, 0), backlog=CALLERS))
        for _ in range(CALLERS):
            callers.enter_context(socket.create_connection(listening.getsockname()))
        runner, connections = web.AppRunner(web.Application(), shutdown_timeout=0.1), ConnectionLimit()
        server = await serve_app(runner, connections, listening)
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(server.close)
        turns = 0
        async with asyncio.timeout(DEADLINE_S):
            while len(connections) < CALLERS:
                turns += 1
                await asyncio.sleep(0)
        return turns


def test_those_who_come_together_are_accepted_many_in_a_turn() -> None:
    with ExitStack() as callers, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        turns = runner.run(turns_to_accept_all(callers))

    assert turns <= 2 * CALLERS / ACCEPTED_IN_TURN
