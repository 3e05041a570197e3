"""A machine whose commands take long, or hang: it slows its writers down, and deposes nobody."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from tests.cluster.conditions import held, replica_of
from tests.cluster.machines import Gate
from tests.cluster.running import Reply, RunningCluster, running_cluster

GATE = "tests.cluster.machines:Gate"
BARRIERS = 40
DEADLINE_S = 60.0


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


def unapplied(cluster: RunningCluster) -> list[int]:
    """How many records each node knows to be committed, and has not applied."""
    return [running.node.components.applying.unapplied for running in cluster.nodes.values()]


def waiting(cluster: RunningCluster) -> int:
    """How many writes wait to be appended."""
    leader = replica_of(cluster).core.status().leader
    return 0 if leader is None else leader.queues.waiting_requests


async def until(is_so: Callable[[], object]) -> None:
    """Until it is so."""
    while True:
        if is_so():
            return
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_while_a_command_hangs_the_leader_is_heard_and_writes_beyond_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    async with running_cluster(tmp_path, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        leader = cluster.nodes["n1"].node
        epoch = leader.leadership.role.epoch
        hanging = asyncio.create_task(cluster.commands("n1", "wait"))
        await until(lambda: all(unapplied(cluster)))
        waiting = asyncio.create_task(cluster.commands("n2", "next"))
        for _ in range(BARRIERS):  # Each is a round of heartbeats and echoes.
            await leader.components.reading.barrier()
        for node_id in cluster.nodes:
            assert (await cluster.ask(node_id, "GET", "/status")).status == 200
            assert cluster.nodes[node_id].node.leadership.role.epoch == epoch

        with monkeypatch.context() as bound:
            bound.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", 0.0)
            refused = await cluster.ask("n3", "POST", "/commands", b'{"commands": ["more"]}', "application/json")
            assert (refused.status, refused.problem) == (429, "overloaded")
            assert int(refused.headers["Retry-After"]) >= 1
            gate.opened.set()
            assert (await hanging)["results"] == [1]
            assert (await waiting)["results"] == [2]
            await until(lambda: not any(unapplied(cluster)))
            assert (await cluster.commands("n1", "more"))["results"] == [3]
        for node_id in cluster.nodes:
            found = await cluster.ask(node_id, "POST", "/query", b'{"request": null}', "application/json")
            assert (found.document["answer"], found.headers["Quire-Unapplied"]) == (3, "0")
        assert leader.leadership.role.epoch == epoch


@pytest.mark.asyncio
async def test_an_answer_ends_where_it_is_not_known_yet_what_executed_and_a_waiting_reader_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    monkeypatch.setattr("quire.cluster.http.routes.ranges.APPLIED_WAIT_S", DEADLINE_S)
    async with running_cluster(tmp_path, 1, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        first = (await cluster.commands("n1", "a", "b"))["index"]
        hanging = asyncio.create_task(cluster.commands("n1", "wait"))
        await until(lambda: unapplied(cluster) == [1])

        known = await cluster.ask("n1", "GET", f"/records?from={first}")
        unknown = await cluster.ask("n1", "GET", f"/records?from={first + 2}")
        raw = await cluster.ask(
            "n1", "GET", f"/records?from={first}", headers={"Accept": "application/vnd.quire.frames"}
        )
        waiting = asyncio.create_task(cluster.ask("n1", "GET", f"/records?from={first + 2}&wait_ms=60000"))
        for _ in range(BARRIERS):
            await cluster.ask("n1", "GET", "/healthz")
        assert not waiting.done()
        gate.opened.set()
        told = await waiting

        assert (executed(known), known.headers["Quire-Next-Index"]) == ([True, True], str(first + 2))
        assert (executed(unknown), unknown.headers["Quire-Next-Index"]) == ([None], str(first + 3))
        assert raw.headers["Quire-Next-Index"] == str(first + 3)
        assert executed(told) == [True]
        await hanging


def executed(reply: Reply) -> list[bool | None]:
    """Of each line of a range, whether it executed."""
    return [orjson.loads(line)["executed"] for line in reply.body.splitlines()]


@pytest.mark.asyncio
async def test_a_node_stops_while_a_command_hangs(tmp_path: Path, gate: type[Gate]) -> None:
    async with running_cluster(tmp_path, 1, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        hanging = asyncio.create_task(
            cluster.ask("n1", "POST", "/commands", b'{"commands": ["wait"]}', "application/json")
        )
        await until(lambda: all(unapplied(cluster)))
        reading = asyncio.create_task(cluster.ask("n1", "GET", "/state?consistency=local"))
        await cluster.stop("n1")
        assert not gate.opened.is_set()
        answers = await asyncio.gather(hanging, reading, return_exceptions=True)
        assert all(isinstance(answer, BaseException) or answer.status in (503, 504) for answer in answers)


@pytest.mark.asyncio
async def test_a_session_that_is_not_applied_yet_is_waited_for(tmp_path: Path, gate: type[Gate]) -> None:
    async with (
        running_cluster(tmp_path, 1, machine=GATE, request_timeout_ms=60_000) as cluster,
        asyncio.timeout(DEADLINE_S),
    ):
        session = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"] + 1
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):  # An opening is admitted by a machine that answers.
            hanging = asyncio.create_task(cluster.commands("n1", "wait"))
            await until(lambda: waiting(cluster) == 1)
            opening = asyncio.create_task(cluster.ask("n1", "POST", "/sessions", b"{}", "application/json"))
            await until(lambda: waiting(cluster) == 2)
        await until(lambda: unapplied(cluster) == [2])
        url = f"http://{cluster.address('n1')}/commands/stream?session={session}"
        streaming = asyncio.create_task(cluster.session.ws_connect(url))
        for _ in range(BARRIERS):  # The stream's request arrives long before the session is applied.
            await cluster.ask("n1", "GET", "/healthz")
        gate.opened.set()

        await hanging
        assert (await opening).document["session"] == session
        await (await streaming).close()
