"""The client follows the leader, retries only what provably had no effect, and raises the right error otherwise."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from quire.cluster.client import (
    BadRequest,
    Client,
    ClientError,
    CommandRefused,
    NotFound,
    OutcomeUnknown,
    ServerFault,
    Unavailable,
    connect,
)
from quire.cluster.client.attempts import BACKOFF_FIRST_S, BACKOFF_LONGEST_S, RETRY_SPREAD, Backoff
from quire.cluster.http.problems import problem
from tests.cluster.scripted import LINE, Step, appended, broken, document, foreign, lines, refusing, scripted, silent
from tests.cluster.turning import late
from tests.replication.loopback import until

STATE = document({"state": "45", "applied_index": 8, "digest": "00" * 16})


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_append_returns_the_index() -> None:
    async with scripted(appended(7)) as server, connect(server.address) as cluster:
        assert await cluster.append(["add", 3]) == 7
        assert [request[:2] for request in server.requests] == [("POST", "/records")]


async def test_a_record_that_check_refuses_raises_without_an_index() -> None:
    step = refusing(422, "commands-refused", refused=[[0, "DIVISION_BY_ZERO", "cannot divide by 0"]])
    async with scripted(step) as server, connect(server.address) as cluster:
        with pytest.raises(CommandRefused) as refused:
            await cluster.append(["div", 0])
        assert len(server.requests) == 1

    assert (refused.value.code, refused.value.index) == ("DIVISION_BY_ZERO", None)


async def test_a_write_is_retried_while_nothing_was_written() -> None:
    steps = [refusing(503, "no-leader"), refusing(503, "leader-unreachable"), appended(7)]
    async with scripted(*steps) as server, connect(server.address) as cluster:
        assert await cluster.append(["add", 3]) == 7
        assert len(server.requests) == 3


def test_clients_that_are_refused_together_do_not_return_together() -> None:
    asked = 4.0
    waits = [Backoff("call").next_s(asked) for _ in range(100)]

    assert all(asked <= wait <= asked * (1 + RETRY_SPREAD) for wait in waits), waits
    assert len(set(waits)) > 90
    assert max(waits) - min(waits) > asked * RETRY_SPREAD / 4


@pytest.mark.parametrize("asked", [None, 0.0])
def test_the_waits_double_from_the_first_to_the_longest_where_a_server_names_no_time(asked: float | None) -> None:
    backoff = Backoff("call")
    waits = [backoff.next_s(asked) for _ in range(2000)]

    for failures, wait in enumerate(waits):
        least = BACKOFF_FIRST_S * 2 ** min(failures, 20)
        assert min(least, BACKOFF_LONGEST_S) <= wait <= min(least + BACKOFF_FIRST_S, BACKOFF_LONGEST_S)


async def test_a_call_does_not_wait_beyond_its_deadline_for_a_server_that_asks_for_more() -> None:
    def busy(_request: web.Request) -> web.Response:
        response = problem(429, "overloaded", "title", "detail", {})
        response.headers["Retry-After"] = "3600"
        return response

    async with scripted(busy) as server, connect(server.address, timeout_s=0.1) as cluster:
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="answered 429"):
                await cluster.append(["add", 3])
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "step",
    [
        broken,
        refusing(504, "outcome-unknown"),
        refusing(500, "internal"),
        refusing(500, "machine-failed"),  # The machine may have failed after the write.
        foreign(400),
        foreign(404),
        foreign(408),
        foreign(429),
        foreign(502),
        foreign(503),
        foreign(504),
    ],
)
async def test_a_write_whose_outcome_is_unknown_is_never_retried(step: object) -> None:
    async with (
        scripted(step) as server,  # type: ignore[arg-type]
        scripted(appended(7)) as other,
        connect([server.address, other.address]) as cluster,
    ):
        with pytest.raises(OutcomeUnknown):
            await cluster.append(["add", 3])
        assert len(server.requests) == 1
        assert other.requests == []


@pytest.mark.parametrize(
    "unanswered", [broken, refusing(504, "outcome-unknown"), refusing(500, "internal"), foreign(502)]
)
@pytest.mark.parametrize("last", [refusing(404, "node-unknown"), refusing(400, "malformed")])
async def test_a_change_that_may_be_repeated_is_unknown_once_an_attempt_was_not_answered(
    unanswered: Step, last: Step
) -> None:
    changes: list[Callable[[Client, str], Awaitable[Any]]] = [
        lambda client, _: client.transfer("n2"),
        lambda client, _: client.membership.promote("n2"),
        lambda client, server: client.take_snapshot(server),
        lambda client, server: client.expire(server),
        lambda client, server: client.code.accept(server),
    ]
    for change in changes:
        async with scripted(unanswered, last) as server, connect(server.address) as cluster:
            with pytest.raises(OutcomeUnknown, match="an attempt got no answer"):
                await change(cluster, server.address)
            with pytest.raises(BadRequest):
                await change(cluster, server.address)


async def test_a_change_that_no_server_takes_in_time_is_unknown_only_if_an_attempt_was_not_answered() -> None:
    unavailable = refusing(503, "no-leader")
    async with scripted(broken, unavailable) as server, connect(server.address, timeout_s=0.5) as cluster:
        with pytest.raises(OutcomeUnknown):
            await cluster.transfer("n2")
        with pytest.raises(Unavailable):
            await cluster.transfer("n2")


async def test_a_change_that_may_be_repeated_succeeds_although_an_attempt_was_not_answered() -> None:
    async with scripted(broken, document({"leader": "n2"})) as server, connect(server.address) as cluster:
        assert await cluster.transfer("n2") == "n2"
        assert len(server.requests) == 2


async def test_a_write_that_gets_no_answer_in_time_has_an_unknown_outcome() -> None:
    heard = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server, connect("{}:{}".format(*server.sockets[0].getsockname())) as cluster:
        written = asyncio.create_task(cluster.append(["add", 3]))
        await late(heard.is_set)
        with pytest.raises(OutcomeUnknown):
            await written


async def test_a_write_goes_to_the_next_server_if_one_cannot_be_reached() -> None:
    async with scripted(appended(7)) as server, connect(f"{closed_port()},{server.address}") as cluster:
        assert await cluster.append(["add", 3]) == 7


async def test_a_write_that_reaches_no_server_fails_as_unavailable_before_the_deadline() -> None:
    async with connect(closed_port(), timeout_s=1.0) as cluster:
        with pytest.raises(Unavailable, match="refuses connections, for 1 s"):
            await cluster.append(["add", 3])


async def test_the_leader_that_an_answer_names_is_asked_next() -> None:
    async with (
        scripted(appended(2)) as leader,
        scripted(appended(1, leader=leader.address)) as follower,
        connect(follower.address) as cluster,
    ):
        assert [await cluster.append(["add", 1]) for _ in range(3)] == [1, 2, 1]


async def test_a_client_that_cannot_reach_the_leader_returns_to_the_servers_it_was_given() -> None:
    async with scripted(appended(1, leader=closed_port())) as server, connect(server.address) as cluster:
        assert [await cluster.append(["add", 1]) for _ in range(3)] == [1, 1, 1]
        assert len(server.requests) == 3


@pytest.mark.parametrize("step", [broken, refusing(504, "outcome-unknown"), refusing(503, "no-leader"), foreign(502)])
async def test_a_read_is_retried_after_every_failure(step: object) -> None:
    async with scripted(step, STATE) as server, connect(server.address) as cluster:  # type: ignore[arg-type]
        assert (await cluster.state()).state == "45"


async def test_a_read_goes_to_another_server_if_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", 0.1)
    async with silent() as address, scripted(STATE) as server, connect([address, server.address]) as cluster:
        assert (await cluster.state()).applied_index == 8


async def test_a_read_that_no_server_answers_in_time_gets_twice_as_long_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", 0.05)
    caplog.set_level("DEBUG", "quire.client")
    async with silent() as address, connect(address) as cluster:
        reading = asyncio.create_task(cluster.state())
        await until(lambda: len(caplog.messages) > 2)
        reading.cancel()

    for seconds, message in zip(("0.05", "0.1", "0.2"), caplog.messages, strict=False):
        assert f"did not answer within {seconds} s" in message


async def test_a_record_that_a_follower_does_not_have_yet_is_read_from_the_leader() -> None:
    async with scripted(document("value")) as leader:
        behind = refusing(404, "not-committed", leader=leader.address)
        async with scripted(behind) as follower, connect(follower.address) as cluster:
            assert await cluster.read(7) == "value"
            assert (len(follower.requests), len(leader.requests)) == (1, 1)


async def test_a_range_that_a_server_has_only_in_part_does_not_end_early() -> None:
    bounds = document({"lowest_index": 0, "highest_index": 9})
    async with (
        scripted(bounds, lines(1, next_index=2), lines(next_index=2)) as server,
        connect(server.address) as cluster,
    ):
        records = cluster.read_range(1, 5)
        assert (await anext(records)).index == 1
        with pytest.raises(Unavailable, match="index 2"):
            await anext(records)


async def test_a_range_is_read_from_a_server_that_tells_more_of_a_record_and_not_from_one_that_tells_less() -> None:
    bounds = document({"lowest_index": 0, "highest_index": 9})
    less = {name: value for name, value in LINE.items() if name != "session"}
    newer = lines(1, next_index=2, same=LINE | {"added_later": True})
    async with (
        scripted(bounds, newer, lines(2, next_index=3, same=less)) as server,
        connect(server.address) as cluster,
    ):
        records = cluster.read_range(1, 5)
        assert (await anext(records)).index == 1
        with pytest.raises(ClientError, match="without session"):
            await anext(records)


async def test_a_read_of_a_missing_record_is_not_retried() -> None:
    async with scripted(refusing(410, "expired", lowest_index=5)) as server, connect(server.address) as cluster:
        with pytest.raises(NotFound) as missing:
            await cluster.read(1)
        assert len(server.requests) == 1

    assert missing.value.problem["lowest_index"] == 5


@pytest.mark.parametrize("status", [400, 409, 413, 415])
async def test_a_bad_request_is_not_retried(status: int) -> None:
    async with scripted(refusing(status, "malformed")) as server, connect(server.address) as cluster:
        with pytest.raises(BadRequest) as wrong:
            await cluster.apply("nonsense")
        assert len(server.requests) == 1

    assert (wrong.value.status, wrong.value.type) == (status, "urn:quire:problem:malformed")


async def test_a_value_that_msgpack_cannot_hold_is_refused_before_it_is_sent() -> None:
    async with scripted(appended(1)) as server, connect(server.address) as cluster:
        for value in (2**64, object(), "\ud800"):
            with pytest.raises(BadRequest):
                await cluster.apply(["add", value])
        assert server.requests == []


async def test_a_read_that_fails_on_the_server_raises_server_fault() -> None:
    async with scripted(refusing(500, "internal")) as server, connect(server.address) as cluster:
        with pytest.raises(ServerFault):
            await cluster.state()


async def test_a_record_whose_check_fails_raises_server_fault_and_is_not_retried() -> None:
    async with scripted(refusing(500, "check-failed")) as server, connect(server.address) as cluster:
        with pytest.raises(ServerFault, match="check-failed"):
            await cluster.append(["add", 3])
        assert len(server.requests) == 1


async def test_a_query_whose_machine_fails_raises_server_fault() -> None:
    async with scripted(refusing(500, "machine-failed")) as server, connect(server.address) as cluster:
        with pytest.raises(ServerFault, match="machine-failed"):
            await cluster.query(["get", "x"])


async def test_a_server_that_is_no_quire_node_is_reported_as_such() -> None:
    async with scripted(foreign(200)) as server, connect(server.address) as cluster:
        with pytest.raises(ClientError, match="not a quire node"):
            await cluster.state()


def test_a_client_without_a_server_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one server"):
        connect(" , ")


async def test_a_client_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await connect("127.0.0.1:1").apply(["add", 1])


async def test_a_session_s_end_is_sent_once_and_unknown_if_the_connection_broke() -> None:
    async with (
        scripted(document({"node_id": "n1"}), broken, refusing(404, "session-not-open")) as server,
        connect(server.address) as cluster,
    ):
        await cluster.status()  # aiohttp repeats a DELETE over a connection that was used before.
        with pytest.raises(OutcomeUnknown):
            await cluster.close_session(7)
        assert [method for method, *_ in server.requests] == ["GET", "DELETE"]
