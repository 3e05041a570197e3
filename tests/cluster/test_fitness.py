"""A node's unfitness is reported everywhere, with what to do: readiness, status, alarms, metrics, table, journal."""

import asyncio
import errno
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from quire.cluster.cli.console import EscapingConsole
from quire.cluster.cli.nodes.rows import NodeRow
from quire.cluster.cli.nodes.table import print_nodes
from quire.cluster.node.views.fitness import ADVICE, UNDRAIN, fitness_document, log_levels, sentences
from quire.cluster.node.views.status import node_status
from quire.replication.core.fitness import DRAINED, ROTTEN, Fitness, FitnessStatus, Level
from quire.sm import ApplyFailed
from quire.sm.errors import FIX_MACHINE
from tests.cluster.running import Reply, RunningCluster, running_cluster, started
from tests.log.sectors import Sectors

JSON = "application/json"
MOODY = "tests.cluster.machines:Moody"
SEGMENT_BYTES = 1 << 16
DEADLINE_S = 30.0


async def write(cluster: RunningCluster, command: bytes) -> Reply:
    return await cluster.ask("n1", "POST", "/commands", b'{"commands": [%s]}' % command, JSON)


async def status_of(cluster: RunningCluster) -> Any:
    return (await cluster.ask("n1", "GET", "/status")).document


async def until(cluster: RunningCluster, holds: Callable[[Any], bool]) -> Any:
    """The status, once it is as wanted."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds(status := await status_of(cluster)):
            pass
    return status


async def level_shown(cluster: RunningCluster) -> float:
    text = (await cluster.ask("n1", "GET", "/metrics")).body.decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("quire_fitness_level "))


def table_of(status: Any) -> str:
    text = StringIO()
    print_nodes(EscapingConsole(width=1000, file=text), {"n1": NodeRow("a:1", status, "42")})
    return text.getvalue()


def _full(descriptor: int, begin: int, length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.asyncio
@pytest.mark.full
async def test_a_leader_without_room_is_not_ready_and_says_what_to_do_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is alone, so no other can take the leadership over."""
    settings: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "election_timeout_ms": 1_000, "heartbeat_ms": 100}
    async with running_cluster(tmp_path, 1, **settings) as cluster:
        assert await level_shown(cluster) < Level.NO_ROOM
        with monkeypatch.context() as full:
            full.setattr(os, "posix_fallocate", _full)
            async with asyncio.timeout(DEADLINE_S):
                while (refused := await write(cluster, b'["add", 0],' * 999 + b'["add", 0]')).status == 200:
                    pass
            assert (refused.status, refused.problem) == (503, "disk-full")
            status = await until(cluster, lambda status: status["fitness"]["level"] == Level.NO_ROOM)
            told = f"free space on the volume of {tmp_path / 'n1'}"
            assert status["fitness"]["name"] == "no_room"
            assert status["fitness"]["do"].startswith(told)
            assert status["fitness"]["since"] > 0
            assert any(told in text for text in status["reasons"])
            assert any(told in text for text in status["alarms"])
            assert told in table_of(status)
            ready = await cluster.ask("n1", "GET", "/readyz")
            assert ready.status == 503
            assert any(told in text for text in ready.document["reasons"])
            assert await level_shown(cluster) == Level.NO_ROOM
            assert (await cluster.ask("n1", "GET", "/state")).status == 200
            await logged(cluster, capsys, "unfit to lead")
        async with asyncio.timeout(DEADLINE_S):
            while (await write(cluster, b'["add", 1]')).status != 200:
                pass
        status = await until(cluster, lambda status: status["ready"] and status["alarms"] == [])
        assert (status["fitness"]["level"], status["fitness"]["reason"]) == (Level.FIT, "")
        assert "problems" not in table_of(status)
        await logged(cluster, capsys, "fit to lead again")


