"""Snapshots of running nodes: taken while they serve, equal on all of them, and where a restart begins."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from quire import ServerFault, connect
from quire.cluster.compaction import snapshotting
from quire.cluster.compaction.forked import Child, ChildFailed, Patience, in_thread
from quire.cluster.node.views.status import node_status
from quire.log import DiskFull
from quire.sm import Manifest, snapshot_name
from tests.cluster.running import RunningCluster, applied_index, running_cluster

RECORDS, BATCH = 50, 20
DEADLINE_S = 30.0


def snapshots(cluster: RunningCluster, node_id: str) -> Any:
    """What a node says of its snapshots."""
    return node_status(cluster.nodes[node_id].node)["snapshots"]


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    """Wait for what the nodes do by themselves."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask(next(iter(cluster.nodes)), "GET", "/healthz")


async def filled(cluster: RunningCluster, batches: int = 12) -> None:
    """Commands, and every node has applied them."""
    for _ in range(batches):
        await cluster.commands("n1", *[["add", 1]] * BATCH)
    nodes = [running.node for running in cluster.nodes.values()]
    await until(cluster, lambda: len({applied_index(node) for node in nodes}) == 1)


def is_idle(cluster: RunningCluster, node_id: str) -> bool:
    return snapshots(cluster, node_id)["taking"] is None


def sums(cluster: RunningCluster, node_id: str) -> dict[int, str]:
    return {kept["index"]: kept["sha256"] for kept in snapshots(cluster, node_id)["kept"]}


@pytest.mark.asyncio
async def test_snapshots_are_taken_at_the_same_boundaries_and_equal_on_all_nodes(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, snapshot_records=RECORDS) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            # A boundary that comes while a snapshot is on its way is passed over: more come, until each has two.
            while any(len(sums(cluster, node_id)) < 2 for node_id in cluster.nodes):
                await filled(cluster, 1)
        for node_id in cluster.nodes:
            await until(cluster, partial(is_idle, cluster, node_id))
            # By records: on the first boundary past a multiple, whatever node it is.
            assert all(index % RECORDS < BATCH for index in sums(cluster, node_id))
        assert (await cluster.ask("n2", "GET", "/cluster")).document["snapshots"]["differ"] == []
        for node_id in cluster.nodes:
            assert (await cluster.ask(node_id, "POST", "/admin/snapshot")).status == 200
        at_the_end = {node_id: sums(cluster, node_id) for node_id in cluster.nodes}
        index = max(at_the_end["n1"])
        assert len({taken[index] for taken in at_the_end.values()}) == 1
        shown = (await cluster.ask("n2", "GET", "/cluster")).document["snapshots"]
        assert shown == {"compared": shown["compared"], "differ": []}
        assert index in shown["compared"]


