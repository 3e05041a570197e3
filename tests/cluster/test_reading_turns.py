"""Connections that go on reading: so many in a turn of the loop, and each of them some time."""

import asyncio
import io
import socket
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

import pytest
from aiohttp import web

from quire.cluster.http.admission.connections import Connection, ConnectionLimit
from quire.cluster.http.admission.reading import RESUMED_IN_TURN, ReadingTurns
from quire.cluster.http.app import serve_app
from tests.replication.loopback import DEADLINE_S, HOST, calling, until

CALLERS = 100
BODY = bytes(2 << 20)


class CountedTurns:
    """The turns of the running loop since it was entered."""

    def __init__(self) -> None:
        self.number = 0

    async def __aenter__(self) -> Self:
        self._next()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._handle.cancel()

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)


@pytest.mark.asyncio
async def test_so_many_go_on_in_a_turn_in_the_order_in_which_they_asked() -> None:
    async with CountedTurns() as turns:
        reading, went_on = ReadingTurns(in_turn=3), list[tuple[int, int]]()

        def go_on(number: int) -> None:
            went_on.append((number, turns.number))

        for number in range(8):
            reading.resume(partial(go_on, number))
        assert [number for number, _ in went_on] == [0, 1, 2], "at once"
        await until(lambda: len(went_on) == 8)
        assert [number for number, _ in went_on] == list(range(8))
        assert sorted(Counter(turn for _, turn in went_on).values()) == [2, 3, 3]
        await asyncio.sleep(0)  # Its last turn.
        reading.resume(partial(go_on, 8))
        assert len(went_on) == 9, "at once again"


@pytest.mark.asyncio
async def test_long_bodies_of_many_callers_are_read_of_so_many_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[int] = []
    go_on = Connection.go_on_reading

    async def take(request: web.Request) -> web.Response:
        if request.path == "/refused":
            return web.Response(status=429)  # The rest of the body is read and dropped.
        return web.json_response(len(await request.read()))

    async with AsyncExitStack() as stack:
        turns = await stack.enter_async_context(CountedTurns())

        def noted(connection: Connection) -> None:
            resumed.append(turns.number)
            go_on(connection)

        monkeypatch.setattr(Connection, "go_on_reading", noted)
        app = web.Application(client_max_size=2 * len(BODY))
        app.router.add_post("/{path}", take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)  # The rest of refused bodies is waited for.
        listening = stack.enter_context(socket.create_server((HOST, 0)))
        server = await serve_app(runner, ConnectionLimit(), listening)
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(server.close)
        session = await stack.enter_async_context(calling())
        url = f"http://{HOST}:{listening.getsockname()[1]}"

        async def post(number: int) -> int:
            async with session.post(f"{url}/{'refused' if number % 2 else 'taken'}", data=io.BytesIO(BODY)) as response:
                assert number % 2 or await response.json() == len(BODY)
                return response.status

        async with asyncio.timeout(DEADLINE_S):
            statuses = await asyncio.gather(*map(post, range(CALLERS)))
    assert Counter(statuses) == {200: CALLERS // 2, 429: CALLERS // 2}
    assert len(resumed) > 4 * CALLERS, "the server calls it whenever a connection goes on"
    # What is counted as one turn here may be parts of two.
    assert max(Counter(resumed).values()) <= 2 * RESUMED_IN_TURN
