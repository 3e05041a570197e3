"""What of a truncation runs beside the event loop, and what happens meanwhile."""

from collections.abc import Callable
from typing import cast

from quire.log import Tail
from quire.log.simulated import faulty
from quire.replication.core import actions, events
from quire.replication.core.following import Step
from quire.replication.ports import Device
from quire.replication.replica import CheckedDriver
from tests.replication.running import Recorder, connected
from tests.replication.test_exhausted import Reminders, divergent
from tests.replication.test_expiry import Deaf
from tests.replication.world import SimNode, World


class Later(Reminders):
    """A device whose blocks wait; it counts what they read, apart from all that is read."""

    def __init__(self, world: World, storage: faulty.Disk) -> None:
        super().__init__(world)
        self.storage = storage
        self.blocks: list[Callable[[], None]] = []
        self.read_beside = 0

    def write(self, block: Callable[[], None], done: Callable[[BaseException | None, int], None]) -> None:
        def run() -> None:
            before = self.storage.bytes_read
            block()
            self.read_beside += self.storage.bytes_read - before
            done(None, 0)

        self.blocks.append(run)


def truncating() -> tuple[SimNode, CheckedDriver[None], Deaf, Later, Recorder]:
    """A follower whose log has several segments that its leader's log does not have, about to truncate."""
    world = divergent()
    node = world["n1"]
    world.heal()
    world.run_until(lambda: node.has_stream)
    assert node.core is not None
    device, streams, owner = Later(world, node.storage), Deaf(), Recorder()
    driver = connected(node.core, node.running, owner.ports, streams, cast("Device", device))
    node.upstream.step = Step.TRUNCATING
    node.core.writer.begin_exclusive(world.now)
    return node, driver, streams, device, owner


def test_a_truncation_reads_the_segment_that_is_left_in_the_writer_s_thread() -> None:
    node, driver, _, device, owner = truncating()
    index = node.log.lookup.boundary_at_or_below(node.log.segments.bases[1] - 1)
    size = node.log.lookup.bytes_between(0, index)
    before = node.storage.bytes_read

    driver.carry_out_step(events.Tick(), [actions.Truncate(node.upstream.stream_id, index)])
    device.blocks.pop()()

    assert (owner.halts, node.log.tail.index) == ([], index)
    assert device.read_beside >= size
    assert node.storage.bytes_read - before - device.read_beside < size // 2


def test_until_the_walk_before_a_truncation_ends_the_log_is_whole_and_nothing_else_changes_it() -> None:
    node, driver, streams, device, _ = truncating()
    core, tail, stream_id = node.core, node.log.tail, node.upstream.stream_id
    assert core is not None
    driver.carry_out_step(events.Tick(), [actions.Truncate(stream_id, 3)])

    driver.step(events.StreamClosed(stream_id))
    for _ in range(3):
        node.world.now += core.state.options.heartbeat_us
        driver.step(events.Tick())
    assert (node.log.tail, streams.dialled, core.writer.is_exclusive) == (tail, [], True)

    device.blocks.pop()()
    assert (node.log.tail.index, core.writer.is_exclusive) == (3, False)


def test_a_node_that_halts_during_the_walk_truncates_nothing() -> None:
    node, driver, _, device, _ = truncating()
    tail = node.log.tail
    driver.carry_out_step(events.Tick(), [actions.Truncate(node.upstream.stream_id, 3)])
    driver.halt("for another reason")
    device.blocks.pop()()
    assert (node.log.tail, node.log.failure) == (tail, None)


def test_a_truncation_that_is_refused_after_its_walk_leaves_the_log_as_it_was() -> None:
    node, driver, streams, device, owner = truncating()
    tail, stream_id = node.log.tail, node.upstream.stream_id
    driver.carry_out_step(events.Tick(), [actions.Truncate(stream_id, 3)])
    node.storage.exhausted = True
    device.blocks.pop()()
    assert node.core is not None
    assert (streams.closed, owner.halts) == ([stream_id], [])
    assert (node.log.tail, node.log.failure, node.core.writer.is_exclusive) == (tail, None, False)


def test_the_room_of_segments_that_a_truncation_removes_is_freed_in_the_writer_s_thread() -> None:
    node, driver, _, device, owner = truncating()
    index = node.log.lookup.boundary_at_or_below(node.log.segments.bases[1] - 1)
    removed, before = len(node.log.segments.bases) - 1, node.storage.open_files
    driver.carry_out_step(events.Tick(), [actions.Truncate(node.upstream.stream_id, index)])
    device.blocks.pop()()
    assert (owner.halts, len(node.log.segments.bases), len(device.blocks)) == ([], 1, removed)
    freed = node.storage.open_files
    for block in device.blocks:
        block()
    assert freed - node.storage.open_files == removed
    assert node.storage.open_files <= before


def test_the_room_of_segments_that_a_reset_removes_is_freed_in_the_writer_s_thread() -> None:
    node, _, _, device, _ = truncating()
    removed = len(node.log.segments.bases)
    node.log.reset(Tail(1_000, 1, node.world.clock(), 7))
    freed = node.storage.open_files
    for block in device.blocks:
        block()
    assert (len(device.blocks), freed - node.storage.open_files) == (removed, removed)
