"""What a client says, and when, of a cluster that is down: every server with its own cause.

A client that was never served fails within a short grace; one that was waits, for its cluster comes back.
"""

import asyncio
import logging
import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

import quire
from quire.cluster.client import Client, OutcomeUnknown, Unavailable, connect, connect_sync
from quire.cluster.client.attempts import ABSENT, UNKNOWN_NAME, cause_of
from quire.cluster.client.transport import REFUSED_GRACE_S
from quire.replication.address import host_and_port
from tests.cluster.scripted import Step, appended, document, refusing, scripted, silent
from tests.cluster.test_client import STATE
from tests.ports import HOST, free_ports
from tests.replication.loopback import until

GRACE_S = 0.05
WAITING_S = 60.0  # A call that waits for its deadline fails the test.
TEST_S = 30.0

Call = Callable[[Client], Awaitable[Any]]
CALLS: list[Call] = [
    lambda client: client.append("x"),
    lambda client: client.apply("x"),
    lambda client: client.session(),
    lambda client: client.state(),
    lambda client: client.transfer("n2"),
    lambda client: anext(client.tail(0)),
]


def closed_ports(count: int) -> list[str]:
    """Different addresses at which nobody listens."""
    return [f"{HOST}:{port}" for port in free_ports(count)]


def closed_port() -> str:
    """One of them."""
    return closed_ports(1)[0]


async def after_failure(start: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture) -> None:
    """Start something once an attempt of a client failed."""
    await until(lambda: "attempt 1 failed" in caplog.text)
    await start()


def no_majority(leaderless_s: float, why: str = "1 of 3 voters is no majority: start n2 or n3") -> Step:
    """A node that has heard no leader for so long, and reaches too few voters for one."""
    return refusing(503, "no-leader", no_majority=why, leaderless_s=leaderless_s)


# A client that was never served


@pytest.mark.parametrize("call", [*CALLS, lambda client: client.status()])
async def test_a_call_of_a_client_never_served_fails_soon_if_all_refuse_and_names_each(call: Call) -> None:
    servers = closed_ports(3)
    async with connect(servers, timeout_s=WAITING_S, refused_grace_s=GRACE_S) as cluster, asyncio.timeout(TEST_S):
        with pytest.raises(Unavailable) as down:
            await call(cluster)

    first, second, third = servers
    assert down.value.reason == f"no server answers: {first}, {second} and {third} refuse connections"


async def test_it_fails_soon_again_for_the_next_command_and_serves_one_once_a_node_is_there() -> None:
    address = closed_port()
    async with connect(address, timeout_s=WAITING_S, refused_grace_s=GRACE_S) as cluster, asyncio.timeout(TEST_S):
        for _ in range(2):
            with pytest.raises(Unavailable, match="no server answers"):
                await cluster.apply("x")
        async with scripted(appended(7), port=host_and_port(address)[1]):
            assert await cluster.append("x") == 7


def test_the_grace_is_short_unless_the_caller_gives_another() -> None:
    assert REFUSED_GRACE_S <= 3


async def test_nodes_that_start_within_the_grace_serve_the_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "quire.client")
    address = closed_port()
    async with (
        connect(address, timeout_s=WAITING_S) as cluster,
        asyncio.timeout(TEST_S),
        running_after_a_failure(address, appended(7), caplog),
    ):
        assert await cluster.append("x") == 7


@asynccontextmanager
async def running_after_a_failure(
    address: str, step: Step, caplog: pytest.LogCaptureFixture
) -> AsyncGenerator[None, None]:
    """In the block, a server starts once an attempt of a client failed."""
    left = asyncio.Event()

    async def serve() -> None:
        async with scripted(step, port=host_and_port(address)[1]):
            await left.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after_failure(serve, caplog))
        yield
        left.set()


async def test_a_node_may_start_while_a_caller_waits_for_it_to_be_ready(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "quire.client")
    address = closed_port()
    async with (
        connect(address, timeout_s=WAITING_S, refused_grace_s=0) as cluster,
        asyncio.timeout(TEST_S),
        running_after_a_failure(address, document({"ready": True}), caplog),
    ):
        assert await cluster.ready(address)