@pytest.mark.soak
@pytest.mark.asyncio
async def test_three_full_nodes_keep_their_leader_and_each_says_that_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "election_timeout_ms": 2_000, "heartbeat_ms": 100}
    async with running_cluster(tmp_path, 3, **settings) as cluster:
        epoch = cluster.nodes["n1"].node.leadership.role.epoch
        with monkeypatch.context() as full:
            full.setattr(os, "posix_fallocate", _full)
            async with asyncio.timeout(DEADLINE_S):
                while (await write(cluster, b'["add", 0],' * 999 + b'["add", 0]')).status == 200:
                    pass
                nodes = [running.node for running in cluster.nodes.values()]
                while any(node_status(node)["fitness"]["level"] != Level.NO_ROOM for node in nodes):
                    await cluster.ask("n2", "GET", "/healthz")
            for node_id in cluster.nodes:
                ready = await cluster.ask(node_id, "GET", "/readyz")
                said = ready.document["reasons" if node_id == "n1" else "alarms"]
                assert any(f"free space on the volume of {tmp_path / node_id}" in text for text in said)
                assert ready.status == (503 if node_id == "n1" else 200)
                status = (await cluster.ask(node_id, "GET", "/status")).document
                assert f"free space on the volume of {tmp_path / node_id}" in table_of(status)
            for _ in range(5):
                assert (await write(cluster, b'["add", 0],' * 999 + b'["add", 0]')).status == 503
                assert (await cluster.ask("n2", "GET", "/state?consistency=leader")).status == 200
            assert [(node.leadership.role.epoch, node.leadership.leader_id) for node in nodes] == [(epoch, "n1")] * 3
        async with asyncio.timeout(DEADLINE_S):
            while (await write(cluster, b'["add", 1]')).status != 200:
                pass
            while any(node_status(node)["fitness"]["level"] for node in nodes):
                await cluster.ask("n2", "GET", "/healthz")


@pytest.mark.asyncio
@pytest.mark.full
async def test_a_full_node_says_so_though_it_is_not_ready_for_another_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "election_timeout_ms": 2_000, "heartbeat_ms": 100}
    async with running_cluster(tmp_path, 2, **settings) as cluster:
        monkeypatch.setattr(os, "posix_fallocate", _full)
        n2 = cluster.nodes["n2"].node
        async with asyncio.timeout(DEADLINE_S):
            while node_status(n2)["fitness"]["level"] != Level.NO_ROOM:
                await write(cluster, b'["add", 0],' * 999 + b'["add", 0]')
            await cluster.stop("n1")
            while n2.leadership.leader_id is not None:
                await cluster.ask("n2", "GET", "/healthz")
        ready = await cluster.ask("n2", "GET", "/readyz")
        assert ready.status == 503
        for said in "no leader is heard", f"free space on the volume of {tmp_path / 'n2'}":
            assert sum(said in reason for reason in ready.document["reasons"]) == 1


@pytest.mark.asyncio
@pytest.mark.full
async def test_a_leader_whose_disk_does_not_give_a_record_says_so_and_another_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"election_timeout_ms": 1_000, "heartbeat_ms": 100}
    async with running_cluster(tmp_path, 3, **settings) as cluster:
        assert (await write(cluster, b'["add", 1]')).status == 200
        absent = cluster.nodes["n3"].config
        await cluster.stop("n3")
        store = tmp_path / "n1" / "log" / f"{0:020d}.store"
        monkeypatch.setattr(os, "pread", Sectors(store).pread)

        unread = await cluster.ask("n1", "GET", "/records/0")

        assert (unread.status, unread.problem) == (503, "corrupt-here")
        assert f"{store.name} is corrupt at byte 64: input/output error" in unread.document["detail"]
        status = await until(cluster, lambda status: status["role"] == "follower" and status["ready"])
        [alarm] = [text for text in status["alarms"] if "rot" in text]
        assert alarm.startswith(f"its log has rot: {store.name} is corrupt at byte 64: input/output error")
        assert status["fitness"]["reason"] == "its log has rot"
        assert "start with an empty one" in status["fitness"]["do"]
        await logged(cluster, capsys, "its log has rot")
        cluster.nodes["n3"] = await started(absent)
        async with asyncio.timeout(DEADLINE_S):
            while (await cluster.ask("n3", "GET", "/records/0")).status != 200:
                pass


async def logged(cluster: RunningCluster, capsys: pytest.CaptureFixture[str], event: str) -> None:
    """Wait for a line of the journal."""
    async with asyncio.timeout(DEADLINE_S):
        while event not in capsys.readouterr().out:
            await cluster.ask("n1", "GET", "/healthz")


