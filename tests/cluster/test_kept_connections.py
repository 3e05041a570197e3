"""A node that died without a word and came back: of the connections that were kept to it, one costs a request.

The relay has the connections that it finds lead nowhere; it passes on what is dialled later. Nothing ends by time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quire.cluster.client import OutcomeUnknown, connect
from quire.cluster.http.forwarding import LeaderHop
from tests.cluster.scripted import appended, scripted
from tests.cluster.test_forwarding import ADD_3, DEADLINE_S, JSON, Relay, relayed, relaying
from tests.replication.loopback import until

KEPT = 4
HOUR_MS = 3_600_000


async def keep(relay: Relay, request: bytes, send: Callable[[], Awaitable[object]]) -> None:
    """Keep several connections by sending at the same time, and lose them."""

    def carried() -> set[asyncio.StreamWriter]:
        return {connection for connection, last in relay.connections.items() if last.startswith(request)}

    async with asyncio.timeout(DEADLINE_S):
        while len(carried()) < KEPT:
            await asyncio.gather(*(send() for _ in range(2 * KEPT)))
    relay.lost = carried()


@pytest.mark.parametrize("is_told", [True, False], ids=["reset", "silent"])
async def test_a_write_is_lost_with_one_connection_to_the_leader_and_the_next_one_dials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    gives_up = asyncio.Event()

    async def watch(hop: LeaderHop) -> None:
        """Give the leader up when the test says so."""
        await gives_up.wait()
        for call in hop._calls:  # pyright: ignore[reportPrivateUsage]
            call.end()

    monkeypatch.setattr(LeaderHop, "_watch", watch)
    async with relayed(tmp_path, request_timeout_ms=HOUR_MS) as (cluster, relay), asyncio.timeout(DEADLINE_S):
        await keep(relay, b"POST /commands", lambda: cluster.commands("n2", ["add", 1]))

        lost = asyncio.create_task(cluster.ask("n2", "POST", "/commands", ADD_3, JSON))
        await until(lambda: relay.held)
        (relay.breaks if is_told else gives_up).set()

        assert (await lost).problem == "outcome-unknown"
        assert (await cluster.ask("n2", "POST", "/commands", ADD_3, JSON)).status == 200
        relay.breaks.set()


async def test_a_member_s_status_is_lost_with_one_connection_and_the_next_one_dials(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay), asyncio.timeout(DEADLINE_S):
        await keep(relay, b"GET /status", lambda: cluster.ask("n2", "GET", "/cluster"))
        relay.breaks.set()

        while (await cluster.ask("n2", "GET", "/cluster")).document["nodes"]["n1"]["status"] is None:
            pass

        assert len(relay.held) == 2  # aiohttp sends a GET again, once.


async def test_a_client_s_write_is_lost_with_one_connection_and_the_next_one_dials() -> None:
    async with (
        scripted(appended(1)) as server,
        relaying(server.address) as relay,
        connect(relay.address) as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await keep(relay, b"POST /records", lambda: client.append("x"))
        relay.breaks.set()

        with pytest.raises(OutcomeUnknown):
            await client.append("x")
        assert await client.append("x") == 1
