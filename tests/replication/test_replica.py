"""The driver on asyncio: what it does when the disk fails, hangs or fills, and how it stops."""

import asyncio
import threading
import time

import pytest

from quire.log import DiskFull, Kind, encode_blob, wall_clock
from quire.log.simulated import faulty
from quire.replication import Promise, Reason, Write
from quire.replication.core import events
from quire.replication.core.election import Phase
from quire.replication.core.fitness import Level
from quire.replication.core.membership.changing import NotLeading, Promote
from quire.replication.core.messages import Last, PreVoteAnswer
from tests.replication.loopback import DEADLINE_S, calling, turns, until, who
from tests.replication.running import Cluster, Running, alone, cluster_of


async def test_a_write_on_one_node_is_appended_flushed_and_committed() -> None:
    async with alone() as node:
        write = node.write("a", "b")

        await until(lambda: node.owner.applied_index == node.log.tail.index and node.owner.placements)

        (placed,) = node.owner.placements
        assert [share.write for share in placed.shares] == [write]
        assert node.log.durable_index == placed.next_index


async def test_all_writes_proposed_in_one_turn_of_the_loop_share_a_frame() -> None:
    async with alone() as node:
        writes = [node.write(number) for number in range(5)]

        await until(lambda: node.owner.placements)

        assert [share.write for share in node.owner.placements[0].shares] == writes


# Disks that fail


def failing(node_device: faulty.Disk, operation: str, name: str) -> None:
    node_device.failing = lambda what, file: what == operation and file.endswith(name)


async def test_a_failed_flush_is_final_and_proves_nothing() -> None:
    async with alone() as node:
        durable, applied = node.log.durable_index, node.owner.applied_index
        failing(node.device, "sync", ".store")

        node.write("a")
        await until(lambda: node.owner.halts)

        assert (node.log.durable_index, node.owner.applied_index) == (durable, applied)
        assert node.log.failure is not None
        assert not node.serves
        assert node.owner.roles[-1].role == "follower"


async def test_a_flush_that_ends_in_any_error_proves_nothing() -> None:
    # Not only an OSError: whatever keeps a sync from its end keeps it from proving anything.
    async with alone() as node:
        durable = node.log.durable_index
        node.device.holding_syncs = threading.Event()
        node.write("a")
        await until(lambda: node.owner.placements)
        await turns(5)

        node.device.lose_power(faulty.Keep.NOTHING)
        node.device.holding_syncs.set()
        await until(lambda: node.owner.halts)

        assert node.log.durable_index == durable
        assert node.owner.applied_index <= durable


async def test_a_failed_flush_leaves_no_clean_mark_behind() -> None:
    async with alone() as node:
        failing(node.device, "sync", ".store")
        node.write("a")
        await until(lambda: node.owner.halts)
        await node.replica.stop()
        node.log.close()

        node.device.failing = None
        node.device.lose_power(faulty.Keep.NOTHING)
        again = Cluster("n1").make("n1", node.device)
        assert again.log.tail.index == again.log.durable_index
        await again.replica.stop()


async def test_a_mark_that_cannot_be_written_ends_the_leadership() -> None:
    async with alone() as node:
        failing(node.device, "write", "mark")

        node.write("a")
        await until(lambda: node.owner.halts)

        assert node.log.failure is not None


@pytest.mark.slow
async def test_a_mark_that_cannot_be_synced_halts_the_node_and_it_still_stops() -> None:
    async with alone() as node:
        failing(node.device, "sync", "mark")

        node.write("a")
        await until(lambda: node.owner.halts)
        await asyncio.wait_for(node.replica.stop(), DEADLINE_S)


async def pre_vote(node: Running, held_epoch: int) -> None:
    """Let n2 say yes to the pre-vote that this node asks for."""
    candidate = node.replica.core.candidate
    await until(lambda: candidate.phase is Phase.PRE_VOTE)
    answer = PreVoteAnswer(candidate.attempt, True, held_epoch, Last(0, 1), wall_clock())
    node.replica.network.message_received(who("n2"), answer)


async def test_a_promise_that_cannot_be_written_is_not_kept_as_stored() -> None:
    node = Cluster("n1", "n2", "n3").make("n1")
    async with calling() as session:
        node.replica.start(session, nominated=True)
        failing(node.device, "sync", "promise")

        await pre_vote(node, held_epoch=0)
        await until(lambda: node.owner.halts)

        assert node.replica.core.state.stored_promise == Promise(0, "", 0)
        await node.replica.stop()


