"""Whoever opens names fills no table: the leader admits new ones below a limit, with those that are under way."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from quire.cluster.client import Unavailable, connect
from quire.cluster.errors import NotLeader, OutcomeUnknown, SessionsFull
from quire.cluster.http.admission.openings import SessionOpenings
from quire.cluster.http.api import API
from quire.cluster.node.writing import FutureWaiter
from quire.log import Kind, encode_system
from quire.replication import Write
from quire.sm import ApplyFailed, Sessions
from tests.cluster.conditions import held
from tests.cluster.machines import Gate
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.cluster.test_slow_machines import GATE, unapplied, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT_MS = 30_000
JSON = "application/json"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
LEAST = 20
"""Of these, 18 may have names."""
DEADLINE_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("openings"), request_timeout_ms=5_000) as running:
        yield running


def table(cluster: RunningCluster, node_id: str = "n1") -> Sessions:
    return cluster.nodes[node_id].node.components.applying.applier.sessions


def named(cluster: RunningCluster, node_id: str = "n1") -> int:
    return sum(name is not None for _, name, _ in table(cluster, node_id).all_open())


@contextmanager
def of_at_most(cluster: RunningCluster, count: int) -> Generator[None]:
    """The sessions of a table that may hold so many."""
    with pytest.MonkeyPatch.context() as patch:
        for node_id in cluster.nodes:
            patch.setattr(table(cluster, node_id), "max_sessions", count)
        yield


async def post(cluster: RunningCluster, at: str, name: str | None) -> Reply:
    body = orjson.dumps({} if name is None else {"name": name})
    return await cluster.ask(at, "POST", "/sessions", body, JSON)


async def end_of_log(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])


async def close_all(cluster: RunningCluster) -> None:
    async with connect(cluster.address("n1")) as client:
        await client.close_sessions([row["session"] async for row in client.sessions()])


@EVERYWHERE
async def test_a_burst_of_new_names_fills_what_is_theirs_and_no_more(cluster: RunningCluster, at: str) -> None:
    await close_all(cluster)
    with of_at_most(cluster, LEAST):
        before = await end_of_log(cluster)
        replies = await asyncio.gather(*(post(cluster, at, f"burst {number}") for number in range(60)))

        opened = [reply.document["session"] for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status != 200]
        assert len(opened) == named(cluster) == table(cluster).named_limit == 18
        assert {(reply.status, reply.problem) for reply in refused} == {(429, "sessions-full")}
        assert all(int(reply.headers["Retry-After"]) >= 60 for reply in refused)
        assert await end_of_log(cluster) == before + 18, "a refused opening is not in the log"
        detail = (await post(cluster, at, "one more")).document["detail"]
        for said in ("18 named sessions", "at most 18", "rest of 20", "quire session close", "DELETE /sessions/"):
            assert said in detail

        open_name = next(f"burst {place}" for place, reply in enumerate(replies) if reply.status == 200)
        assert (await post(cluster, at, open_name)).status == 200, "an open name can be opened again"
        for _ in range(5):
            assert (await post(cluster, at, None)).status == 200, "there is room without a name"
        assert len(table(cluster).replies) == LEAST
        closed = next(session for session in opened if table(cluster).find(session) is not None)
        assert (await cluster.ask(at, "DELETE", f"/sessions/{closed}")).status == 200
        assert (await post(cluster, at, "one more")).status == 200
        assert (await post(cluster, at, "and one")).status == 429


@pytest.mark.full
async def test_a_client_gets_the_reason_in_its_time(cluster: RunningCluster) -> None:
    with of_at_most(cluster, 0):
        async with connect(cluster.address("n2"), session="a client's", timeout_s=5) as client:
            with pytest.raises(Unavailable, match=r"429: .* named sessions are open .* close some"):
                await client.session()


async def test_a_table_that_is_above_the_limit_takes_no_new_name_and_serves_those_it_has(
    cluster: RunningCluster,
) -> None:
    await close_all(cluster)
    held_sessions = [(await post(cluster, "n1", f"held {number}")).document["session"] for number in range(3)]
    with of_at_most(cluster, 2):
        assert (await post(cluster, "n1", "new")).status == 429
        assert (await post(cluster, "n1", None)).status == 429, "all sessions have names"
        assert (await post(cluster, "n1", "held 1")).status == 200
        headers = {"Quire-Session": str(held_sessions[0]), "Quire-Sequence": "1"}
        command = orjson.dumps({"commands": [["add", 1]]})
        assert (await cluster.ask("n1", "POST", "/commands", command, JSON, headers)).status == 200


async def test_what_is_appended_counts_until_it_is_applied_however_long_that_takes(cluster: RunningCluster) -> None:
    await close_all(cluster)
    app = cluster.nodes["n1"].runner.app
    assert app is not None
    openings = app[API].openings
    with of_at_most(cluster, 3), pytest.MonkeyPatch.context() as patch:
        node = cluster.nodes["n1"].node
        patch.setattr(node, "config", node.config.model_copy(update={"request_timeout_ms": 200}))
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
            unknown = await asyncio.gather(*(post(cluster, "n1", f"late {number}") for number in range(3)))
            assert [reply.problem for reply in unknown] == ["outcome-unknown"] * 3
            assert (await post(cluster, "n1", "another")).problem == "sessions-full"
            assert (await post(cluster, "n1", "late 0")).problem == "outcome-unknown"
            assert len(openings) == 3
        await asyncio.wait_for(until(lambda: not len(openings)), DEADLINE_S)
        assert named(cluster) == 3
        assert (await post(cluster, "n1", "another")).problem == "sessions-full"


async def test_an_opening_that_is_not_appended_counts_no_longer(cluster: RunningCluster) -> None:
    await close_all(cluster)
    app = cluster.nodes["n1"].runner.app
    assert app is not None
    with held(cluster, waiting_requests=0):
        assert (await post(cluster, "n1", "refused by the writer")).problem == "overloaded"
    assert len(app[API].openings) == 0
    with pytest.MonkeyPatch.context() as patch:
        applier = cluster.nodes["n1"].node.components.applying.applier
        patch.setattr(applier, "failure", ApplyFailed(index=0, text="a fault of the test", do="none"))
        assert (await post(cluster, "n1", "refused before")).problem == "state-unavailable"
    assert len(app[API].openings) == 0
    openings = SessionOpenings()
    lost = await openings.admit(cluster.nodes["n1"].node.components, TIMEOUT_MS, "lost with its leader")
    assert len(openings) == 1
    lost.fail(OutcomeUnknown("this node leads no longer"))
    assert (len(openings), type(lost.reply.exception())) == (0, OutcomeUnknown)
    with pytest.raises(NotLeader):
        await SessionOpenings().admit(cluster.nodes["n2"].node.components, TIMEOUT_MS, "elsewhere")


async def test_of_thousands_at_once_as_many_are_admitted_as_there_is_room_for(cluster: RunningCluster) -> None:
    await close_all(cluster)
    components, openings = cluster.nodes["n1"].node.components, SessionOpenings()
    with of_at_most(cluster, 500):
        asked = [openings.admit(components, TIMEOUT_MS, f"{number}") for number in range(2_000)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)

    assert sum(isinstance(outcome, SessionsFull) for outcome in outcomes) == 2_000 - 450
    assert len(openings) == 450
    for outcome in outcomes:
        if not isinstance(outcome, BaseException):
            outcome.end()
            outcome.end()
    assert len(openings) == 0


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


@pytest.mark.full
async def test_a_new_leader_counts_what_the_one_before_it_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", DEADLINE_S)
    settings: dict[str, Any] = {"machine": GATE, "request_timeout_ms": int(DEADLINE_S * 1000)}
    async with running_cluster(tmp_path, **settings) as cluster, asyncio.timeout(DEADLINE_S):
        waiting = asyncio.create_task(cluster.commands("n1", "wait"))
        await until(lambda: all(unapplied(cluster)))
        with of_at_most(cluster, LEAST):
            waiters = [FutureWaiter(applied=False) for _ in range(18)]
            for number, waiter in enumerate(waiters):  # As a leader of an earlier version, which admits all.
                payload = encode_system({"type": "open_session", "name": f"{number}"})
                cluster.nodes["n1"].node.components.writing.propose(Write(payload, 1, kind=Kind.SYSTEM, owner=waiter))
            await asyncio.gather(*(waiter.reply for waiter in waiters))
            await cluster.nodes["n1"].node.leadership.transfer("n2")
            await cluster.ready()
            asked = asyncio.create_task(post(cluster, "n2", "one more"))
            applying = cluster.nodes["n2"].node.components.applying
            await until(lambda: applying._waiting or applying._reads)  # pyright: ignore[reportPrivateUsage]
            gate.opened.set()
            reply = await asked
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert (reply.status, reply.problem) == (429, "sessions-full")
            assert named(cluster, "n2") == 18
