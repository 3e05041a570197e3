"""Applying: in slices of the loop, in a machine's own thread, and from a log that cannot be read for a while."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest

from quire.cluster.errors import NodeStopping
from quire.cluster.node import applying as module
from quire.cluster.node.applying import Applying, ApplyPorts, Visibility
from quire.cluster.node.digests import Digests
from quire.log import FrameHeader, Log
from quire.log.simulated import Disk
from quire.sm import Applied, Applier, ApplyFailed, ArithmeticMachine, Context
from quire.sm.errors import StateUnproven
from tests.log.histories import open_log

DEADLINE_S = 60.0


class Told:
    """A node that keeps what applying reports."""

    def __init__(self) -> None:
        self.frames = self.resumed = 0
        self.results: list[Any] = []
        self.failures: list[Exception | str] = []

    def applied(self, applied: Applied) -> None:
        self.frames += 1
        self.results += applied.results

    def at_boundary(self, header: FrameHeader) -> None:
        pass

    def end(self, reason: str) -> None:
        self.failures.append(reason)

    def resume(self) -> None:
        self.resumed += 1

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


def applying_of(log: Log, applier: Applier, told: Told) -> Applying:
    """Applying that reports to `told`."""
    applying = Applying(log, applier, Visibility())
    applying.connect(ApplyPorts(told, Digests(lambda *_: None), told, told))
    return applying


def test_the_digest_that_a_machine_starts_with_is_compared_with_others() -> None:
    digests, told = Digests(lambda *_: None), Told()
    applier = Applier(ArithmeticMachine())
    Applying(open_log(Disk()), applier, Visibility()).connect(ApplyPorts(told, digests, told, told))

    digests.reported("n2", applier.applied_index, b"another digest..")

    assert set(digests.differing) == {"n2"}


@pytest.mark.asyncio
async def test_what_is_committed_is_applied_once_the_log_can_be_read_again_and_nothing_fails_before() -> None:
    disk = Disk()
    log = open_log(disk)
    for _ in range(200):
        log.append([["add", 1]] * 4)
    log.flush()
    assert len(log.segments.bases) > 3
    node = Told()
    applying = applying_of(log, Applier(ArithmeticMachine()), node)
    disk.exhausted = True

    applying.apply_to(log.durable_index)
    reached = asyncio.create_task(applying.reached(log.durable_index))
    for _ in range(10):  # Whatever else is committed meanwhile asks again.
        await asyncio.sleep(0)
        applying.apply_to(log.durable_index)

    assert (node.failures, node.frames, reached.done()) == ([], 0, False)

    disk.exhausted = False
    async with asyncio.timeout(DEADLINE_S):
        await reached
    assert (node.failures, applying.applier.applied_index) == ([], log.durable_index)


def test_an_unproven_state_is_answered_once_it_is_shared_and_no_sooner() -> None:
    log, node, asked = a_log([["add", 1]], [["add", 2]], [["add", 3]]), Told(), list[int]()
    proper, applier, shared = Applier(ArithmeticMachine()), Applier(ArithmeticMachine()), False
    for frame in log.reader.stream(0, 2):
        proper.apply(frame)
    unread = StateUnproven(index=2, text="restore raised", do="give it the code", digest=proper.digest, from_index=0)
    applier.unproven = unread

    def is_shared(index: int) -> bool:
        asked.append(index)
        return shared

    applying = Applying(log, applier, Visibility())
    applying.connect(ApplyPorts(node, Digests(lambda *_: None), node, node, is_shared))
    applying.apply_to(1)
    assert (asked, applying.machine_failed) == ([], True)  # Below the snapshot equal digests prove nothing about it.
    for to in (2, 3, 3):
        applying.apply_to(to)
        with pytest.raises(StateUnproven):
            applier.query(None)
    assert (set(asked), node.resumed) == ({2}, 0)
    shared = True
    applying.apply_to(3)
    assert (applier.query(None), node.failures, node.resumed) == ("48", [str(unread)], 1)


class Sum:
    """A machine whose commands wait for the test: each takes its turn when `go` allows one more."""

    name = "sum"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        self.total = 0
        self.threads: set[int] = set()
        self.go = threading.Semaphore(0)

    def check(self, command: Any) -> None:
        pass

    def apply(self, command: Any, context: Context) -> int:
        self.threads.add(threading.get_ident())
        self.go.acquire()
        if command == "fail":
            raise ValueError(command)
        self.total += command
        return self.total

    def query(self, request: Any) -> Any:
        self.threads.add(threading.get_ident())
        return self.total

    def snapshot(self) -> Iterator[bytes]:
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        pass


class QuickSum(Sum):
    """The same on the loop; every command lets time pass."""

    quick = True

    def __init__(self, initial: Any = None) -> None:
        super().__init__()
        self.go = threading.Semaphore(10_000)
        self.clock = Clock()

    def apply(self, command: Any, context: Context) -> int:
        self.clock.now += module.SLICE_S * 2
        return super().apply(command, context)


class Clock:
    """Stands still but for what the machine takes."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