@pytest.mark.asyncio
async def test_a_node_whose_machine_failed_is_not_ready_and_says_what_to_do(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster:
        assert (await write(cluster, b'"apply fails"')).status == 504
        status = await until(cluster, lambda status: status["fitness"]["level"] == Level.MACHINE_FAILED)
        reason = status["reasons"][0]
        assert reason.startswith("applying stopped at index")
        assert "KeyError: 'apply fails'" in reason
        assert FIX_MACHINE in reason
        assert (await cluster.ask("n1", "GET", "/readyz")).status == 503
        assert await level_shown(cluster) == Level.MACHINE_FAILED


@pytest.mark.parametrize("reasons", [(DRAINED, ROTTEN), (ROTTEN, DRAINED)])
def test_a_drained_node_whose_log_has_rot_is_drained(reasons: tuple[str, str], tmp_path: Path) -> None:
    fitness, moment = Fitness(1), cast("Any", SimpleNamespace(awake=1, clock=1))
    for reason in reasons:
        fitness.set_aside(moment, reason, holds=True)

    status = fitness.status()

    assert {held.reason for held in (status, *status.lower)} == set(reasons)
    assert [str(sentence) for sentence in sentences(status, tmp_path)] == [f"{DRAINED}; {UNDRAIN}"]


def test_what_ails_a_node_in_two_ways_is_told_of_both(tmp_path: Path) -> None:
    slow = FitnessStatus(Level.SLOW_DISK, "the disk is slow", 7)
    status = FitnessStatus(Level.NO_ROOM, "the disk is full", 9, lower=(slow,))

    assert [text.partition(";")[0] for text in sentences(status, tmp_path)] == ["the disk is full", "the disk is slow"]
    document = fitness_document(status, tmp_path)
    assert (document["name"], [held["name"] for held in document["lower"]]) == ("no_room", ["slow_disk"])


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_node_with_two_faults_gives_all_its_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"machine": MOODY, "segment_bytes": SEGMENT_BYTES}
    async with running_cluster(tmp_path, 1, **settings) as cluster:
        with monkeypatch.context() as full:
            full.setattr(os, "posix_fallocate", _full)
            async with asyncio.timeout(DEADLINE_S):
                while (await write(cluster, b'"%s"' % (b"x" * 4_000))).status == 200:
                    pass
            await until(cluster, lambda status: status["fitness"]["level"] == Level.NO_ROOM)
            node = cluster.nodes["n1"].node
            node.components.applying.applier.failure = ApplyFailed(index=1, text="a fault", do="fix it")
            status = await until(cluster, lambda status: status["fitness"]["level"] == Level.MACHINE_FAILED)
            for told in (ADVICE[Level.NO_ROOM].format(data_dir=tmp_path / "n1"), "a fault; fix it"):
                assert any(told in text for text in status["reasons"])
                assert table_of(status).count(told) == 1


def test_every_level_has_its_advice_and_its_entry_in_the_runbook() -> None:
    runbook = (Path(__file__).parents[2] / "deploy" / "runbook.md").read_text()
    assert set(ADVICE) == set(Level)
    for level in set(Level) - {Level.FIT}:
        assert ADVICE[level]
        assert f"| {int(level)} `{level.name.lower()}` |" in runbook


class Moody:
    """A replica that is unfit, then fit again, and reports it at each check; then the checks are over."""

    def __init__(self) -> None:
        self._looks = iter([Level.FIT, Level.SLOW_DISK, Level.SLOW_DISK, Level.FIT])
        self.over = asyncio.Event()
        self.fitness = FitnessStatus(Level.FIT, "", 0)

    @property
    def core(self) -> "Moody":
        return self

    def status(self) -> "Moody":
        level = next(self._looks, None)
        if level is None:
            self.over.set()
        else:
            self.fitness = FitnessStatus(level, "its words", 1)
        return self


@pytest.mark.asyncio
async def test_each_change_of_the_level_is_logged_once() -> None:
    replica = Moody()
    with capture_logs() as logged:
        looking = asyncio.create_task(log_levels(cast("Any", replica), Path("data"), 0.0))
        async with asyncio.timeout(DEADLINE_S):
            await replica.over.wait()
        looking.cancel()
    assert [line["event"] for line in logged] == ["unfit to lead", "fit to lead again"]
