"""A node whose machine has failed: every write is answered, no state is read, and the reason is told."""

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from quire.cluster.cli.console import EscapingConsole
from quire.cluster.cli.nodes.rows import NodeRow
from quire.cluster.cli.nodes.table import print_nodes
from quire.cluster.data_dir.genesis import Genesis
from quire.cluster.errors import OutcomeUnknown, StateUnavailable
from quire.cluster.node.components import NodeResources
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import node_status, not_ready_reasons
from quire.cluster.node.writing import FutureWaiter
from quire.log import pack
from quire.replication import Write
from quire.replication.core.fitness import Level
from quire.sm import Applier, ApplyFailed
from quire.sm.errors import FIX_MACHINE
from tests.cluster import machines
from tests.cluster.running import RunningCluster, applied_index, running_cluster

MOODY = "tests.cluster.machines:Moody"
GATE = "tests.cluster.machines:Gate"
JSON = "application/json"
DEADLINE_S = 20.0


def proposed(node: Node, *commands: Any, applied: bool = True) -> FutureWaiter:
    """A write that is on its way."""
    waiter = FutureWaiter(applied=applied)
    node.components.writing.propose(Write(pack(list(commands)), len(commands), owner=waiter))
    return waiter


@pytest.mark.asyncio
async def test_every_write_that_was_on_its_way_when_the_machine_failed_is_answered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        applier = node.formed.applying.applier
        failing, waiters = proposed(node, "apply fails"), list[FutureWaiter]()
        while applier.failure is None:  # A write a turn: some are appended before the failure, some after it.
            waiters.append(proposed(node, "well", applied=bool(len(waiters) % 2)))
            await asyncio.sleep(0)
        with pytest.raises(OutcomeUnknown, match="KeyError: 'apply fails'"):
            await failing.reply
        outcomes = await asyncio.gather(*(waiter.reply for waiter in waiters), return_exceptions=True)
        assert outcomes
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes[1::2])
        with pytest.raises(StateUnavailable, match="nothing can be answered here"):
            proposed(node, "well")
        for consistency in ("linearizable", "leader", "local"):
            refused = await cluster.ask("n1", "GET", f"/state?consistency={consistency}")
            assert (refused.status, refused.problem) == (503, "state-unavailable")


@pytest.mark.asyncio
async def test_a_write_after_the_machine_failed_is_refused_with_its_error_and_not_as_overload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", 0.0)  # The failed record counts as late at once.
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        await cluster.ask("n1", "POST", "/commands", '{"commands": ["apply fails"]}', "application/json")
        for path, body in (("/commands", '{"commands": ["well"]}'), ("/records", '"well"')):
            refused = await cluster.ask("n1", "POST", path, body, "application/json")
            assert (refused.status, refused.problem) == (503, "state-unavailable"), refused
            assert "KeyError: 'apply fails'" in refused.document["detail"]


@pytest.mark.asyncio
async def test_a_write_that_is_appended_only_after_the_machine_failed_is_answered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        failure = ApplyFailed(index=applied_index(node), text="apply raised MemoryError", do="restart it")
        waiters = [proposed(node, "well", applied=applied) for applied in (True, False)]
        node.formed.applying.applier.failure = failure  # In one turn of the loop: none was appended yet.
        node.formed.applying.report_failure()
        for waiter in waiters:
            with pytest.raises(OutcomeUnknown, match="apply raised MemoryError"):
                await waiter.reply


