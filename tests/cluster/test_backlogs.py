"""A node whose machine has a backlog: what it says of itself, and what it answers, until that is applied."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.client import Unavailable, connect
from quire.cluster.node.views.status import not_ready_reasons
from tests.cluster.machines import Gate
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.cluster.test_slow_machines import GATE, unapplied, until

BEFORE_IT_STARTED = "that were committed before this node started"
BEFORE_IT_LED = "that were committed before it led"
DEADLINE_S = 60.0
SHORT_MS = 300


@pytest.fixture(autouse=True)
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


async def command(cluster: RunningCluster, at: str, text: bytes) -> Reply:
    return await cluster.ask(at, "POST", "/commands", b'{"commands": ["%s"]}' % text, "application/json")


async def hanging(cluster: RunningCluster) -> "asyncio.Task[Reply]":
    """A command that every node knows to be committed, and none applies until the gate is opened."""
    task = asyncio.create_task(command(cluster, "n1", b"wait"))
    await until(lambda: all(unapplied(cluster)))
    return task


async def status_of(cluster: RunningCluster, node_id: str) -> Any:
    return (await cluster.ask(node_id, "GET", "/status")).document


async def samples(cluster: RunningCluster, node_id: str) -> dict[str, float]:
    lines = (await cluster.ask(node_id, "GET", "/metrics")).body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def local(cluster: RunningCluster, node_id: str, bounds: str = "") -> Reply:
    return await cluster.ask(node_id, "GET", f"/state?consistency=local{bounds}")


@pytest.mark.asyncio
async def test_a_restarted_node_is_not_ready_until_what_was_committed_before_is_applied(
    tmp_path: Path, gate: type[Gate]
) -> None:
    async with running_cluster(tmp_path, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        writing = await hanging(cluster)
        assert not not_ready_reasons(cluster.nodes["n3"].node), "a node that is a little late is ready"
        await cluster.restart("n3")
        node = cluster.nodes["n3"].node
        await until(
            lambda: node.components.replica.core.status().backlog.is_known and node.components.replica.lags.is_known
        )
        await until(lambda: node.components.replica.core.status().fitness.level)

        refused = await cluster.ask("n3", "GET", "/readyz")
        assert (refused.status, refused.problem) == (503, "not-ready")
        assert [BEFORE_IT_STARTED in reason for reason in refused.document["reasons"]] == [True]
        status = await status_of(cluster, "n3")
        assert status["fitness"]["name"] == "apply_lag"
        assert status["lag"]["records"] == 0
        assert status["apply_lag"]["records"] == status["commit_index"] - status["applied_index"] > 0
        assert status["apply_lag"]["seconds"] > 0

        many = status["apply_lag"]["records"]
        for bounds in (f"&max_lag={many - 1}", "&max_lag_s=0.001", f"&max_lag={many}&max_lag_s=0.001"):
            late = await local(cluster, "n3", bounds)
            assert (late.status, late.problem) == (503, "state-unavailable"), bounds
            assert f"{many} are not applied" in late.document["detail"]
        async with connect(cluster.address("n3"), timeout_s=2.0) as client:
            asked = client.state("local", max_lag=many - 1), client.query(None, "local", max_lag_s=0.001)
            for refusal in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(refusal, Unavailable)
                assert "are not applied" in str(refusal)
            gate.opened.set()
            await cluster.ready()
            assert (await client.state("local", max_lag=0, max_lag_s=3600)).state == 1
        assert (await writing).status == 200


@pytest.mark.asyncio
async def test_what_is_committed_after_the_first_catch_up_makes_no_node_unready_below_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    async with running_cluster(tmp_path, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        writing = await hanging(cluster)
        for running in cluster.nodes.values():
            assert not_ready_reasons(running.node) == []

        monkeypatch.setattr("quire.replication.core.fitness.levels.APPLY_TIMEOUTS", 0)
        nodes = [running.node for running in cluster.nodes.values()]
        await until(lambda: all("wait to be applied" in "".join(not_ready_reasons(node)) for node in nodes))
        monkeypatch.undo()
        gate.opened.set()
        assert (await writing).status == 200
        for running in cluster.nodes.values():
            state = running.node.components.replica.core.state
            state.installed(state.commit_index)
        reasons = not_ready_reasons(cluster.nodes["n3"].node)
        assert "what n1 has committed is not known, or not received yet" in reasons


@pytest.mark.asyncio
async def test_a_new_leader_with_a_backlog_answers_no_old_state_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    settings: dict[str, Any] = {"machine": GATE, "request_timeout_ms": SHORT_MS}
    async with running_cluster(tmp_path, **settings) as cluster, asyncio.timeout(DEADLINE_S):
        assert (await (await hanging(cluster))).status == 504
        await cluster.nodes["n1"].node.leadership.transfer("n2")
        await cluster.ready()

        reads = [f"/state?consistency={named}" for named in ("leader", "linearizable")] + ["/sessions"]
        for late in await asyncio.gather(*(cluster.ask(at, "GET", read) for at in cluster.nodes for read in reads)):
            assert (late.status, late.problem) == (503, "state-unavailable")
            assert BEFORE_IT_LED in late.document["detail"]
        monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", DEADLINE_S)
        waited = await command(cluster, "n2", b"more")
        assert (waited.status, waited.problem) == (504, "outcome-unknown")
        assert BEFORE_IT_LED in waited.document["detail"]
        monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", 0.0)
        for at in cluster.nodes:
            refused = await command(cluster, at, b"and more")
            assert (refused.status, refused.problem) == (503, "state-unavailable")
            assert BEFORE_IT_LED in refused.document["detail"]
            assert int(refused.headers["Retry-After"]) >= 1

        status, shown = await status_of(cluster, "n2"), await samples(cluster, "n2")
        assert status["lag"] == {"records": 0, "bytes": 0, "seconds": 0.0}
        assert shown["quire_lag_records"] == 0
        assert shown["quire_apply_lag_records"] == status["apply_lag"]["records"] > 0
        assert 0 < status["apply_lag"]["seconds"] <= shown["quire_apply_lag_seconds"]
        for node_id in ("n1", "n3"):
            row = status["nodes"][node_id]
            assert row["apply_lag"]["records"] == shown[f'quire_node_apply_lag_records{{node="{node_id}"}}'] > 0
            assert 0 < row["apply_lag"]["seconds"] <= shown[f'quire_node_apply_lag_seconds{{node="{node_id}"}}']

        gate.opened.set()
        await until(lambda: not any(unapplied(cluster)))
        while (answered := await cluster.ask("n3", "GET", reads[0])).status != 200:
            assert answered.status == 503
        assert answered.document["state"] == 2


@pytest.mark.asyncio
async def test_a_leader_with_a_backlog_of_its_own_term_is_overloaded_and_says_how_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    async with running_cluster(tmp_path, 1, machine=GATE) as cluster, asyncio.timeout(DEADLINE_S):
        writing = await hanging(cluster)
        monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", 0.0)

        refused = await command(cluster, "n1", b"more")

        assert (refused.status, refused.problem) == (429, "overloaded")
        assert "still applying 1 committed records" in refused.document["detail"]
        gate.opened.set()
        assert (await writing).status == 200
