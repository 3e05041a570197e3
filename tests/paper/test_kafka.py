"""What KIP-101, KIP-279 and KIP-320 ask of a follower's truncation, in this log's words (offset is index)."""

from quire.replication.core import Promise, actions, events
from quire.replication.core.downstreams import match_boundary
from quire.replication.core.messages import Heartbeat, Open, OpenVerb
from tests.paper.scenes import divided, hear, led, settled, suggested
from tests.replication.world import disk_id, values


def test_kip_101_scenario_1_a_restarted_follower_does_not_cut_what_it_acknowledged() -> None:
    """Truncating to the high watermark loses a record if the leader fails next: it lags by a round trip.

    Here only an opening truncates, by epochs; a restart keeps what is durable.
    """
    world = led()
    world["n3"].crash()
    world["n1"].write("acknowledged")
    world.run_until(lambda: world["n1"].state.commit_index == world["n1"].log.tail.index)
    world["n2"].crash()  # before it heard that the record is committed, for all it knows
    world["n2"].start()
    world["n1"].crash()
    world["n3"].start()

    suggested(world["n3"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is world["n2"]
    assert values(world["n2"]) == ["acknowledged"]


def test_kip_101_scenario_2_replicas_that_wrote_different_records_at_one_index_come_to_agree() -> None:
    """After losses on several disks two logs may hold different records at the same offset: epochs tell them apart."""
    world = led()
    old, leader = divided(world)
    assert values(old) != values(leader)

    world.heal()
    settled(world, leader)

    assert values(old) == values(leader) == ["kept"]


def test_kip_101_the_end_of_an_epoch_is_where_the_next_larger_one_begins() -> None:
    """The leader answers with the first offset of the first larger epoch, or its log end for its latest."""
    leader = [(0, 0), (1, 1), (3, 8)]

    assert match_boundary(leader, 20, [(0, 0), (1, 1)], 12) == 8
    assert match_boundary(leader, 20, [(0, 0), (1, 1), (3, 8)], 25) == 20


def test_kip_279_a_follower_with_an_epoch_that_the_leader_lacks_goes_back_to_one_that_both_have() -> None:
    """After fast failovers the leader may not know the follower's epoch: compare the largest that both know.

    There it takes a round trip each; here an opening carries all epochs at once.
    """
    leader = [(0, 0), (1, 1), (4, 5)]
    follower = [(0, 0), (1, 1), (2, 7), (3, 9)]

    assert match_boundary(leader, 30, follower, 12) == 5
    assert match_boundary(leader, 30, [(0, 0), (2, 1), (3, 4)], 12) == 1


def test_kip_279_fast_failovers_leave_no_divergence() -> None:
    """Three leaders in a row, each cut off with a record that nobody else has: in the end all logs are equal."""
    world = led("n1", "n2", "n3", "n4", "n5")
    for node in ("n1", "n2", "n3"):
        suggested(world[node], by_control_plane=True)
        world.run_until(lambda node=node: world.leader() is world[node])  # type: ignore[misc]
        world.isolate(node)
        world[node].write(f"lost with {node}")
        suggested(world[node], by_control_plane=False)
        if node == "n1":
            world.run_for(1.5)
            world.heal()
            world.cut(("n1", "n2"), ("n1", "n3"), ("n1", "n4"), ("n1", "n5"))
    world.heal()

    world.run_until(lambda: world.leader() is not None, within_s=20)
    leader = world.leader()
    assert leader is not None
    settled(world, leader)

    assert len({node.log.tail for node in world.nodes.values()}) == 1


def test_kip_320_a_leader_refuses_a_fetcher_of_another_epoch() -> None:
    """FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH: both sides prove that they speak of one leadership."""
    world = led()
    leader = world["n1"]
    assert leader.core is not None

    for epoch in (leader.state.promise.epoch - 1, leader.state.promise.epoch + 1):
        opening = Open(Promise(epoch, "n1", leader.incarnation), tuple(leader.log.epochs), 1, 1)
        told = leader.core.handle(events.StreamOpened(700 + epoch, "n2", disk_id("n2"), opening), world.now, 0)
        (answer,) = [action.answer for action in told if isinstance(action, actions.AnswerOpen)]
        assert answer.verb is OpenVerb.REFUSE


def test_kip_320_a_replica_that_missed_a_change_of_leader_is_fenced_and_not_truncated() -> None:
    """A delayed notice must not let a zombie leader feed a follower of the next one."""
    world = led()
    follower = world["n3"]
    tail = follower.log.tail
    epoch = follower.state.promise.epoch
    hear(follower, "n2", Heartbeat(Promise(epoch + 1, "n2", 9), 1, 0))
    world.run_for(0.005)

    hear(follower, "n1", Heartbeat(Promise(epoch, "n1", world["n1"].incarnation), 99, 0))
    world.run_for(0.005)

    assert follower.following.leader == Promise(epoch + 1, "n2", 9)
    assert follower.log.tail == tail
    assert follower.truncations == []
