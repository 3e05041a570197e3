"""When records become durable and readable without a request."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from quire.log import (
    FLUSH_ALWAYS,
    FLUSH_NEVER,
    DiskFull,
    FlushPolicy,
    GroupFlusher,
    Log,
    LogOptions,
    LogReadOnly,
    NotYetFlushed,
    RecordsTruncated,
)
from quire.log.simulated import Disk, Keep
from tests.log.histories import SMALL, Clock, open_log


def log_with(disk: Disk, policy: FlushPolicy) -> Log:
    return open_log(disk, LogOptions(flush_policy=policy))


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until a condition holds; the deadline is generous."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    for _ in iter(condition, True):
        assert loop.time() < deadline
        await asyncio.sleep(0)


async def until_durable(log: Log, index: int) -> None:
    await until(lambda: log.durable_index >= index)


async def test_always_acknowledges_what_is_durable() -> None:
    log = log_with(Disk(), FLUSH_ALWAYS)
    flusher = GroupFlusher(log)
    log.append(["a"])
    await flusher.settled(1)
    assert log.durable_index == 1
    await flusher.close()


async def test_a_caller_waits_while_an_overwrite_finds_no_room_and_is_answered_when_there_is() -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_ALWAYS)
    flusher = GroupFlusher(log)
    disk.copies_on_write = disk.full = True
    log.append(["a"])
    waiting = asyncio.create_task(flusher.settled(1))
    await until(lambda: log.room.left == 0)
    with pytest.raises(DiskFull):
        log.append(["b"])
    assert not waiting.done()
    disk.full = False
    await waiting
    assert log.durable_index == 1
    await flusher.close()


async def test_a_caller_that_waits_for_room_at_a_stop_is_told_that_its_records_are_not_durable() -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_ALWAYS)
    flusher = GroupFlusher(log)
    disk.copies_on_write = disk.full = True
    log.append(["a"])
    waiting = asyncio.create_task(flusher.settled(1))
    await until(lambda: log.room.left == 0)
    await flusher.close()
    with pytest.raises(LogReadOnly, match="full"):
        await waiting
    assert log.failure is None


async def test_a_caller_that_waits_for_truncated_records_gets_an_error_and_the_log_stays_usable() -> None:
    log = log_with(Disk(), FLUSH_ALWAYS)
    flusher = GroupFlusher(log)
    log.append(["a"])
    waiting = asyncio.create_task(flusher.settled(1))
    await asyncio.sleep(0)
    log.truncate(0)
    log.append(["b"])  # It has the index of the record that is gone.
    with pytest.raises(RecordsTruncated) as error:
        await waiting
    assert error.value.index == 0
    await flusher.settled(1)
    assert log.read(0).value == "b"
    await flusher.close()


@pytest.mark.parametrize("cut", [4, 5], ids=["behind the second frame", "in the middle of the third"])
async def test_those_who_wait_for_records_below_a_truncation_are_answered_and_the_others_learn_its_index(
    cut: int,
) -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_ALWAYS)
    disk.holding_syncs = threading.Event()
    flusher = GroupFlusher(log)
    waiting: list[asyncio.Task[None]] = []
    for k in range(4):
        log.append([k, k])
        waiting.append(asyncio.create_task(flusher.settled(2 * k + 2)))
    await asyncio.sleep(0)
    disk.holding_syncs.set()
    log.truncate(cut)
    log.append([9, 9, 9])
    await until(lambda: all(waiter.done() for waiter in waiting))
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert answers[:2] == [None, None]
    assert [answer.index for answer in answers[2:] if isinstance(answer, RecordsTruncated)] == [cut, cut]
    await flusher.settled(cut + 3)
    assert [log.read(k).value for k in range(cut + 3)] == [*[0, 0, 1, 1, 2][:cut], 9, 9, 9]
    await flusher.close()


async def test_every_n_records_flushes_at_the_nth_and_not_before() -> None:
    log = log_with(Disk(), FlushPolicy(records=3, interval_ms=None))
    flusher = GroupFlusher(log)
    for k in range(2):
        log.append([k])
        await flusher.settled(k + 1)
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))
    assert log.durable_index == 0
    with pytest.raises(NotYetFlushed) as error:
        log.read(1)
    assert (error.value.index, error.value.durable) == (1, 0)
    log.append([2])
    await flusher.settled(3)
    await until_durable(log, 3)
    assert log.read(1).value == 1
    await flusher.close()


async def test_every_t_ms_flushes_the_oldest_in_time() -> None:
    log = log_with(Disk(), FlushPolicy(records=None, interval_ms=20))
    flusher = GroupFlusher(log)
    began = asyncio.get_running_loop().time()
    log.append(["a"])
    await flusher.settled(1)
    assert log.durable_index == 0
    await until_durable(log, 1)
    assert asyncio.get_running_loop().time() - began >= 0.019
    # What comes later is flushed as well, and again in time.
    log.append(["b"])
    await flusher.settled(2)
    await until_durable(log, 2)
    await flusher.close()


async def test_a_flusher_that_was_closed_before_its_time_is_held_by_no_timer() -> None:
    log = log_with(Disk(), FlushPolicy(records=None, interval_ms=3_600_000))
    flusher = GroupFlusher(log)
    log.append(["a"])
    await flusher.settled(1)
    await flusher.close()
    log.close()
    held = weakref.ref(flusher)
    del flusher, log
    gc.collect()
    assert held() is None


async def test_records_that_arrive_while_a_flush_runs_wait_for_the_next_one() -> None:
    disk = Disk()
    log = log_with(disk, FlushPolicy(records=2, interval_ms=None))
    flusher = GroupFlusher(log)
    log.append([0, 1])
    await flusher.settled(2)
    log.append([2, 3])
    await flusher.settled(4)
    await until_durable(log, 4)
    await flusher.close()


async def test_with_any_policy_a_flush_can_be_waited_for() -> None:
    for policy in (FLUSH_NEVER, FlushPolicy(1000, None)):
        log = log_with(Disk(), policy)
        flusher = GroupFlusher(log)
        log.append(["a"])
        await flusher.settled(1)
        assert log.durable_index == 0
        await flusher.flushed(1)
        assert log.durable_index == 1
        await flusher.close()


async def test_a_flush_that_the_policy_began_and_that_fails_turns_the_log_read_only() -> None:
    disk = Disk()
    log = log_with(disk, FlushPolicy(1, 1000))
    flusher = GroupFlusher(log)
    disk.failing = lambda operation, _name: operation == "sync"
    log.append(["a"])
    await flusher.settled(1)
    await until(lambda: log.failure is not None)
    with pytest.raises(LogReadOnly):
        log.append(["b"])
    with pytest.raises(LogReadOnly):
        await flusher.flushed(1)
    await flusher.close()


async def test_an_unexpected_error_of_a_flush_reaches_every_waiting_caller() -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_ALWAYS)
    flusher = GroupFlusher(log)

    def failing(operation: str, _name: str) -> bool:
        if operation == "sync":
            raise RuntimeError("a fault of ours")
        return False

    disk.failing = failing
    log.append(["a"])
    log.append(["b"])
    waiting = [asyncio.create_task(flusher.flushed(index)) for index in (1, 2)]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [repr(answer) for answer in answers] == ["RuntimeError('a fault of ours')"] * 2
    with pytest.raises(RuntimeError):
        await flusher.close()


def test_never_is_readable_at_once_durable_at_a_stop_and_lost_by_a_power_loss() -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_NEVER)
    log.append(["a"])
    assert log.read(0).value == "a"
    log.close()
    assert open_log(disk, SMALL).bounds == (0, 1)
    log = log_with(disk, FLUSH_NEVER)
    log.append(["b"])
    assert log.read(1).value == "b"
    disk.lose_power(Keep.NOTHING)
    assert log_with(disk, FLUSH_NEVER).bounds == (0, 1)


def test_never_still_makes_every_sealed_segment_durable() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions(segment_bytes=2048, flush_policy=FLUSH_NEVER))
    for k in range(60):
        log.append([str(k) * 40])
    base = log.segments.bases[-1]
    disk.lose_power(Keep.NOTHING)
    assert open_log(disk, SMALL).bounds == (0, base)


@pytest.mark.parametrize(("records", "interval_ms"), [(0, None), (None, 0), (-1, 5)])
def test_a_policy_below_its_limits_is_refused(records: int | None, interval_ms: int | None) -> None:
    with pytest.raises(ValueError, match="flush policy"):
        FlushPolicy(records, interval_ms)


def test_a_cluster_s_log_takes_no_other_policy_than_always() -> None:
    with pytest.raises(ValueError, match="FLUSH_ALWAYS"):
        Log.open(
            Disk().directory(),
            LogOptions(flush_policy=FLUSH_NEVER),
            cluster_id=bytes(16),
            clock=Clock(),
            standalone=False,
        )


async def test_who_waits_for_what_a_refused_truncation_took_hears_of_it() -> None:
    """A truncation inside a frame cuts after it first; if the frame cannot be split then, the rest is gone."""
    disk = Disk()
    log = open_log(disk, LogOptions())
    flusher = GroupFlusher(log)
    log.append(list(range(10)))
    await flusher.flushed(10)
    waiting = asyncio.create_task(flusher.flushed(log.append(["later"]) + 1))
    await asyncio.sleep(0)
    disk.full = True
    with pytest.raises(DiskFull):
        log.truncate(5)
    disk.full = False

    with pytest.raises(RecordsTruncated):
        await waiting
    assert log.bounds.highest_index == 10
    log.append(["another"])
    await flusher.flushed(11)
    await flusher.close()


def test_a_flush_that_a_rotation_overtook_takes_nothing_back_and_leaves_no_file_open() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["covered"])
    flush = log.begin_flush()
    assert flush is not None
    while len(log.segments.bases) == 1:
        log.append(["x" * 500])
    durable_index = log.durable_index
    assert durable_index > 1
    flush.run()
    log.end_flush(flush)
    assert log.durable_index == durable_index
    log.close()
    assert disk.open_files == 0


def test_a_mark_that_was_made_while_one_was_synced_is_written_and_synced_next() -> None:
    log = open_log(Disk())
    log.append(["a"])
    log.flush()
    sync = log.mark_sync.begin()
    assert sync is not None
    log.append(["b"])
    log.flush()
    sync.run()
    log.mark_sync.end(sync)
    assert log.mark_sync.begin() is not None


async def test_a_mark_that_cannot_be_synced_turns_the_log_read_only_and_leaves_no_caller_waiting() -> None:
    disk = Disk()
    log = log_with(disk, FLUSH_ALWAYS)
    flusher = GroupFlusher(log)
    log.append(["a"])
    await flusher.flushed(1)
    await flusher.sync_mark()
    synced = log.mark.synced
    log.append(["b"])
    await flusher.flushed(2)

    disk.failing = lambda operation, name: operation == "sync" and name.endswith("mark")
    log.append(["c"])
    waiting = asyncio.create_task(flusher.flushed(3))
    with pytest.raises(LogReadOnly):
        await flusher.sync_mark()
    async with asyncio.timeout(30):
        [answer] = await asyncio.gather(waiting, return_exceptions=True)

    assert answer is None or isinstance(answer, LogReadOnly)
    assert "syncing the mark" in (log.failure or "")
    assert log.mark.synced == synced, "what was not synced proves nothing"
    with pytest.raises(LogReadOnly):
        log.append(["d"])
    with pytest.raises(LogReadOnly):
        await flusher.sync_mark()
    await flusher.close()
    disk.failing = None
    disk.lose_power(Keep.NOTHING)
    assert open_log(disk, LogOptions()).bounds.highest_index >= 2
