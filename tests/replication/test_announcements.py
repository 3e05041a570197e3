"""A commit_index that no frame carries is announced alone: after a pause, each time, to every follower."""

from collections.abc import Callable
from typing import cast

from quire.replication.core import actions, events
from quire.replication.core.messages import Open
from quire.replication.ports import Device
from tests.replication.running import Recorder, connected
from tests.replication.test_leading import serving
from tests.replication.test_refused_writes import SlowDevice
from tests.replication.test_shipping_cache import Streams
from tests.replication.world import SimNode, disk_id


def committed(leader: SimNode, value: str) -> int:
    """Write, and stop in the step that commits; return its commit_index, which nobody has heard of."""
    leader.write(value)
    leader.world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    return leader.state.commit_index


def test_each_commit_waits_for_frames_that_may_carry_it_before_it_is_announced() -> None:
    world = serving("n1", "n2", "n3")
    leader, announced = world["n1"], list[int]()

    def watch(node: SimNode, _: object, taken: list[actions.Action]) -> None:
        if node is leader:
            announced.extend(
                ship.commit_index for ship in taken if isinstance(ship, actions.Ship) and not ship.max_bytes
            )

    world.watch = watch
    for value in ("first", "second"):
        commit_index = committed(leader, value)
        leader.step(events.Tick())
        assert commit_index not in announced
        world.run_for(0.002)
        leader.step(events.Tick())
        assert announced.count(commit_index) == 2
        world.run_for(1)


def test_a_follower_that_a_frame_told_leaves_the_announcement_due_to_another() -> None:
    world = serving("n1", "n2", "n3")
    leader, node = world["n1"], world["n3"]
    opening = Open(leader.state.promise, tuple(node.running.epochs), node.log.tail.index, node.log.durable_index)
    node.crash()
    committed(leader, "by n2")

    leader.step(events.StreamOpened(900, "n3", disk_id("n3"), opening))
    leader.step(events.Shipped(900, leader.log.tail.index, 1))

    assert leader.core is not None
    assert leader.core.announces_commit_after_us == leader.state.options.commit_announce_us


def test_a_follower_whose_shipment_was_taken_late_is_told_of_the_commit_made_meanwhile() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    assert leader.core is not None
    assert leader.core.leading is not None
    streams = leader.core.leading.downstreams.streams
    number = next(number for number, stream in streams.items() if stream.node_id == "n3")
    streams[number].shipping = True  # The transport has not taken it.
    committed(leader, "by n2")
    world.run_for(0.003)
    leader.step(events.ShippingDue())  # Now n2 is told.
    assert leader.core.announces_commit_after_us is None

    streams[number].next_index = leader.log.tail.index
    leader.step(events.Shipped(number, leader.log.tail.index, 0))

    assert streams[number].announced_commit == leader.state.commit_index


class Clock(SlowDevice):
    """A device that keeps what it should remind of."""

    def __init__(self, leader: SimNode) -> None:
        super().__init__(leader.world)
        self.reminders: list[tuple[int, Callable[[], None]]] = []

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        self.reminders.append((delay_us, then))


def test_the_driver_is_reminded_of_each_commit_once() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    assert leader.core is not None
    clock, pause_us = Clock(leader), leader.state.options.commit_announce_us
    driver = connected(leader.core, leader.running, Recorder().ports, Streams(), cast("Device", clock))
    for value in ("first", "second"):
        committed(leader, value)
        for _ in range(3):
            driver.step(events.Tick())
        [(delay_us, announce)] = clock.reminders
        assert delay_us == pause_us
        clock.reminders.clear()
        world.now += pause_us
        announce()
        assert leader.core.announces_commit_after_us is None
        for stream_id in list(leader.leading.downstreams.streams):
            leader.step(events.Shipped(stream_id, 0, 0))