def a_log(*frames: list[Any]) -> Any:
    log = open_log(Disk())
    for frame in frames:
        log.append(frame)
    log.flush()
    return log


def total(applier: Applier) -> tuple[int, int]:
    return applier.query(None), applier.applied_index


async def until(is_so: Callable[[], object]) -> None:
    """Until it is so: a thread does it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_loop_has_a_turn_between_the_slow_commands_of_a_frame_and_readers_wait_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, node, machine = a_log([1] * 100, [1] * 100), Told(), QuickSum()
    monkeypatch.setattr(module, "time", machine.clock)
    applying = applying_of(log, Applier(machine), node)

    applying.apply_to(200)
    assert machine.total == 16  # The first step took longer than a slice: the next ones are shorter.
    assert applying.behind_s > 0
    found = asyncio.create_task(applying.at_boundary(total))
    turns = 0
    async with asyncio.timeout(DEADLINE_S):
        while not found.done():
            await asyncio.sleep(0)
            turns += 1
        assert found.result() == (100, 100)
        assert turns > 80
        await applying.reached(200)
    assert (node.results, applying.behind_s, applying.unapplied) == (list(range(1, 201)), 0, 0)


@pytest.mark.asyncio
async def test_reads_that_wait_for_one_boundary_take_no_more_than_a_slice_of_a_turn_and_delay_no_frame_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, node, machine = a_log([1] * 20, [1] * 20), Told(), QuickSum()
    monkeypatch.setattr(module, "time", machine.clock)
    applying = applying_of(log, Applier(machine), node)
    read_in = list[int]()
    turns = 0

    def slow_read(applier: Applier) -> int:
        machine.clock.now += 2 * module.SLICE_S
        read_in.append(turns)
        return applier.applied_index

    applying.apply_to(40)
    reads = [asyncio.create_task(applying.at_boundary(slow_read)) for _ in range(30)]
    async with asyncio.timeout(DEADLINE_S):
        while not all(read.done() for read in reads):
            await asyncio.sleep(0)
            turns += 1

    assert len(set(read_in)) == 30, "one in a turn"
    assert [read.result() for read in reads] == [20, *[40] * 29], "the next frame comes after the first slice"


@pytest.mark.asyncio
async def test_a_frame_is_applied_in_the_same_steps_whatever_their_size() -> None:
    whole, parts = Applier(ArithmeticMachine()), Applier(ArithmeticMachine())
    log = a_log([["add", 1]] * 7, [["mul", 2]], [["add", 3]] * 400)
    for sizes, frame in zip((repeat(1), repeat(3), (3, 1, 99, 500)), log.reader.stream(0, 408), strict=True):
        expected, execution, step = whole.apply(frame), parts.begin(frame), iter(sizes)
        while not execution.step(next(step)):
            with pytest.raises(RuntimeError, match="partly applied"):
                parts.state()
            assert parts.applied_index == frame.header.index
        assert execution.finish() == expected
    assert (parts.digest, parts.state(), parts.boundary) == (whole.digest, whole.state(), whole.boundary)


@pytest.mark.parametrize(("longer", "steps"), [(0, 1), (1, 2)])
def test_the_digest_of_a_long_reply_has_a_step_of_its_own(
    monkeypatch: pytest.MonkeyPatch, longer: int, steps: int
) -> None:
    whole, parts = Applier(ArithmeticMachine()), Applier(ArithmeticMachine())
    [frame] = a_log([["add", 1]] * 2).reader.stream(0, 2)
    expected = whole.apply(frame)
    monkeypatch.setattr("quire.sm.applier.SHORT_REPLY_BYTES", expected.size - longer)

    execution, taken = parts.begin(frame), 1
    while not execution.step(2):
        taken += 1

    assert taken == steps
    assert execution.finish() == expected
    assert parts.digest == whole.digest


@pytest.mark.asyncio
async def test_a_machine_that_is_not_quick_has_a_thread_and_a_command_that_hangs_leaves_the_loop_free() -> None:
    log, node, machine = a_log([1, 2], [3]), Told(), Sum()
    applying = applying_of(log, Applier(machine), node)
    applying.apply_to(3)
    await until(lambda: machine.threads)
    found = asyncio.create_task(applying.at_boundary(total))
    gone = asyncio.create_task(applying.at_boundary(total))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (found.done(), node.frames, applying.applier.applied_index) == (False, 0, 0)
    gone.cancel()

    machine.go.release(2)
    async with asyncio.timeout(DEADLINE_S):
        assert await found == (3, 2)
        machine.go.release()
        await applying.reached(3)
        assert await applying.at_boundary(total) == (6, 3)
        assert await applying.at_boundary(lambda _: threading.get_ident(), on_loop=True) == threading.get_ident()
    assert node.results == [1, 3, 6]
    assert len(machine.threads) == 1
    assert threading.get_ident() not in machine.threads


@pytest.mark.asyncio
async def test_reads_do_not_hold_up_a_machine_with_a_thread_for_good() -> None:
    log, node, machine = a_log([1], [2], [3]), Told(), Sum()
    machine.go = threading.Semaphore(100)
    applying = applying_of(log, Applier(machine), node)

    async def read_on() -> None:
        while applying.applier.applied_index < 3:
            await applying.at_boundary(total)

    readers = [asyncio.create_task(read_on()) for _ in range(20)]
    await asyncio.sleep(0)
    applying.apply_to(3)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*readers)
    assert node.results == [1, 3, 6]


@pytest.mark.asyncio
async def test_reads_in_the_machine_s_thread_take_a_slice_of_time_and_then_a_frame_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, node, machine, clock = a_log([1], [2], [3]), Told(), Sum(), Clock()
    monkeypatch.setattr(module, "time", clock)
    applying = applying_of(log, Applier(machine), node)

    def slow_read(applier: Applier) -> int:
        clock.now += 2 * module.SLICE_S
        return applier.applied_index

    applying.apply_to(3)
    await until(lambda: machine.threads)
    reads = [asyncio.create_task(applying.at_boundary(slow_read)) for _ in range(6)]
    await asyncio.sleep(0)
    machine.go.release(3)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*reads) == [1, 2, 3, 3, 3, 3]
    assert node.results == [1, 3, 6]


@pytest.mark.asyncio
async def test_reads_that_are_left_when_the_slice_ends_are_refused_by_a_node_that_stops_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, node, machine, clock = a_log([1]), Told(), Sum(), Clock()
    monkeypatch.setattr(module, "time", clock)
    applying = applying_of(log, Applier(machine), node)
    entered = threading.Event()

    def slow_read(_: Applier) -> str:
        clock.now += 2 * module.SLICE_S
        entered.set()
        machine.go.acquire()
        return "read"

    applying.apply_to(1)
    await until(lambda: machine.threads)
    reads = [asyncio.create_task(applying.at_boundary(slow_read)) for _ in range(3)]
    await asyncio.sleep(0)
    machine.go.release()
    await until(entered.is_set)
    applying.stop()
    machine.go.release()
    async with asyncio.timeout(DEADLINE_S):
        first, *left = await asyncio.gather(*reads, return_exceptions=True)
    assert first == "read"
    assert [type(error) for error in left] == [NodeStopping] * 2


@pytest.mark.asyncio
async def test_a_failure_in_the_thread_stops_applying_and_tells_all_who_wait() -> None:
    log, node, machine = a_log([1, "fail", 2]), Told(), Sum()
    applying = applying_of(log, Applier(machine), node)
    applying.apply_to(3)
    await until(lambda: machine.threads)
    found, reached = asyncio.create_task(applying.at_boundary(total)), asyncio.create_task(applying.reached(3))
    await asyncio.sleep(0)
    machine.go.release(3)
    async with asyncio.timeout(DEADLINE_S):
        for waiting in (found, reached):
            with pytest.raises(ApplyFailed, match="stopped at index 1"):
                await waiting
        with pytest.raises(ApplyFailed):
            await applying.at_boundary(total)
    assert [str(failure) for failure in node.failures] == [str(applying.applier.failure)]


@pytest.mark.asyncio
async def test_an_installed_machine_goes_on_while_the_old_one_hangs_and_what_that_does_later_counts_nothing() -> None:
    log, node, old, new = a_log([1], [2], [3]), Told(), Sum(), Sum()
    applying = applying_of(log, Applier(old), node)
    applying.apply_to(3)
    await until(lambda: old.threads)
    found = asyncio.create_task(applying.at_boundary(total))
    await asyncio.sleep(0)

    new.go.release()
    installed = Applier(new)
    installed.apply(next(log.reader.stream(0, 1)))
    applying.continue_from(installed)
    async with asyncio.timeout(DEADLINE_S):
        assert (await found)[1] >= 1
        await until(lambda: len(new.threads) == 2)  # The test's, and its own: it is in the second command.
        old.go.release(100)
        await until(lambda: old.threads.isdisjoint(thread.ident for thread in threading.enumerate()))
        for _ in range(3):  # Before it ended it told the loop.
            await asyncio.sleep(0)
        assert old.total == 1
        assert (node.results, node.failures) == ([], [])
        new.go.release(100)
        await applying.reached(3)
        assert await applying.at_boundary(total) == (6, 3)
    assert (node.results, node.failures) == ([3, 6], [])


class Asked(Sum):
    """Its answers wait for the test as well."""

    def __init__(self, initial: Any = None) -> None:
        super().__init__()
        self.go = threading.Semaphore(100)
        self.answers = threading.Semaphore(0)

    def query(self, request: Any) -> Any:
        self.threads.add(threading.get_ident())
        self.answers.acquire()
        return self.total


def installed_at(index: int, log: Any, machine: Sum) -> Applier:
    """What a fetched snapshot gives: the machine, with everything below the index applied."""
    machine.go.release(index)
    applier = Applier(machine)
    for frame in log.reader.stream(0, index):
        applier.apply(frame)
    machine.threads.clear()
    return applier


@pytest.mark.asyncio
async def test_a_read_in_the_old_machine_s_thread_ends_after_an_install_and_holds_nothing_of_the_new_one() -> None:
    log, node, old, new = a_log([1], [2]), Told(), Asked(), Asked()
    applying = applying_of(log, Applier(old), node)
    of_old = asyncio.create_task(applying.at_boundary(total))
    await until(lambda: old.threads)
    of_new = asyncio.create_task(applying.at_boundary(total))
    await asyncio.sleep(0)

    applying.continue_from(installed_at(1, log, new))
    await until(lambda: new.threads)
    old.answers.release()
    async with asyncio.timeout(DEADLINE_S):
        assert await of_old == (0, 0)
        forked = asyncio.create_task(applying.at_boundary(lambda applier: applier.applied_index, on_loop=True))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not forked.done()  # The new machine's own read is not over.
        new.answers.release()
        assert await of_new == (1, 1)
        assert await forked == 1
        applying.apply_to(2)
        await applying.reached(2)
    assert (node.results, node.failures) == ([3], [])


@pytest.mark.asyncio
async def test_an_installed_machine_goes_on_from_its_own_boundary_whatever_was_read_of_the_log_before() -> None:
    log, node, old, new = a_log([1], [2], [3], [4]), Told(), Sum(), Sum()
    applying = applying_of(log, Applier(old), node)
    applying.apply_to(4)
    await until(lambda: old.threads)

    applying.continue_from(installed_at(3, log, new))
    new.go.release()
    async with asyncio.timeout(DEADLINE_S):
        await applying.reached(4)
    assert (node.results, node.failures) == ([10], [])
    old.go.release(100)


@pytest.mark.asyncio
async def test_who_waits_for_an_index_waits_no_longer_once_an_installed_machine_has_it() -> None:
    log, node, new = a_log([1], [2], [3]), Told(), Sum()
    applying = applying_of(log, Applier(Sum()), node)
    held, beyond = asyncio.create_task(applying.reached(2)), asyncio.create_task(applying.reached(3))
    await asyncio.sleep(0)

    applying.continue_from(installed_at(2, log, new))

    async with asyncio.timeout(DEADLINE_S):
        await held
    assert not beyond.done()
    new.go.release()
    applying.apply_to(3)
    async with asyncio.timeout(DEADLINE_S):
        await beyond


@pytest.mark.asyncio
async def test_an_installed_machine_has_failed_at_nothing_and_is_behind_nothing_that_its_snapshot_holds() -> None:
    log, node, failed, new = a_log(["fail"], [2], [3]), Told(), Sum(), Sum()
    applying = applying_of(log, Applier(failed), node)
    applying.apply_to(1)
    failed.go.release()
    with pytest.raises(ApplyFailed):
        await applying.reached(1)
    assert applying.behind_s > 0

    applier = Applier(new, boundary=applying.applier.boundary._replace(tail=log.durable_tail))
    applying.continue_from(applier)
    applying.apply_to(3)  # An install commits what the snapshot holds.
    assert (applying.unapplied, applying.behind_s) == (0, 0)
    await applying.reached(3)
    assert await applying.at_boundary(total) == (0, 3)


class Leaping:
    """Time that leaps over a slice at each look, for a while."""

    def __init__(self) -> None:
        self.now, self.leap, self.looks = 1.0, 0.0, 0

    def monotonic(self) -> float:
        self.looks += bool(self.leap)
        self.now += self.leap
        return self.now


@pytest.mark.asyncio
async def test_the_end_of_the_old_machine_s_frame_that_waits_for_a_turn_ends_no_frame_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, node, old, new, clock = a_log([1], [2]), Told(), Sum(), Sum(), Leaping()
    applying = applying_of(log, Applier(old), node)
    applying.apply_to(1)
    await until(lambda: old.threads)
    monkeypatch.setattr(module, "time", clock)
    clock.leap = 2 * module.SLICE_S
    old.go.release()
    await until(lambda: clock.looks > 3)  # The thread has ended its frame, and the loop did not come to it.
    assert node.frames == 0

    applying.continue_from(installed_at(1, log, new))
    clock.leap = 0.0
    applying.apply_to(2)
    await until(lambda: new.threads)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (node.frames, node.failures) == (0, [])
    new.go.release()
    async with asyncio.timeout(DEADLINE_S):
        await applying.reached(2)
    assert (node.results, node.failures) == ([3], [])


@pytest.mark.asyncio
async def test_what_executed_is_known_of_what_was_applied_since_the_start_or_the_last_install() -> None:
    log = open_log(Disk())
    log.append([1], session=99, sequence=1)  # No such session is open.
    log.append([2])
    log.append([3], session=99, sequence=1)
    log.append([4])
    log.flush()
    applying = applying_of(log, Applier(QuickSum()), Told())
    applying.apply_to(2)
    assert [applying.executed(index) for index in range(4)] == [False, True, None, None]

    installed = Applier(QuickSum())
    for frame in log.reader.stream(0, 2):
        installed.apply(frame)
    applying.continue_from(installed)
    applying.apply_to(4)
    assert [applying.executed(index) for index in range(4)] == [None, None, False, True]


@pytest.mark.asyncio
async def test_a_stop_does_not_wait_for_a_command_that_hangs_and_ends_those_who_wait_to_read() -> None:
    log, node, machine = a_log([1]), Told(), Sum()
    applying = applying_of(log, Applier(machine), node)
    applying.apply_to(1)
    await until(lambda: machine.threads)
    found = asyncio.create_task(applying.at_boundary(total))
    await asyncio.sleep(0)
    applying.stop()
    with pytest.raises(NodeStopping):
        await found
    with pytest.raises(NodeStopping):
        await applying.at_boundary(total)
    machine.go.release(10)
    assert node.failures == []
