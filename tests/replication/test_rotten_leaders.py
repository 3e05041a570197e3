"""A leader that finds rot in its log ships, refuses and reports nothing of it, and does not halt: another can lead."""

from collections.abc import Callable

import pytest

from quire.log import FrameCorrupt
from quire.log.simulated import Disk
from quire.replication.core import actions, events
from quire.replication.core.state import NotReadableNow
from quire.replication.lag import lag_of
from tests.replication.installing import deep
from tests.replication.test_exhausted import driven
from tests.replication.world import SimNode, World

STORE = f"log/{0:020d}.store"


Spoil = Callable[[Disk, str, int], None]
SPOILING: list[Spoil] = [Disk.make_unreadable, Disk.flip_bit]


def spoiled(spoil: Spoil) -> tuple[World, SimNode, int, int]:
    """A cluster whose leader n1 cannot read a frame of its oldest segment; and that frame's index and the next one."""
    world = deep()
    leader = world["n1"]
    _, index = leader.log.read_frames(0, 1)
    _, following = leader.log.read_frames(index, 1)
    segment, position = leader.log.lookup.boundary(index)
    assert segment.base_index == 0
    spoil(leader.storage, STORE, position + 70)
    return world, leader, index, following


@pytest.mark.parametrize("spoil", SPOILING)
def test_a_shipment_of_it_waits_and_the_leader_says_what_is_wrong(spoil: Spoil) -> None:
    world, leader, index, _ = spoiled(spoil)
    driver, streams, device, owner = driven(leader)
    [stream_id] = leader.leading.downstreams.streams

    driver.carry_out_step(events.Tick(), [actions.Ship(stream_id, index, 1 << 20, 0, 0)])

    assert (streams.sent, owner.halts, len(device.waiting)) == ([], [], 1)
    assert leader.core is not None
    leader.core.handle(events.Measured(0, rot=leader.log.reader.rot), world.now, world.clock())
    [alarm] = leader.state.alarms.values()
    assert alarm.startswith(f"its log has rot: {STORE[4:]} is corrupt at byte ")


@pytest.mark.parametrize("spoil", SPOILING)
def test_the_lag_of_a_follower_that_needs_it_is_reported(spoil: Spoil) -> None:
    _, leader, index, _ = spoiled(spoil)
    log = leader.log
    with pytest.raises(FrameCorrupt):
        log.read_frames(index, 1)

    assert lag_of(log, index, 1 << 60).records == log.durable_index - index


@pytest.mark.parametrize("spoil", SPOILING)
def test_a_stream_is_refused_whose_boundary_is_there(spoil: Spoil) -> None:
    _, leader, _, following = spoiled(spoil)

    with pytest.raises(NotReadableNow, match="is corrupt at byte"):
        leader.running.crc32c_before(following)
    assert not leader.running.verifies_before(following)
