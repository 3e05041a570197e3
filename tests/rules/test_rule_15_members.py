"""Rule 15 of `docs/protocol.md`: members."""

from quire.replication.core import events
from quire.replication.core.downstreams import Downstream
from quire.replication.core.membership.changing import Changed, ChangeUnderWay, NotFollowing, NotServing, Unchanged
from quire.replication.core.messages import Ack
from tests.replication.world import SimNode, World, disk_id
from tests.rules.scenes import led, settled, started, suggested


def voters_of(node: SimNode) -> list[str]:
    return [voter.node_id for voter in node.state.members.voters()]


def observed(*observers: str) -> World:
    """n1 leads n2, n3 and n4, observers follow, and none is nominated any more."""
    world = World("n1", "n2", "n3", "n4", observers=observers)
    world.start()
    leader = world.elect("n1")
    settled(world, leader)
    suggested(leader, by_control_plane=False)
    return world


def asked(world: World, leader: SimNode, node_id: str) -> object:
    ask_id = leader.promote(node_id)
    world.run_until(lambda: ask_id in leader.changes)
    return leader.changes[ask_id]


def test_the_disk_of_a_member_is_its_vote() -> None:
    """5: servers keep their state on stable storage; one that lost it is another server."""
    world = started()
    assert world["n1"].state.members.is_voter("n2", disk_id("n2"))
    assert not world["n1"].state.members.is_voter("n2", bytes(16))


def test_ongaro_4_1_a_change_takes_effect_when_it_is_appended_and_its_new_majority_commits_it() -> None:
    """'The new configuration takes effect on each server as soon as it is added to that server's log ...'"""
    world = observed("n5")
    leader = world["n1"]
    for node in ("n3", "n4"):
        world.isolate(node)
    ask_id = leader.promote("n5")
    world.run_for(0.1)
    assert voters_of(leader) == voters_of(world["n2"]) == ["n1", "n2", "n3", "n4", "n5"]
    # Three of five: n5's own acknowledgement is needed, and counts.
    assert isinstance(leader.changes[ask_id], Changed)


def test_ongaro_4_1_the_next_change_begins_when_the_last_is_committed() -> None:
    """Two uncommitted ones would be two servers at a time, and their majorities need not overlap."""
    world = observed("n5", "n6")
    leader = world["n1"]
    for node in world.nodes.values():
        node.hold_flush = node is not leader
    leader.promote("n5")
    world.run_for(0.05)
    assert asked(world, leader, "n6") == ChangeUnderWay(leader.log.members_index or 0, leader.state.commit_index)


def test_ongaro_4_1_a_server_must_fall_back_to_the_previous_configuration_in_its_log() -> None:
    """'... a server must be prepared to fall back to the previous configuration in its log.'"""
    world = observed("n5")
    world.isolate("n1")
    world["n1"].promote("n5")
    world.run_until(lambda: not world["n1"].leads)
    assert voters_of(world["n1"])[-1] == "n5"
    leader = world.elect("n2")
    world.heal()
    settled(world, leader)
    assert voters_of(world["n1"]) == ["n1", "n2", "n3", "n4"]


def test_ongaro_4_1_votes_are_granted_without_consulting_the_voter_s_configuration() -> None:
    """'... servers process incoming RPC requests without consulting their current configurations.'"""
    world = World("n1", "n2", observers=("n3",))
    world.start()
    leader = world.elect("n1")
    settled(world, leader)
    suggested(leader, by_control_plane=False)
    world.cut(("n1", "n3"), ("n3", "n1"))
    leader.promote("n3")
    world.run_until(lambda: voters_of(world["n2"]) == ["n1", "n2", "n3"])
    leader.crash()
    assert voters_of(world["n3"]) == ["n1", "n2"]

    assert world.elect("n2").leads


def test_ongaro_4_2_1_a_new_server_catches_up_before_it_counts() -> None:
    """It joins as a non-voting member, and the reconfiguration begins once it has caught up."""
    world = World("n1", "n2", "n3", observers=("n4",))
    world.start("n1", "n2", "n3")
    leader = world.elect("n1")
    for value in range(20):
        leader.write(value)
    world.start("n4")
    assert asked(world, leader, "n4") == NotFollowing()
    settled(world, leader)
    assert isinstance(asked(world, leader, "n4"), Changed)
    assert asked(world, leader, "n4") == Unchanged()


def test_ongaro_4_2_3_a_server_that_is_no_member_any_more_does_not_depose_a_leader_that_is_heard() -> None:
    """Disruptive servers: who is not in the new configuration times out and starts elections. Pre-votes end that."""
    world = led("n1", "n2", "n3")
    old, leader, end = world["n3"], world["n1"], world["n1"].log.tail.index
    world.isolate("n3")
    leader.step(events.LinkUp("n3", bytes(16)))
    leader.leading.downstreams.streams[7] = Downstream(
        "n3", bytes(16), end, world.now, world.now, goal_at=world.now, keeps_up=True
    )
    leader.step(events.AckArrived(7, Ack(end, end, 0, bytes(16))))
    assert isinstance(asked(world, leader, "n3"), Changed)
    assert (voters_of(leader), voters_of(old)) == (["n1", "n2"], ["n1", "n2", "n3"])

    suggested(old, by_control_plane=True)
    epoch = leader.state.promise.epoch
    world.run_for(5)
    world.heal()
    world.run_for(5)

    assert leader.leads
    assert leader.state.promise.epoch == epoch
    assert old.roles[-1].role == "observer"


def test_ongaro_4_1_a_leader_changes_no_members_before_it_has_committed_a_record_of_its_own() -> None:
    """The bug of 2015 (raft-dev, "bug in single-server membership changes"), as it was told there.

    Of four voters n1 adds n5 and holds that alone; n2, elected by n3 and n4, would add n6 with two acknowledgements of
    five, as n1, back, adds n5 with n1's, n5's and one more: two leaders, each with a majority of its own. What was
    missing is here a rule: n2 first commits an `epoch_start`, which takes three of four, so n1 cannot come back.
    """
    world = observed("n5", "n6")
    world.isolate("n1")
    world["n1"].promote("n5")
    world.run_until(lambda: not world["n1"].leads)
    for node in ("n3", "n4"):
        world[node].hold_flush = True
    world["n2"].nominate()
    world.run_until(lambda: world["n2"].leads)
    second = world["n2"]
    assert asked(world, second, "n6") == NotServing(second.start_index, second.state.commit_index)
    assert voters_of(second) == ["n1", "n2", "n3", "n4"]

    for node in ("n3", "n4"):
        world[node].release()
    world.run_until(lambda: second.leading.serving)
    suggested(second, by_control_plane=False)
    world.run_for(0.3)
    assert isinstance(asked(world, second, "n6"), Changed)
    # n1 comes back with its uncommitted change: nobody promises it anything, and the change is undone.
    world["n1"].nominate()
    world.heal()
    settled(world, second)
    assert second.leads
    assert voters_of(world["n1"]) == ["n1", "n2", "n3", "n4", "n6"]
