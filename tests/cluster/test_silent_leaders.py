"""A client whose leader falls silent: another server tells it who leads, and it resends what is unanswered there.

No time passes here that would prove the leader dead: pings of the stream, and attempts, have an hour.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from quire.cluster.client import Client, connect
from tests.cluster.streaming import DEADLINE_S, StreamServer, deaf_relay, streaming
from tests.cluster.test_client import closed_port
from tests.replication.loopback import until

AN_HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _nobody_is_proved_dead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("quire.cluster.client.transport.HEARTBEAT_S", AN_HOUR_S)
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", AN_HOUR_S)
    return iter(())


def own_tasks() -> list[str]:
    """The names of the client's tasks that run."""
    named = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in named if name.startswith(("quire ", "ping of "))]


async def first_applied(server: StreamServer, cluster: Client) -> None:
    """A stream is open, and another server is asked for a later leader."""
    assert await cluster.apply("first") == 1
    await until(lambda: bool(server.watched))


async def test_what_is_unanswered_is_resent_as_soon_as_another_server_tells_who_leads() -> None:
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = relay.address
        async with connect(f"{relay.address},{server.address}") as cluster:
            await first_applied(server, cluster)
            relay.deaf = True
            waiting = await cluster.submit("second")

            await server.leads(server.address)

            assert await waiting == 2
    assert server.executed == ["first", "second"]


async def test_what_the_silent_leader_had_executed_is_not_executed_again() -> None:
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = relay.address
        async with connect(f"{relay.address},{server.address}") as cluster:
            await first_applied(server, cluster)
            server.answering.clear()
            waiting = [await cluster.submit("second"), await cluster.submit("third")]
            await server.heard(2)
            relay.deaf = True
            server.answering.set()
            await until(lambda: len(server.executed) >= 2)

            await server.leads(server.address)

            assert await asyncio.gather(*waiting) == [2, 3]
            assert await cluster.apply("fourth") == 4
    assert server.executed == ["first", "second", "third", "fourth"]


async def test_a_client_asks_a_third_server_if_the_second_is_as_silent_as_the_leader() -> None:
    async with (
        streaming() as server,
        deaf_relay(server.address) as leader,
        deaf_relay(server.address) as second,
        asyncio.timeout(DEADLINE_S),
    ):
        server.leader = leader.address
        async with connect([leader.address, second.address, server.address]) as cluster:
            await first_applied(server, cluster)
            leader.deaf = second.deaf = True
            waiting = await cluster.submit("second")

            await server.leads(server.address)

            assert await waiting == 2
    assert server.executed == ["first", "second"]


async def test_a_client_waits_for_a_slow_leader_as_long_as_nobody_else_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.stream.DOUBT_S", 0.01)
    monkeypatch.setattr("quire.cluster.client.stream.LONGEST_DOUBT_S", 0.02)
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = relay.address
        async with connect(f"{relay.address},{server.address}") as cluster:
            await first_applied(server, cluster)
            server.answering.clear()
            waiting, doubts = await cluster.submit("second"), len(server.watched)
            await until(lambda: len(server.watched) > doubts + 3)
            server.answering.set()

            assert await waiting == 2
            assert len(server.streams) == 1


async def test_an_idle_client_asks_once_and_leaves_nothing_behind() -> None:
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = relay.address
        async with connect(f"{relay.address},{server.address}") as cluster:
            await first_applied(server, cluster)
            for number in range(2, 100):
                assert await cluster.apply(number) == number
            assert server.watched == [1]
            assert "quire leader watch" in own_tasks()
        assert own_tasks() == []


async def test_a_client_of_one_server_asks_nobody_else() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        for number in range(1, 100):
            assert await cluster.apply(number) == number
        assert server.watched == []


async def test_a_stream_is_kept_if_its_leader_is_elected_again_and_known_by_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.cluster.client.stream.GRACE_S", 0.0)
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = relay.address
        async with connect(f"{relay.address},{server.address}") as cluster:
            await first_applied(server, cluster)

            await server.leads(server.address, "n1")
            await until(lambda: 2 in server.watched)

            assert await cluster.apply("second") == 2
            assert len(server.streams) == 1


async def test_a_stream_is_left_if_the_follower_that_carries_it_is_silent_and_no_other_leads() -> None:
    async with streaming() as server, deaf_relay(server.address) as relay, asyncio.timeout(DEADLINE_S):
        server.leader = f"127.0.0.1:{closed_port()}"  # As from another network.
        async with connect([relay.address, server.address]) as cluster:
            await first_applied(server, cluster)
            relay.deaf = True

            assert await cluster.apply("second") == 2
    assert server.executed == ["first", "second"]


async def test_a_server_whose_stream_answers_is_heard() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        assert await cluster.apply("first") == 1
        transport = cluster._connection._transport  # pyright: ignore[reportPrivateUsage]
        since = time.monotonic()
        assert transport is not None

        assert await cluster.apply("second") == 2

        assert transport.servers.heard_since(server.address, since)
