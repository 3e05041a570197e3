"""A follower that has begun a flush applies after it, and at the latest before it measures how far it is behind."""

from typing import cast

from quire.replication.core import events
from quire.replication.ports import Device
from tests.replication.running import Recorder, connected
from tests.replication.test_leading import serving
from tests.replication.test_refused_writes import SlowDevice
from tests.replication.test_shipping_cache import Streams


class FollowerStreams(Streams):
    """Streams of a follower, which acknowledges."""

    def send_up(self, stream_id: int, message: object) -> None:
        """The leader is not asked here."""


def test_what_waits_for_the_end_of_a_flush_is_applied_before_the_next_measure() -> None:
    world = serving("n1", "n2", "n3")
    leader, follower = world["n1"], world["n2"]
    leader.write("first")
    end = leader.log.tail.index
    world.run_until(lambda: follower.log.durable_index == end)
    assert follower.state.commit_index < end
    leader.write("second")
    assert follower.core is not None
    assert follower.core.following is not None
    stream = follower.core.following.stream
    assert stream is not None
    device, owner = SlowDevice(world), Recorder()
    driver = connected(follower.core, follower.running, owner.ports, FollowerStreams(), cast("Device", device))
    raw, _ = leader.running.log.read_frames(end, 1 << 20, unflushed=True)

    driver.step(events.FramesArrived(stream.stream_id, raw, leader.log.tail.epoch, end, end))
    assert (len(device.waiting), owner.applied_index) == (1, 0)
    driver.tick()
    assert owner.applied_index == follower.state.applied_index == end

    device.let_go()
    driver.step(events.FramesArrived(stream.stream_id, b"", 0, leader.log.tail.index, leader.log.tail.index))
    assert owner.applied_index == leader.log.tail.index