@pytest.mark.asyncio
async def test_a_restart_begins_at_the_newest_snapshot(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        await filled(cluster)
        taken = (await cluster.ask("n3", "POST", "/admin/snapshot")).document
        assert (taken["node_id"], taken["index"]) == ("n3", applied_index(cluster.nodes["n3"].node))
        await filled(cluster, 2)
        digest = cluster.nodes["n1"].node.components.applying.digest
        await cluster.restart("n3")
        applier = cluster.nodes["n3"].node.formed
        assert applier is not None
        assert applier.applying.applier.applied_index >= taken["index"]
        await until(cluster, lambda: cluster.nodes["n3"].node.components.applying.digest == digest)
        assert sums(cluster, "n3") == {taken["index"]: taken["sha256"]}
        assert snapshots(cluster, "n1")["kept"] == []


@pytest.mark.asyncio
async def test_a_node_does_not_know_what_executed_before_the_snapshot_it_began_with(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        session = (await cluster.ask("n1", "POST", "/sessions", b"{}", "application/json")).document["session"]
        retried = {"Quire-Session": str(session), "Quire-Sequence": "1"}
        for _ in range(2):
            await cluster.ask("n1", "POST", "/commands", b'{"commands": [["add", 1]]}', "application/json", retried)
        assert await executed(cluster) == [True, False]
        await cluster.ask("n1", "POST", "/admin/snapshot")
        await cluster.ask("n1", "POST", "/commands", b'{"commands": [["add", 1]]}', "application/json", retried)
        assert await executed(cluster) == [True, False, False]

        await cluster.restart("n1")
        await cluster.ready()
        assert await executed(cluster) == [None, None, False]


async def executed(cluster: RunningCluster) -> list[Any]:
    """Of each record, whether it executed, as the only node says."""
    reply = await cluster.ask("n1", "GET", "/records")
    return [orjson.loads(line)["executed"] for line in reply.body.splitlines()]


@pytest.mark.asyncio
async def test_a_damaged_snapshot_is_set_aside_and_the_older_one_used_with_more_of_the_log(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        indices = []
        for _ in range(2):
            await filled(cluster, 2)
            indices.append((await cluster.ask("n1", "POST", "/admin/snapshot")).document["index"])
        await filled(cluster, 1)
        before = (await cluster.ask("n1", "GET", "/state")).document
        chunk = tmp_path / "n1" / "snapshots" / snapshot_name(indices[1]) / "00000000.chunk"
        chunk.write_bytes(b"\xff" + chunk.read_bytes()[1:])
        await cluster.restart("n1")
        await cluster.ready()
        after = (await cluster.ask("n1", "GET", "/state")).document
        assert (after["state"], after["digest"]) == (before["state"], before["digest"])
        told = snapshots(cluster, "n1")
        assert [kept["index"] for kept in told["kept"]] == indices[:1]
        assert "fails its crc32c" in told["damaged"][0]
        assert (tmp_path / "n1" / "quarantine" / f"snapshot-1-{snapshot_name(indices[1])}").is_dir()


@pytest.mark.asyncio
async def test_a_session_goes_on_behind_a_snapshot_and_executes_nothing_twice(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        session = (await cluster.ask("n1", "POST", "/sessions", b'{"name": "s"}', "application/json")).document
        headers = {"Quire-Session": str(session["session"]), "Quire-Sequence": "1"}
        body = b'{"commands": [["add", 3], ["mul", 2]]}'
        first = await cluster.ask("n1", "POST", "/commands", body, "application/json", headers)
        await cluster.ask("n1", "POST", "/admin/snapshot")
        await cluster.restart("n1")
        await cluster.ready()
        again = await cluster.ask("n1", "POST", "/commands", body, "application/json", headers)
        assert again.document["results"] == first.document["results"] == ["45", "90"]
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "90"


@pytest.mark.asyncio
async def test_a_snapshot_is_due_by_bytes(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=1000) as cluster:
        async with asyncio.timeout(DEADLINE_S):
            while len(snapshots(cluster, "n1")["kept"]) < 2:
                await filled(cluster, 1)


@pytest.mark.asyncio
async def test_who_asks_twice_gets_the_same_snapshot_and_no_second_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        answers = await asyncio.gather(*(cluster.ask("n1", "POST", "/admin/snapshot") for _ in range(3)))
        assert len({answer.document["index"] for answer in answers}) == 1
        assert len(snapshots(cluster, "n1")["kept"]) == 1


@pytest.mark.asyncio
async def test_who_asks_for_more_in_the_turn_in_which_a_snapshot_ends_gets_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        taking = cluster.nodes["n1"].node.components.compaction.snapshotting
        further, late = asyncio.Event(), list[asyncio.Task[Manifest]]()
        shield = asyncio.shield

        async def later(block: Callable[..., Any], *given: object) -> Any:
            await further.wait()
            return await in_thread(block, *given)

        def ending() -> None:
            """Called when the first one is complete; what begins here runs before the callbacks of its task."""
            if not late:
                late.append(asyncio.create_task(taking.take()))

        def waited_for(task: asyncio.Future[Manifest]) -> asyncio.Future[Manifest]:
            assert not task.done(), "to wait for it again and again gives no other task a turn"
            return shield(task)

        monkeypatch.setattr("quire.cluster.compaction.snapshotting.in_thread", later)
        monkeypatch.setattr(taking, "_log_damaged", ending)
        monkeypatch.setattr(asyncio, "shield", waited_for)
        first = asyncio.create_task(taking.take())
        await until(cluster, lambda: not is_idle(cluster, "n1"))
        await cluster.commands("n1", ["add", 1])
        further.set()
        async with asyncio.timeout(DEADLINE_S):
            taken = (await first).index
            assert (await late[0]).index > taken


@pytest.mark.asyncio
async def test_a_child_that_is_killed_leaves_no_snapshot_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        await filled(cluster, 1)
        assert node.formed is not None
        machine = node.formed.applying.applier.machine
        monkeypatch.setattr(machine, "snapshot", lambda: iter((_kill_this_process(),)), raising=False)
        refused = await cluster.ask("n1", "POST", "/admin/snapshot")
        assert (refused.status, refused.problem) == (503, "snapshot-failed")
        assert "ended with status 9" in snapshots(cluster, "n1")["failure"]
        monkeypatch.undo()
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200
        assert snapshots(cluster, "n1")["failure"] == ""
        assert os.listdir(tmp_path / "n1" / "snapshots") == [snapshot_name(applied_index(node))]


def _kill_this_process() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


@pytest.mark.asyncio
async def test_a_disk_without_room_is_an_error_of_its_own_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        kept = (await cluster.ask("n1", "POST", "/admin/snapshot")).document
        await filled(cluster, 1)
        assert node.formed is not None
        machine = node.formed.applying.applier.machine
        monkeypatch.setattr(machine, "snapshot", _no_room, raising=False)
        refused = await cluster.ask("n1", "POST", "/admin/snapshot")
        assert (refused.status, refused.problem) == (503, "snapshot-failed")
        assert refused.document["detail"].startswith("no snapshot was taken: the disk is full")
        async with connect([cluster.address("n1")], timeout_s=3600) as client, asyncio.timeout(DEADLINE_S):
            with pytest.raises(ServerFault, match="no snapshot was taken: the disk is full"):
                await client.take_snapshot(cluster.address("n1"))
        assert list(sums(cluster, "n1")) == [kept["index"]]
        assert os.listdir(tmp_path / "n1" / "snapshots") == [snapshot_name(kept["index"])]
        await filled(cluster, 1)


@pytest.mark.asyncio
async def test_a_fault_of_the_program_is_told_where_a_snapshot_fails_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object) -> None:
        raise KeyError("says the test")

    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        monkeypatch.setattr(node.formed.compaction.store, "retain", faulty)
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 500
        assert "a fault of this program: KeyError" in snapshots(cluster, "n1")["failure"]
    assert 'raise KeyError("says the test")' in capsys.readouterr().out


def _no_room() -> Any:
    raise DiskFull("00000000.chunk", 1)


@pytest.mark.asyncio
async def test_a_child_says_what_it_found_and_what_it_raised() -> None:
    found = {"a": 1}

    def look(go_on: Callable[[], None]) -> bytes:
        go_on()
        return str(found).encode()

    child = Child(look)
    found["b"] = 2
    assert await child.report() == b"{'a': 1}"
    child.kill()  # It has ended: nothing else has its number.

    def fails(go_on: Any) -> bytes:
        raise KeyError("x")

    with pytest.raises(ChildFailed, match="KeyError: 'x'"):
        await Child(fails).report()


@pytest.mark.asyncio
async def test_a_child_holds_nothing_of_its_parent_s_open() -> None:
    reading, writing = os.pipe()

    def look(go_on: Any) -> bytes:
        return " ".join(sorted(os.listdir("/proc/self/fd"), key=int)).encode()

    told = (await Child(look).report()).decode().split()
    os.close(reading)
    os.close(writing)
    assert set(told[:3]) == {"0", "1", "2"}
    assert len(told) <= 5  # its pipe, and the listing's own


_sent_at_fork: list[signal.Signals] = []
"""Signals that a forked child gets before the code after the fork runs."""


def _hit_at_fork() -> None:
    for number in _sent_at_fork:
        os.kill(os.getpid(), number)


os.register_at_fork(after_in_child=_hit_at_fork)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.asyncio
async def test_a_signal_that_hits_a_child_right_after_the_fork_does_not_reach_its_parent(
    number: signal.Signals,
) -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for each in (number, signal.SIGUSR1):
        loop.add_signal_handler(each, heard.put_nowait, each)
    _sent_at_fork.append(number)
    try:
        child = Child(lambda _: b"done")
        _sent_at_fork.clear()
        (outcome,) = await asyncio.gather(child.report(), return_exceptions=True)
        os.kill(os.getpid(), signal.SIGUSR1)  # The loop's pipe holds it after whatever the child wrote there.

        async with asyncio.timeout(DEADLINE_S):
            assert await heard.get() is signal.SIGUSR1
        if number is signal.SIGHUP:
            assert outcome == b"done"
        else:
            assert str(outcome) == f"the child ended with status {number:d}"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    finally:
        _sent_at_fork.clear()
        for each in (number, signal.SIGUSR1):
            loop.remove_signal_handler(each)


@pytest.mark.asyncio
async def test_a_stop_gives_a_snapshot_up_that_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        machine = node.formed.applying.applier.machine
        monkeypatch.setattr(machine, "snapshot", _stands_still, raising=False)
        asked = asyncio.create_task(cluster.ask("n1", "POST", "/admin/snapshot"))
        await until(cluster, lambda: snapshots(cluster, "n1")["taking"] is not None)
        await cluster.nodes["n1"].node.formed.compaction.snapshotting.stop()  # type: ignore[union-attr]
        assert (await asked).problem == "snapshot-failed"
        assert os.listdir(tmp_path / "n1" / "snapshots") == []


def _stands_still() -> Any:
    signal.pause()
    yield b""


IMPATIENT = Patience(idle_s=0.1, piece_s=60.0, look_s=0.05)


@pytest.mark.asyncio
async def test_a_child_that_hangs_is_killed_told_of_and_the_next_snapshot_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        taking = node.formed.compaction.snapshotting
        with monkeypatch.context() as hanging:
            hanging.setattr(taking, "patience", IMPATIENT)
            hanging.setattr(snapshotting, "OVERDUE_S", 0.0)
            hanging.setattr(node.formed.applying.applier.machine, "snapshot", _stands_still, raising=False)
            refused = await cluster.ask("n1", "POST", "/admin/snapshot")
            assert (refused.status, refused.problem) == (503, "snapshot-failed")
            assert "made no progress" in snapshots(cluster, "n1")["failure"]
            assert os.listdir(tmp_path / "n1" / "snapshots") == []
            [alarm] = [text for text in node_status(node)["alarms"] if "no snapshot was finished" in text]
            assert "made no progress" in alarm
            assert snapshots(cluster, "n1")["overdue_seconds"] > 0
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200
        assert (snapshots(cluster, "n1")["failure"], snapshots(cluster, "n1")["overdue_seconds"]) == ("", 0)
        assert not any("no snapshot was finished" in text for text in node_status(node)["alarms"])


@pytest.mark.asyncio
async def test_a_snapshot_that_failed_is_due_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        machine = node.formed.applying.applier.machine
        with monkeypatch.context() as without_room:
            without_room.setattr(machine, "snapshot", _no_room, raising=False)
            assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 503
        await filled(cluster, 1)
        assert snapshots(cluster, "n1")["taking"] is None
        monkeypatch.setattr(snapshotting, "AGAIN_AFTER_S", 0.0)
        await filled(cluster, 1)
        await until(cluster, lambda: len(snapshots(cluster, "n1")["kept"]) > 0)


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_child_that_is_busy_and_begins_no_piece_is_killed() -> None:
    def works_for_ever(go_on: Callable[[], None]) -> bytes:
        go_on()
        while True:
            pass

    with pytest.raises(ChildFailed, match="was busy for 1 s and wrote nothing"):
        await Child(works_for_ever).report(Patience(idle_s=60.0, piece_s=1.0, look_s=0.3))


@pytest.mark.soak
@pytest.mark.asyncio
async def test_a_child_that_begins_pieces_is_not_killed_however_long_all_take() -> None:
    def works_for_seconds(go_on: Callable[[], None]) -> bytes:
        while time.process_time() < began + 5.0:
            go_on()
        return b"done"

    began = 0.0  # Of the child's own time: a fork's begins at 0.
    assert await Child(works_for_seconds).report(Patience(idle_s=60.0, piece_s=4.0, look_s=0.2)) == b"done"


@pytest.mark.asyncio
async def test_a_snapshot_above_what_is_committed_is_a_broken_invariant_and_halts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        applied = applied_index(node)
        monkeypatch.setattr(node.formed.compaction.snapshotting, "_limit", lambda: applied - 1)
        refused = await cluster.ask("n1", "POST", "/admin/snapshot")
        assert (refused.status, refused.problem) == (503, "state-unavailable")
        assert node.health.failure is not None
        assert f"the limit is {applied - 1}" in node.health.failure
        assert os.listdir(tmp_path / "n1" / "snapshots") == []


@pytest.mark.asyncio
async def test_a_snapshot_of_all_that_is_committed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path, 1, snapshot_records=0, snapshot_log_bytes=0) as cluster:
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        applied = applied_index(node)
        monkeypatch.setattr(node.formed.compaction.snapshotting, "_limit", lambda: applied)
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).document["index"] == applied
