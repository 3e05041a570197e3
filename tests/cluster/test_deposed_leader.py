"""What a follower forwarded to a leader that falls silent, once another leads: it ends, and what may be sent again is.

The relay holds the connection that the request went over, so only the follower can end it; its time is an hour.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, WSMsgType

from quire.cluster.errors import ClusterError, NotLeader, OutcomeUnknown, Overloaded, StateUnavailable
from quire.cluster.http.forwarding import LeaderHop
from quire.log import pack
from quire.replication.core.events import Nominated
from tests.cluster.running import Reply, RunningCluster
from tests.cluster.test_forwarding import ADD_3, DEADLINE_S, JSON, Relay, relayed
from tests.replication.loopback import until

SUCCESSORS = pytest.mark.parametrize("successor", ["n2", "n3"])  # n2 forwarded the request.
HOUR_MS = 3_600_000
POST = b"POST /commands"

Cluster = tuple[RunningCluster, Relay]


@pytest_asyncio.fixture
async def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Cluster, None]:
    async def never(_hop: LeaderHop) -> None:
        """Give no leader up because it is not heard."""

    monkeypatch.setattr(LeaderHop, "_watch", never)
    async with relayed(tmp_path, request_timeout_ms=HOUR_MS) as running:
        for each in running[0].nodes.values():  # No control plane nominates another than the test does.
            await each.node.leadership.stop()
            each.node.components.replica.driver.step(Nominated(False))
        yield running


async def opened(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "POST", "/sessions", b"{}", JSON)).document["session"])


def written(path: str, session: int) -> tuple[bytes, str, dict[str, str]]:
    """What a session writes first, adding 3: body, type, headers."""
    body = {"/commands": ADD_3, "/records": b'["add", 3]'}[path]
    return body, JSON, {"Quire-Session": str(session), "Quire-Sequence": "1"}


async def replaced(cluster: RunningCluster, relay: Relay, successor: str) -> None:
    """Once the relay holds the request, n1 is lost, and the successor leads."""
    await until(lambda: relay.held)
    other = {"n2": "n3", "n3": "n2"}[successor]
    cluster.nodes[other].node.leadership.drain(drained=True)
    cluster.nodes[successor].node.components.replica.driver.step(Nominated(True))
    await cluster.stop("n1")


async def answered(cluster: RunningCluster, relay: Relay, successor: str, *request: Any, breaks: bool = False) -> Reply:
    """What n2 answers to a request that it forwarded to n1. `breaks`: the connection does, before n1 is lost."""
    call = asyncio.create_task(cluster.ask("n2", *request))
    await until(lambda: relay.held)
    if breaks:
        relay.breaks.set()
    await replaced(cluster, relay, successor)
    return await asyncio.wait_for(call, DEADLINE_S)


async def state_of(cluster: RunningCluster, node_id: str) -> Any:
    """What a leader's state is, once it has applied all that was committed."""
    await until(lambda: cluster.nodes[node_id].node.leadership.is_leader)
    return (await cluster.ask(node_id, "GET", "/state?consistency=linearizable")).document["state"]


@SUCCESSORS
@pytest.mark.parametrize("executed", [False, True])
async def test_a_session_s_write_to_a_deposed_leader_is_sent_to_the_next_one_and_executed_once(
    reached: Cluster, successor: str, executed: bool
) -> None:
    cluster, relay = reached
    session = await opened(cluster)
    name = "deafens" if executed else "swallow"
    setattr(relay, name, lambda chunk: chunk.startswith(POST))

    reply = await answered(cluster, relay, successor, "POST", "/commands", *written("/commands", session))

    assert (reply.status, reply.document["results"]) == (200, ["45"])
    assert reply.document.get("repeated", False) is executed
    assert await state_of(cluster, successor) == "45"


@SUCCESSORS
async def test_a_read_of_a_deposed_leader_is_answered_by_the_next_one(reached: Cluster, successor: str) -> None:
    cluster, relay = reached
    relay.swallow = lambda chunk: chunk.startswith(b"GET /state")

    reply = await answered(cluster, relay, successor, "GET", "/state?consistency=linearizable")

    assert (reply.status, reply.document["state"]) == (200, "42")


