"""Requests with one thing changed: none is answered 500, and none leaves anything in the journal or in memory."""

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import ROUTES, serve_app
from quire.replication.address import host_and_port
from tests.cluster.logs import ServedLog, served
from tests.cluster.malformed.asked import NODE, STANDALONE, Known, changes_of_request
from tests.cluster.malformed.case import Ask
from tests.cluster.malformed.harmless import GROWTH_BYTES, no_faults, resident
from tests.cluster.malformed.wire import NOT_TEXT, changed_headers
from tests.cluster.running import Reply, RunningCluster, free_addresses, running_cluster

SEED = 38
DEADLINE_S = 60.0
CONTINUE = b"HTTP/1.1 100 "
REQUESTS = 10_000
REMOVAL = ("DELETE", "/members/n2")
"""A good request: the node would stop."""
Asking = Callable[[Ask], Awaitable[Reply]]
SHARE = float(os.environ.get("CHANGED_MESSAGES", "0.3"))  # `make soak-messages` makes all of them.
SOME_OR_MORE = pytest.mark.parametrize("keep", [0.02, pytest.param(SHARE, marks=pytest.mark.full)])


def test_every_route_of_a_node_is_asked() -> None:
    assert {(route.method, route.path) for route in ROUTES} == {(known.method, known.path) for known in NODE}


async def ask_all(ask: Asking, known: Sequence[Known], keep: float) -> Counter[int]:
    """The statuses of the answers to all changes of these requests."""
    statuses: Counter[int] = Counter()
    for number, route in enumerate(known):
        chance = random.Random(f"{SEED} {number}")
        for what, changed in changes_of_request(route, chance):
            if chance.random() < keep and (changed.method, changed.path) != REMOVAL:
                reply = await ask(changed)
                assert reply.status not in (500, 502), (what, changed, reply)
                statuses[reply.status] += 1
    return statuses


@SOME_OR_MORE
async def test_a_request_with_one_thing_changed_is_never_answered_500(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    statuses: Counter[int] = Counter()
    with no_faults(caplog):
        async with running_cluster(tmp_path) as cluster:
            for node_id in ("n1", "n2"):
                before = resident()
                statuses += await ask_all(partial(asked, cluster, node_id), NODE, keep)
                if statuses.total() > REQUESTS // 2 and node_id == "n2":  # n1 was the warm-up.
                    assert resident() - before < GROWTH_BYTES
            assert all(running.node.health.failure is None for running in cluster.nodes.values())
            await cluster.ready()
            leader = next(node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader)
            await cluster.commands(leader, ["add", 1])

    assert {200, 400} <= statuses.keys()
    assert statuses.total() >= REQUESTS * keep


@SOME_OR_MORE
async def test_a_standalone_log_never_answers_500_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    with no_faults(caplog):
        async with served(tmp_path) as log:
            asking = partial(asked_of_log, log)
            statuses = await ask_all(asking, STANDALONE, keep)
            assert (await log.append(b"raw bytes")).status == 200

    assert {200, 400} <= statuses.keys()


async def send_changed_headers(address: str, keep: float) -> Counter[int]:
    """The statuses of the answers to headers of any bytes. Each name is sent with a byte above 0x7f."""
    chance, statuses = random.Random(SEED), Counter[int]()
    for value, request in changed_headers():
        if value == NOT_TEXT or chance.random() < keep:
            status, head = await answered(address, request)
            assert status not in (500, 502, 504), (request, head)
            assert b"text/plain" not in head, (request, head)
            statuses[status] += 1
    return statuses


async def answered(address: str, request: bytes) -> tuple[int, bytes]:
    """The status and the head of the answer to raw bytes; what is sent before it (100) is passed over."""
    reader, writer = await asyncio.open_connection(*host_and_port(address), limit=1 << 18)
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(request)
            head = CONTINUE
            while head.startswith(CONTINUE):
                head = await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split()[1]), head


@SOME_OR_MORE
async def test_no_bytes_of_a_header_are_answered_500(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    with no_faults(caplog):
        async with running_cluster(tmp_path, 1) as cluster:
            statuses = await send_changed_headers(cluster.address("n1"), keep)

    assert {101, 200, 400, 403, 404, 405, 417} <= statuses.keys()


@SOME_OR_MORE
async def test_no_bytes_of_a_header_are_answered_500_by_a_standalone_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    with no_faults(caplog):
        async with served(tmp_path) as log:
            statuses = await send_changed_headers(log.url.removeprefix("http://"), keep)

    assert {200, 400, 403, 404, 405, 417} <= statuses.keys()


class Unresolvable(web.PlainResource):
    """aiohttp fails on a request for it, as it may on any part of a request that it reads before a middleware."""

    async def resolve(self, request: web.Request) -> Any:
        raise ValueError(request.path)


async def test_a_request_on_which_aiohttp_fails_before_any_middleware_gets_400(
    caplog: pytest.LogCaptureFixture,
) -> None:
    application = web.Application()
    application.router.register_resource(Unresolvable("/x"))
    runner = web.AppRunner(application)
    connections = ConnectionLimit()
    [address] = free_addresses(1)
    with no_faults(caplog):
        server = await serve_app(runner, connections, socket.create_server(host_and_port(address)))
        try:
            answers = [await answered(address, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(3)]
        finally:
            await server.close()
            await runner.cleanup()

    assert [status for status, _ in answers] == [400] * 3
    assert all(b"application/problem+json" in head for _, head in answers)


async def asked(cluster: RunningCluster, node_id: str, ask: Ask) -> Reply:
    return await cluster.ask(node_id, ask.method, ask.path, ask.body, ask.content_type, ask.headers)


async def asked_of_log(log: ServedLog, ask: Ask) -> Reply:
    sent = {**ask.headers, **({} if ask.content_type is None else {"Content-Type": ask.content_type})}
    return await log.call(ask.method, ask.path, data=ask.body, headers=sent)
