"""A write that the log refused is followed by no later write of its caller, wherever that waits."""

from collections.abc import Callable
from typing import cast

from quire.log import encode_blob
from quire.replication import Reason, Write
from quire.replication.core import CoreOptions
from quire.replication.ports import Device, Done
from quire.replication.replica import CheckedDriver
from tests.replication.running import Recorder, connected, records
from tests.replication.test_shipping_cache import Streams
from tests.replication.world import SimNode, World


class SlowDevice:
    """The device of a driver; what is written waits until it is let go."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: list[tuple[Callable[[], None], Done]] = []

    def now(self) -> int:
        return self.world.now

    def clock(self) -> int:
        return self.world.clock()

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        pass

    def write(self, block: Callable[[], None], done: Done) -> None:
        self.waiting.append((block, done))

    def let_go(self) -> None:
        block, done = self.waiting.pop(0)
        block()
        done(None, 0)


def leading() -> tuple[SimNode, CheckedDriver[None], SlowDevice, Recorder]:
    """A leader that appends nothing while it waits for a commit."""
    world = World("n1", options=CoreOptions(uncommitted_bytes=1))
    world.start()
    node = world.elect("n1")
    world.run_for(1)
    assert node.core is not None
    device, owner = SlowDevice(world), Recorder()
    return node, connected(node.core, node.running, owner.ports, Streams(), cast("Device", device)), device, owner


def blob(size: int) -> Write[None]:
    return Write(encode_blob(bytes(size)), 1, owner=None)


def test_a_write_proposed_in_the_turn_in_which_an_earlier_one_is_refused_is_refused_too() -> None:
    node, driver, device, owner = leading()
    earlier, first, too_large, later = blob(30_000), blob(20_000), blob(30_000), records("later")
    for write in (earlier, first):
        driver.propose(write)
        driver.pass_on_proposed()
        if write is earlier:
            device.let_go()
    driver.propose(too_large)
    driver.pass_on_proposed()
    node.storage.full = True  # There is room for a small frame in the segment, and for no other segment.

    driver.propose(later)
    device.let_go()
    driver.pass_on_proposed()

    assert [share.write for placed in owner.placements for share in placed.shares] == [earlier, first]
    assert owner.rejections == [(too_large, Reason.DISK_FULL), (later, Reason.DISK_FULL)]


def test_frames_that_waited_for_room_are_flushed_once_they_are_written_though_no_file_can_grow_yet() -> None:
    node, driver, device, _ = leading()
    disk, log = node.storage, node.running.log
    for _ in range(2):
        driver.propose(blob(25_000))
        driver.pass_on_proposed()
        device.let_go()
    disk.full = disk.copies_on_write = True
    driver.propose(records("waits"))
    driver.pass_on_proposed()
    assert (log.room.is_stuck, device.waiting) == (True, [])

    disk.copies_on_write = False
    for _ in range(200):
        device.world.now += 200_000
        driver.tick()
        while device.waiting:
            device.let_go()

    assert not log.room.probe()
    assert driver.core.commit_index == log.durable_index == log.tail.index
