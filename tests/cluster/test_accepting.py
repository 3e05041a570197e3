"""How many connections a node's server accepts in a turn of the loop."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
import uvloop
from aiohttp import web
from structlog.testing import capture_logs

from quire.cluster.http import listener
from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from quire.cluster.http.listener import ACCEPTED_IN_TURN
from tests.replication.loopback import until

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


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_for_which_there_is_no_room_is_told_so(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> bytes:
        async with AsyncExitStack() as stack:
            listening = stack.enter_context(socket.create_server((HOST, 0)))
            address = listening.getsockname()
            runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
            server = await serve_app(runner, ConnectionLimit(limit=0, reserve=0), listening)
            stack.push_async_callback(runner.cleanup)
            stack.push_async_callback(server.close)
            async with asyncio.timeout(DEADLINE_S):
                reader, writer = await asyncio.open_connection(*address)
                stack.callback(writer.close)
                return await reader.read()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        answer = runner.run(test())

    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 1" in answer


class NoDescriptors(socket.socket):
    """A listening socket that cannot accept at first, as in a process that may open no more files."""

    failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_comes_while_no_descriptor_is_left_waits_until_one_is(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_S", 0.01)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            listening = stack.enter_context(NoDescriptors())
            listening.bind((HOST, 0))
            runner, connections = web.AppRunner(web.Application(), shutdown_timeout=0.1), ConnectionLimit()
            server = await serve_app(runner, connections, listening)
            stack.push_async_callback(runner.cleanup)
            stack.push_async_callback(server.close)
            stack.enter_context(socket.create_connection(listening.getsockname()))
            await until(lambda: len(connections), within_s=DEADLINE_S)

    with capture_logs() as entries, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())

    said = ("no connection can be accepted", os.strerror(errno.EMFILE).lower())
    assert [(entry["event"], entry["why"]) for entry in entries] == [said] * 3
