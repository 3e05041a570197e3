"""A leader that finds rot in its log ships, refuses and reports nothing of it, and does not halt: another can lead.

A node that cannot catch up with it for that is neither made a voter nor waited for as the next leader.
"""

from collections.abc import Callable

import pytest

from quire.log import FrameCorrupt
from quire.log.simulated import Disk
from quire.replication.core import actions, events
from quire.replication.core.membership.changing import Changed, NotFollowing, Promote
from quire.replication.core.state import NotReadableNow
from quire.replication.lag import lag_of
from tests.replication.installing import DEEP, deep
from tests.replication.test_exhausted import driven
from tests.replication.test_membership import joining, led, outcome, roles, with_auto_replacement
from tests.replication.world import SimNode, World

STORE = f"log/{0:020d}.store"


Spoil = Callable[[Disk, str, int], None]
SPOILING: list[Spoil] = [Disk.make_unreadable, Disk.flip_bit]


def spoiled(spoil: Spoil) -> tuple[World, SimNode, int, int]:
    """A cluster whose leader n1 cannot read a frame of its oldest segment; and that frame's index and the next one."""
    world = deep()
    return world, world["n1"], *spoil_frame(world["n1"], spoil, from_index=10)  # n3 has less than 10 records.


def spoil_frame(leader: SimNode, spoil: Spoil, from_index: int) -> tuple[int, int]:
    """The index of the frame after the one at `from_index`, which the leader then cannot read, and the next one."""
    _, index = leader.log.read_frames(from_index, 1)
    _, following = leader.log.read_frames(index, 1)
    segment, position = leader.log.lookup.boundary(index)
    assert segment.base_index == 0
    spoil(leader.storage, STORE, position + 70)
    return index, following


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


def found_by(world: World, leader: SimNode) -> None:
    """A node needs the rotten frame, and the leader says so."""
    world.run_until(lambda: "rot" in leader.state.alarms)


@pytest.mark.parametrize("spoil", SPOILING)
def test_a_node_behind_it_becomes_no_voter(spoil: Spoil) -> None:
    world = led("n1", spare=("n2",))
    leader, node = world["n1"], world["n2"]
    node.crash()
    written = leader.log.tail.index
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    spoil_frame(leader, spoil, from_index=written)
    node.start()
    assert isinstance(outcome(world, leader, joining("n2")), Changed)
    found_by(world, leader)
    world.run_for(20)

    assert roles(leader) == {"n1": "voter", "n2": "joining"}
    assert outcome(world, leader, Promote("n2", "n2:1")) == NotFollowing()
    leader.write("after")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)


@pytest.mark.parametrize("spoil", SPOILING)
def test_a_leader_that_found_it_goes_on_if_the_only_other_node_that_runs_is_behind_it(spoil: Spoil) -> None:
    world, leader, _, _ = spoiled(spoil)
    epoch = leader.state.promise.epoch
    world["n2"].crash()
    world.start("n3")
    leader.write("later")
    found_by(world, leader)
    world.run_for(60)

    assert (leader.leads, leader.state.promise.epoch) == (True, epoch)
    world.start("n2")
    world.run_until(lambda: world["n2"].leads)


def test_a_removal_that_cannot_be_read_is_no_reason_to_remove_another_disk() -> None:
    world = with_auto_replacement()
    leader, node = world["n1"], world["n3"]
    for turn in range(2):
        node.crash()
        node.wipe()
        node.start()
        if turn:
            [gone] = leader.state.members.removed
            segment, position = leader.log.lookup.boundary(gone.index)
            leader.storage.make_unreadable(f"log/{segment.base_index:020d}.store", position)
        world.run_for(120)

    assert leader.halted is None
    assert len(leader.state.members.removed) == 1