async def test_an_epoch_that_no_promise_can_hold_is_never_taken_as_promised() -> None:
    # A peer that claims the highest u64 asks for an epoch above it.
    node = Cluster("n1", "n2", "n3").make("n1")
    async with calling() as session:
        node.replica.start(session, nominated=True)

        await pre_vote(node, held_epoch=2**64 - 1)
        await turns(200)
        await asyncio.wait_for(node.replica.stop(), DEADLINE_S)

        assert node.replica.core.state.stored_promise.epoch < 2**64
        assert node.replica.core.state.stored_promise == node.disk.promises.promise


@pytest.mark.full
async def test_a_leader_whose_flush_hangs_steps_down() -> None:
    # Rule 11.
    async with alone() as node:
        node.device.holding_syncs = threading.Event()
        node.write("a")

        await until(lambda: not node.serves)

        assert node.owner.roles[-1].role == "follower"
        assert node.owner.applied_index < node.log.tail.index


async def test_the_time_for_which_the_machine_was_suspended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rule 11: a leader that slept for an hour has not heard a majority for an hour. CLOCK_MONOTONIC stands meanwhile.
    hour_us, shown = 3_600_000_000, time.clock_gettime_ns
    async with alone() as node:
        slept_until = node.replica.core.state.now + hour_us

        def after_sleep(clock: int) -> int:
            return shown(clock) + (hour_us * 1_000 if clock == time.CLOCK_BOOTTIME else 0)

        monkeypatch.setattr(time, "clock_gettime_ns", after_sleep)

        await until(lambda: node.replica.core.state.now >= slept_until)


def fill(node: Running, *, reserve: bool) -> None:
    """Append to the log until the disk gives no room for a small frame, or only the reserve is left."""
    node.device.full = True
    for size in (1 << 20, 1 << 14, 1 << 8, 1):
        with pytest.raises(DiskFull):
            fill_with(node, encode_blob(bytes(size)), reserve)
    node.log.flush()


def fill_with(node: Running, payload: bytes, reserve: bool) -> None:
    for _ in range(10_000):
        node.log.append_payload(payload, count=1, kind=Kind.BLOB, epoch=node.log.tail.epoch, reserved=reserve)


async def answered(node: Running, write: Write[None]) -> None:
    """Wait until a write was placed or given back."""
    await until(
        lambda: (
            any(share.write is write for placed in node.owner.placements for share in placed.shares)
            or any(rejected is write for rejected, _ in node.owner.rejections)
        )
    )


async def test_a_full_disk_refuses_writes_and_takes_them_again_once_it_has_room() -> None:
    async with alone() as node:
        node.device.full = True
        for _ in range(20):
            await answered(node, node.write("x" * 1_000_000))
        refused = len(node.owner.rejections)

        node.device.full = False
        await answered(node, node.write("y" * 1_000_000))

        assert {reason for _, reason in node.owner.rejections} == {Reason.DISK_FULL}
        assert (0 < refused < 20, len(node.owner.rejections)) == (True, refused)
        assert node.owner.halts == []


async def test_a_leader_that_has_no_room_for_its_first_record_does_not_stay_leader() -> None:
    node = Cluster("n1").make("n1")
    fill(node, reserve=True)
    async with calling() as session:
        node.replica.start(session, nominated=True)
        await until(lambda: node.replica.core.status().fitness.level is Level.NO_ROOM)
        assert not node.serves
        assert node.disk.promises.promise.epoch == 1
        await node.replica.stop()


async def test_a_leader_whose_disk_is_full_has_room_for_its_first_record() -> None:
    node = Cluster("n1").make("n1")
    fill(node, reserve=False)
    async with calling() as session:
        node.replica.start(session, nominated=True)
        await until(lambda: node.serves)
        await answered(node, node.write("x"))
        assert [reason for _, reason in node.owner.rejections] == [Reason.DISK_FULL]
        await node.replica.stop()


# Faults of the program


def raises(*_arguments: object) -> None:
    raise ValueError("planted")