@SUCCESSORS
async def test_a_write_without_a_session_is_not_sent_again_and_ends_once_another_leads(
    reached: Cluster, successor: str
) -> None:
    cluster, relay = reached
    relay.deafens = lambda chunk: chunk.startswith(POST)

    reply = await answered(cluster, relay, successor, "POST", "/commands", ADD_3, JSON)

    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    assert await state_of(cluster, successor) == "45"


@SUCCESSORS
async def test_a_write_that_was_sent_again_and_is_refused_has_an_unknown_outcome(
    reached: Cluster, successor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, relay = reached
    session = await opened(cluster)
    relay.deafens = lambda chunk: chunk.startswith(POST)

    async def refuse(*_arguments: Any, **_options: Any) -> None:
        raise Overloaded("no room for more writes")

    call = asyncio.create_task(cluster.ask("n2", "POST", "/commands", *written("/commands", session)))
    await until(lambda: relay.held)
    monkeypatch.setattr("quire.cluster.http.routes.commands.write_values", refuse)
    await replaced(cluster, relay, successor)
    reply = await asyncio.wait_for(call, DEADLINE_S)

    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    assert await state_of(cluster, successor) == "45"


@pytest.mark.parametrize("path", ["/commands", "/records"])
async def test_a_node_that_leads_next_itself_gives_a_write_the_time_that_is_left_of_it(
    reached: Cluster, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    cluster, relay = reached
    session = await opened(cluster)
    relay.deafens = lambda chunk: chunk.startswith(b"POST " + path.encode())
    given: list[int] = []

    async def late(components: Any, _write: Any, timeout_ms: int) -> None:
        if components is not cluster.nodes["n2"].node.components:
            raise NotLeader(None)  # n3 may lead for a moment.
        given.append(timeout_ms)
        raise OutcomeUnknown("no majority")

    call = asyncio.create_task(cluster.ask("n2", "POST", path, *written(path, session)))
    await until(lambda: relay.held)
    monkeypatch.setattr("quire.cluster.http.routes.commands._write", late)
    await replaced(cluster, relay, "n2")
    reply = await asyncio.wait_for(call, DEADLINE_S)

    assert 0 < given[0] < HOUR_MS
    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    assert reply.document["detail"].count("the outcome is unknown") == 1


@pytest.mark.parametrize("route", ["state", "records"])
async def test_a_node_that_leads_next_itself_gives_a_read_the_time_that_is_left_of_it(
    reached: Cluster, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    cluster, relay = reached
    path = {"state": "/state", "records": "/index_bounds"}[route]
    relay.swallow = lambda chunk: chunk.startswith(b"GET " + path.encode())
    given: list[float] = []

    async def does_not_lead(*_arguments: Any) -> None:
        raise NotLeader(None)  # n3 may lead for a moment.

    def timeout(delay: float) -> asyncio.Timeout:
        given.append(delay)
        return asyncio.timeout(delay)

    monkeypatch.setattr(f"quire.cluster.http.routes.{route}.asyncio", SimpleNamespace(timeout=timeout))
    for name in ("query", "barrier"):
        monkeypatch.setattr(cluster.nodes["n3"].node.components.reading, name, does_not_lead)
    reply = await answered(cluster, relay, "n2", "GET", f"{path}?consistency=linearizable")

    assert reply.status == 200
    assert 0 < given[-1] < HOUR_MS / 1000


# A connection that breaks


def once(cuts: list[bytes], start: bytes) -> Callable[[bytes], bool]:
    """Cut the first request that starts so."""

    def cut(chunk: bytes) -> bool:
        if is_cut := chunk.startswith(start) and not cuts:
            cuts.append(chunk)
        return is_cut

    return cut


@pytest.mark.parametrize("path", ["/commands", "/records"])
async def test_a_session_s_write_whose_connection_broke_is_sent_again_and_executed_once(
    reached: Cluster, path: str
) -> None:
    cluster, relay = reached
    session = await opened(cluster)
    cuts: list[bytes] = []
    relay.cut = once(cuts, b"POST " + path.encode())

    reply = await cluster.ask("n2", "POST", path, *written(path, session))

    assert cuts
    assert (reply.status, reply.document["repeated"]) == (200, True)
    assert await state_of(cluster, "n1") == "45"


@SUCCESSORS
@pytest.mark.parametrize("reads", [False, True])
async def test_what_may_be_sent_again_waits_for_the_next_leader_after_its_connection_broke(
    reached: Cluster, successor: str, reads: bool
) -> None:
    cluster, relay = reached
    session = await opened(cluster)
    relay.deafens = lambda chunk: chunk.startswith((POST, b"GET /state?"))
    write = ("POST", "/commands", *written("/commands", session))
    request = ("GET", "/state?consistency=linearizable") if reads else write

    reply = await answered(cluster, relay, successor, *request, breaks=True)

    assert reply.status == 200
    assert await state_of(cluster, successor) == ("42" if reads else "45")


@pytest.mark.parametrize(
    ("error", "is_asked_again"), [(NotLeader(None), True), (StateUnavailable("it is behind"), False)], ids=["not", "is"]
)
async def test_a_node_that_leads_and_answers_503_is_not_asked_again(
    reached: Cluster, monkeypatch: pytest.MonkeyPatch, error: ClusterError, is_asked_again: bool
) -> None:
    cluster, relay = reached
    relay.cut = once([], b"GET /state")
    reading, calls = cluster.nodes["n1"].node.components.reading, count(1)
    query = reading.query

    async def fails_first(*arguments: Any) -> Any:
        if next(calls) < 4:
            raise error
        return await query(*arguments)

    monkeypatch.setattr(reading, "query", fails_first)
    reply = await asyncio.wait_for(cluster.ask("n2", "GET", "/state?consistency=linearizable"), DEADLINE_S)

    if is_asked_again:
        assert reply.status == 200
    else:
        assert (reply.status, reply.problem, next(calls)) == (503, "state-unavailable", 3)


# Streams


@SUCCESSORS
async def test_a_stream_that_was_carried_to_a_deposed_leader_ends_once_another_leads(
    reached: Cluster, successor: str
) -> None:
    cluster, relay = reached
    sent = pack([1, [["add", 3]]])
    relay.swallow = lambda chunk: len(chunk) == 2 + 4 + len(sent) and chunk[1] == 0x80 | len(sent)
    url = f"{cluster.url('n2')}/commands/stream?session={await opened(cluster)}"

    async with cluster.session.ws_connect(url, compress=0) as socket:
        await socket.send_bytes(sent)
        ends = asyncio.create_task(socket.receive())
        await replaced(cluster, relay, successor)

        assert (await asyncio.wait_for(ends, DEADLINE_S)).type is WSMsgType.CLOSE


async def test_the_opening_of_a_stream_ends_once_another_leads(reached: Cluster) -> None:
    cluster, relay = reached
    relay.swallow = lambda chunk: chunk.startswith(b"GET /commands/stream")
    path = f"/commands/stream?session={await opened(cluster)}"

    async def opening() -> int | ClientWebSocketResponse:
        return await cluster.session.ws_connect(f"{cluster.url('n2')}{path}", compress=0)

    call = asyncio.create_task(opening())
    await replaced(cluster, relay, "n3")
    with pytest.raises(Exception, match="503"):
        await asyncio.wait_for(call, DEADLINE_S)


async def test_a_transfer_is_not_asked_for_again_by_the_node_that_it_moves_leadership_to(reached: Cluster) -> None:
    cluster, relay = reached
    relay.deafens = lambda chunk: chunk.startswith(b"POST /admin/transfer")
    call = asyncio.create_task(cluster.ask("n2", "POST", "/admin/transfer", orjson.dumps({"target": "n3"}), JSON))
    await until(lambda: relay.held)

    assert (await state_of(cluster, "n3")) == "42"
    assert cluster.nodes["n3"].node.leadership.is_leader
    call.cancel()
