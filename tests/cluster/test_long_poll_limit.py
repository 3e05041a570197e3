"""Requests that wait at the end of the log: how many, and what those above the limit cost."""

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web

from quire.cluster.errors import Overloaded
from quire.cluster.http.admission.concurrency import LongPollLimit

LIMIT = 3


class Transport:
    """A caller's connection. It counts how often it is asked whether it closes."""

    def __init__(self) -> None:
        self.closing = False
        self.asked = 0

    def is_closing(self) -> bool:
        self.asked += 1
        return self.closing


class Request:
    """What the limit looks at of a request."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport


async def polls(limit: LongPollLimit, transport: Transport, held: asyncio.Event) -> None:
    request = cast("web.Request", cast("Any", Request(transport)))
    with limit.slot(request, "192.0.2.1"):
        await held.wait()


@pytest.mark.asyncio
async def test_the_refused_of_one_turn_look_at_the_waiting_once_and_the_gone_make_room() -> None:
    limit, held, transports = LongPollLimit(limit=LIMIT), asyncio.Event(), [Transport() for _ in range(LIMIT)]
    waiting = [asyncio.create_task(polls(limit, transport, held)) for transport in transports]
    await asyncio.sleep(0)
    assert len(limit) == LIMIT

    refused = await asyncio.gather(*(polls(limit, Transport(), held) for _ in range(100)), return_exceptions=True)
    assert {str(error) for error in refused if isinstance(error, Overloaded)} == {
        "at most 3 requests of GET /records wait for a record; try again in 1 s"
    }
    assert len(refused) == 100
    assert sum(transport.asked for transport in transports) == LIMIT

    transports[0].closing = True
    waiting.append(asyncio.create_task(polls(limit, Transport(), held)))
    await asyncio.sleep(0)
    assert len(limit) == LIMIT
    held.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ended] == [asyncio.CancelledError, *[type(None)] * LIMIT]
    assert len(limit) == 0