@pytest.mark.parametrize("call", CALLS)
async def test_voters_that_are_no_majority_for_longer_than_the_grace_are_told_at_once(call: Call) -> None:
    down = closed_ports(2)
    async with (
        scripted(no_majority(WAITING_S)) as server,
        connect([server.address, *down], timeout_s=WAITING_S, refused_grace_s=WAITING_S) as cluster,
        asyncio.timeout(TEST_S),
    ):
        with pytest.raises(Unavailable) as failure:
            await call(cluster)

    refuse = f"{down[0]} and {down[1]} refuse connections"
    why = "1 of 3 voters is no majority: start n2 or n3"
    assert failure.value.reason == f"{server.address} knows no leader; {refuse}: {why}"


async def test_so_it_is_by_all_nodes_that_answer_and_by_the_only_one_that_the_client_knows() -> None:
    why = "2 of 4 voters are no majority: start n3 or n4"
    async with scripted(no_majority(60.0, why)) as one, scripted(no_majority(61.0, why)) as other:
        for servers, know in (
            ([one.address], f"{one.address} knows"),
            ([one.address, other.address], f"{one.address} and {other.address} know"),
        ):
            async with connect(servers, timeout_s=WAITING_S) as cluster, asyncio.timeout(TEST_S):
                with pytest.raises(Unavailable, match=rf"{know} no leader: {why}$"):
                    await cluster.append("x")


async def test_a_node_s_status_does_not_show_that_its_cluster_works() -> None:
    async with (
        scripted(document({"node_id": "n1"}), no_majority(WAITING_S)) as server,
        connect(server.address, timeout_s=WAITING_S) as cluster,
        asyncio.timeout(TEST_S),
    ):
        assert (await cluster.status())["node_id"] == "n1"
        with pytest.raises(Unavailable, match=r"1 of 3 voters is no majority: start n2 or n3$"):
            await cluster.apply("x")


async def test_a_cluster_whose_nodes_are_being_started_is_waited_for() -> None:
    starting = [no_majority(REFUSED_GRACE_S - 1), refusing(503, "no-leader"), appended(7)]
    async with scripted(*starting) as server, connect(server.address, timeout_s=WAITING_S) as cluster:
        async with asyncio.timeout(TEST_S):
            assert await cluster.append("x") == 7


async def test_a_client_whose_grace_has_no_end_waits_for_a_cluster_that_restarts() -> None:
    async with (
        scripted(no_majority(1e9), no_majority(1e9), appended(7)) as server,
        connect(server.address, timeout_s=WAITING_S, refused_grace_s=math.inf) as cluster,
    ):
        assert await asyncio.wait_for(cluster.append("x"), TEST_S) == 7


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(refusing(503, "no-leader"), id="reaches enough voters, or has just started"),
        pytest.param(no_majority(0.1), id="has heard a leader lately"),
        pytest.param(refusing(503, "leader-not-serving"), id="knows more"),
    ],
)
async def test_it_is_not_told_while_another_node_answers_otherwise(other: Step) -> None:
    async with scripted(no_majority(WAITING_S)) as one, scripted(other, other, appended(7)) as second:
        servers = [one.address, second.address]
        async with connect(servers, timeout_s=WAITING_S) as cluster, asyncio.timeout(TEST_S):
            assert await cluster.append("x") == 7


async def test_it_waits_until_the_deadline_if_the_others_may_be_a_majority() -> None:
    down = closed_port()
    async with (
        scripted(refusing(503, "no-leader")) as server,
        connect([server.address, down], timeout_s=0.5, refused_grace_s=0) as cluster,
    ):
        with pytest.raises(Unavailable, match=rf"knows no leader; {down} refuses connections, for 0\.5 s$"):
            await cluster.append("x")


async def test_a_server_that_is_silent_may_be_slow_and_is_named_beside_those_that_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", 0.1)
    down = closed_port()
    async with silent() as slow, connect([slow, down], timeout_s=2.0, refused_grace_s=0) as cluster:
        with pytest.raises(Unavailable, match=rf"{down} refuses connections; {slow} (is silent|did not .*s), for 2 s$"):
            await cluster.state()