async def test_a_core_that_raises_halts_the_node_and_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async with alone() as node:
        monkeypatch.setattr(node.replica.core, "_tick", raises)
        await until(lambda: node.owner.halts)
        assert set(node.owner.halts) == {"ValueError('planted')"}

        monkeypatch.undo()
        tail, writes = node.log.tail, [node.write("a"), node.write("b")]
        await until(lambda: len(node.owner.rejections) == len(writes))
        assert (node.owner.rejections, node.log.tail) == ([(write, Reason.NOT_LEADER) for write in writes], tail)
        assert node.replica.core.handle(events.Tick(), 0, 0) == []


async def test_a_write_in_flight_during_a_bug_is_not_rejected_as_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with alone() as node:
        tail = node.log.tail.index
        monkeypatch.setattr(node.owner, "placed", raises)

        node.write("a")
        await until(lambda: node.owner.halts)

        assert node.log.tail.index == tail + 1  # It is in the file, and may yet be committed by another leader.
        assert node.owner.rejections == []


async def test_a_bug_at_the_end_of_a_flush_halts_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    # It comes back from the writer's thread, past every step.
    async with alone() as node:
        monkeypatch.setattr(node.disk.log, "end_flush", raises)

        node.write("a")
        await until(lambda: node.owner.halts)

        assert node.owner.halts == ["ValueError('planted')"]


# Stopping


async def test_a_stopped_replica_rejects_a_write() -> None:
    async with alone() as node:
        await node.replica.stop()
        tail = node.log.tail.index

        write = node.write("too late")
        await turns(20)

        assert node.owner.rejections == [(write, Reason.NOT_LEADER)]
        assert node.log.tail.index == tail
        assert node.owner.halts == []


async def test_a_stopped_replica_answers_a_read_a_transfer_and_a_change_of_members() -> None:
    async with alone() as node:
        await node.replica.stop()

        node.replica.driver.ask_read(7)
        node.replica.driver.transfer("n2")
        node.replica.driver.change(3, Promote("n2", "n2:1"))
        await turns(20)

        assert node.owner.reads == {7: None}
        assert node.owner.transfers == ["this node is stopping"]
        assert node.owner.changes == {3: NotLeading()}


async def test_every_write_that_waits_when_a_replica_stops_is_placed_or_rejected() -> None:
    async with alone() as node:
        node.device.holding_syncs = threading.Event()
        first = node.write("in the flush")
        await until(lambda: node.owner.placements)
        waiting = [node.write(number) for number in range(3)]
        await turns(2)
        last = node.write("in this turn")

        stopping = asyncio.create_task(node.replica.stop())
        await turns(5)
        node.device.holding_syncs.set()
        await asyncio.wait_for(stopping, DEADLINE_S)

        placed = [share.write for placed in node.owner.placements for share in placed.shares]
        rejected = [write for write, _ in node.owner.rejections]
        assert placed[0] is first
        assert {id(write) for write in placed + rejected} == {id(write) for write in [first, *waiting, last]}
        assert len(placed + rejected) == 5


async def test_a_log_closed_behind_a_stopped_replica_opens_as_it_was() -> None:
    async with alone() as node:
        for number in range(50):
            node.write(number)
        await turns(3)
        await node.replica.stop()
        node.write("too late")
        node.log.close()
        tail = node.log.tail

        again = Cluster("n1").make("n1", node.device)

        assert again.log.tail == tail
        await again.replica.stop()


async def test_a_replica_stops_twice_and_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with cluster_of("n1", "n2", "n3") as cluster:
        cluster["n1"].write("a")
        await until(lambda: cluster["n3"].owner.applied_index == cluster["n1"].log.tail.index)
        for node in cluster.nodes.values():
            await asyncio.wait_for(node.replica.stop(), DEADLINE_S)
            await asyncio.wait_for(node.replica.stop(), DEADLINE_S)
        await turns(50)

        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert [name for name in left if name.startswith(("link", "stream", "ticks", "mark"))] == []


@pytest.mark.parametrize("node_id", ["n1", "n2"])
async def test_a_clean_stop_halts_nobody(node_id: str) -> None:
    async with cluster_of("n1", "n2", "n3") as cluster:
        for number in range(100):
            cluster["n1"].write(number)
        owner = cluster[node_id].owner

        await cluster.stop(node_id)
        await turns(50)

        assert owner.halts == []