@pytest.mark.asyncio
async def test_without_memory_beside_the_machine_the_node_halts_and_every_caller_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the machine never saw is no failure of the machine: a restart applies it."""

    def no_memory(*_: object) -> None:
        raise MemoryError("says the test")

    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        with monkeypatch.context() as lacking:
            lacking.setattr("quire.sm.applier.decode_values", no_memory)
            write = proposed(node, "well")
            read = asyncio.ensure_future(node.formed.applying.reached(applied_index(node) + 1))
            with pytest.raises(OutcomeUnknown, match="MemoryError"):
                await write.reply
            with pytest.raises(Exception, match="interrupted"):
                await read
        assert node.health.failure is not None
        assert "MemoryError('says the test')" in node.health.failure
        await cluster.restart("n1")
        await cluster.ready()
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "well"


@pytest.mark.asyncio
async def test_the_same_sentence_is_said_once_in_status_in_the_table_in_readyz_and_in_the_journal(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"machine": MOODY, "election_timeout_ms": 500, "heartbeat_ms": 50}
    with capture_logs() as journal:
        async with running_cluster(tmp_path, 1, **settings) as cluster, asyncio.timeout(DEADLINE_S):
            node = cluster.nodes["n1"].node
            index = applied_index(node)
            answers = await asyncio.gather(*(post(cluster, "apply fails") for _ in range(3)))
            while node_status(node)["fitness"]["level"] != Level.MACHINE_FAILED:
                await post(cluster, "well")  # Refused, as nothing can be answered any more.

            sentence = str(node.components.applying.applier.failure)
            line = line_of(machines, "raise KeyError(command)", "def apply")
            assert sentence == (
                f"applying stopped at index {index}: apply of 'apply fails' raised KeyError: 'apply fails' at "
                f"{machines.__file__}:{line}; {FIX_MACHINE}"
            )
            status = (await cluster.ask("n1", "GET", "/status")).document
            assert json.dumps(status).count(sentence) == 1
            assert (status["reasons"], status["alarms"]) == ([sentence], [])
            ready = (await cluster.ask("n1", "GET", "/readyz")).document
            assert ready["reasons"] == [sentence]
            state = (await cluster.ask("n1", "GET", "/state")).document
            table = StringIO()
            row = NodeRow("a:1", status, failure=state["detail"])
            print_nodes(EscapingConsole(width=1000, file=table), {"n1": row})
            assert table.getvalue().count(sentence) == 1
            assert [state["detail"].count(sentence), *(text.count(sentence) for _, text in answers)] == [1] * 4
            assert {status for status, _ in answers} <= {503, 504}
    said = [line for line in journal if sentence in str(line)]
    assert [(line["event"], line["log_level"], line["reason"]) for line in said] == [
        ("the machine has failed", "error", sentence)
    ]


async def post(cluster: RunningCluster, command: str) -> tuple[int, str]:
    """The status and the text of the answer to a command."""
    body = json.dumps({"commands": [command]})
    reply = await cluster.ask("n1", "POST", "/commands", body, JSON)
    return reply.status, reply.document.get("detail", "")


def line_of(module: Any, text: str, after: str) -> int:
    """The number of the line of `Moody` that has the text, beyond the one that has `after`."""
    lines = Path(module.__file__).read_text().splitlines()
    moody = lines.index("class Moody:")
    method = next(at for at in range(moody, len(lines)) if after in lines[at])
    return next(at for at in range(method, len(lines)) if text in lines[at]) + 1


@pytest.mark.asyncio
async def test_a_machine_that_fails_in_the_replay_of_a_start_is_told_in_the_same_words(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        await post(cluster, "apply fails")
        before = str(cluster.nodes["n1"].node.components.applying.applier.failure)
        with capture_logs() as journal:
            await cluster.restart("n1")
            node = cluster.nodes["n1"].node
            while not any(line["event"] == "the machine has failed" for line in journal):
                await cluster.ask("n1", "GET", "/healthz")
        assert not_ready_reasons(node)[0] == before
        assert [line["reason"] for line in journal if line["event"] == "the machine has failed"] == [before]


@pytest.mark.asyncio
async def test_a_snapshot_that_this_version_cannot_continue_from_is_told_in_the_journal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The applier has failed before it applies anything (`Applier.__init__`), at a start or after an install."""
    failure = ApplyFailed(index=1, text="the snapshot uses the feature 'later'", do="upgrade this node")
    restored = NodeResources.restored

    async def restored_from_it(resources: NodeResources, genesis: Genesis) -> Applier:
        applier = await restored(resources, genesis)
        applier.failure = failure
        return applier

    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        with monkeypatch.context() as later, capture_logs() as journal:
            later.setattr(NodeResources, "restored", restored_from_it)
            await cluster.restart("n1")
            node = cluster.nodes["n1"].node
            assert not_ready_reasons(node)[0] == str(failure)
            assert [line["reason"] for line in journal if line["event"] == "the machine has failed"] == [str(failure)]
            parts = node.components
            later.setattr(parts.compaction.installing, "installed", lambda _: parts.applying.applier)
            node.components.compaction.installing.snapshot_installed(applied_index(node))
            assert len([line for line in journal if line["event"] == "the machine has failed"]) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("installed_fails", [False, True])
async def test_a_node_whose_machine_failed_answers_again_with_an_installed_one_unless_that_has_failed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed_fails: bool
) -> None:
    failure = ApplyFailed(index=1, text="apply raised MemoryError", do="restart it")
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        failed = node.components.applying.applier
        installed = Applier(failed.machine, boundary=failed.boundary, sessions=failed.sessions)
        monkeypatch.setattr(node.components.compaction.installing, "installed", lambda _: installed)
        on_its_way = proposed(node, "well")  # It is appended in a later turn of the loop.
        failed.failure = failure
        node.components.applying.report_failure()

        installed.failure = failure if installed_fails else None
        node.components.compaction.installing.snapshot_installed(installed.applied_index)

        if installed_fails:
            with pytest.raises(OutcomeUnknown, match="apply raised MemoryError"):
                await on_its_way.reply
        else:
            assert (await on_its_way.reply).refused == []
            assert (await post(cluster, "well"))[0] == 200
            assert not_ready_reasons(node) == []


@pytest.mark.asyncio
async def test_an_overdue_snapshot_is_no_alarm_beside_a_machine_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        snapshotting = node.components.compaction.snapshotting
        monkeypatch.setattr(snapshotting, "_due_since", -1e9)
        assert any("no snapshot was finished" in alarm for alarm in node_status(node)["alarms"])
        await post(cluster, "apply fails")
        assert node_status(node)["alarms"] == []


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_machine_that_is_stuck_has_not_failed_and_who_waits_for_it_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.Gate.opened.clear()
    monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", DEADLINE_S)  # So that a write is taken and waits.
    settings: dict[str, Any] = {"machine": GATE, "election_timeout_ms": 500, "heartbeat_ms": 50}
    async with running_cluster(tmp_path, 1, request_timeout_ms=500, **settings) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            try:
                node = cluster.nodes["n1"].node
                proposed(node, "wait")
                while node_status(node)["fitness"]["level"] != Level.APPLY_LAG:
                    await cluster.ask("n1", "GET", "/healthz")
                status, text = await post(cluster, "more")
                assert status == 504
                assert "the write was not applied within 500 ms: this node is still applying" in text
                state = await cluster.ask("n1", "GET", "/state")
                assert "no linearizable read was possible within 500 ms: " in state.document["detail"]
                assert "this node is still applying" in state.document["detail"]
                session = await cluster.ask("n1", "GET", "/sessions/1")
                assert "this node is still applying" in session.document["detail"]
                assert node.components.applying.applier.failure is None
            finally:
                machines.Gate.opened.set()
            await cluster.ready()