async def test_a_server_that_was_not_asked_in_time_is_named_as_such() -> None:
    down = closed_port()
    async with silent() as slow, connect([slow, down], timeout_s=0.2) as cluster:
        with pytest.raises(Unavailable, match=rf"{slow} did not answer .*s; {down} was not asked in time, for 0\.2 s$"):
            await cluster.state()


# A client that was served


async def test_a_client_that_was_served_waits_for_its_cluster_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "quire.client")
    address = closed_port()
    async with connect(address, timeout_s=WAITING_S, refused_grace_s=0) as cluster, asyncio.timeout(TEST_S):
        async with scripted(STATE, port=host_and_port(address)[1]):
            await cluster.state()
        async with running_after_a_failure(address, STATE, caplog):
            assert (await cluster.state()).state == "45"


async def test_a_client_that_was_served_says_at_its_deadline_what_each_server_did() -> None:
    address, refusing_one = closed_ports(2)
    async with connect([address, refusing_one], timeout_s=0.5, refused_grace_s=0) as cluster:
        async with scripted(STATE, port=host_and_port(address)[1]):
            await cluster.state()
        calls: list[Call] = [lambda client: client.state(), lambda client: client.apply("x")]
        for call in calls:
            with pytest.raises(Unavailable, match=f"{address} and {refusing_one} refuse connections, for 0.5 s$"):
                await call(cluster)


async def vanishing() -> str:
    """The address of a server that takes one request, answers nothing, and is gone."""

    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening.close()
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    listening = await asyncio.start_server(vanish, "127.0.0.1", 0)
    return f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_a_session_that_may_have_been_opened_is_waited_for_although_then_nobody_is_there() -> None:
    address = await vanishing()
    async with connect(address, session="billing", timeout_s=0.5, refused_grace_s=0) as cluster:
        with pytest.raises(Unavailable, match=f"{address} refuses connections, for 0.5 s$"):
            await cluster.session()


async def test_a_change_that_was_sent_is_unknown_although_then_nobody_is_there() -> None:
    address = await vanishing()
    async with connect(address, timeout_s=WAITING_S, refused_grace_s=0) as cluster, asyncio.timeout(TEST_S):
        with pytest.raises(OutcomeUnknown, match=f"an attempt got no answer; .*{address} refuses connections"):
            await cluster.transfer("n2")


# Servers that are none


@pytest.mark.parametrize("server", ["localhost", "h:0", "h:70000", "h:", ":7001", "http://h:1", "h:1/path", "a b:1"])
@pytest.mark.parametrize("make", [connect, connect_sync, lambda server: connect(["127.0.0.1:7001", server])])
def test_a_server_that_is_not_host_and_port_is_refused_at_once(server: str, make: Callable[[str], object]) -> None:
    with pytest.raises(
        ValueError, match=r"is not HOST:PORT with a port from 1 to 65535; write it as in 127\.0\.0\.1:7001"
    ):
        make(server)


@pytest.mark.parametrize("make", [quire.connect, quire.connect_sync])
def test_a_url_in_place_of_a_server_is_refused_with_what_to_give_for_tls(make: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match=r"127.0.0.1:7001, without a scheme; for TLS, give the CA with .* or ca="):
        make("https://h:1")


async def test_the_server_of_one_call_is_checked_too() -> None:
    async with connect("127.0.0.1:7001") as cluster:
        with pytest.raises(ValueError, match="'n1' is not HOST:PORT"):
            await cluster.status("n1")


def test_a_host_name_that_nobody_knows_is_a_cause_of_its_own() -> None:
    key = ConnectionKey("nowhere", 1, False, True, None, None, None, None)
    error = aiohttp.ClientConnectorDNSError(key, socket.gaierror(-2, "Name or service not known"))

    assert cause_of(error, 1.0) is UNKNOWN_NAME
    assert UNKNOWN_NAME in ABSENT
