"""Rule 8 of `docs/protocol.md`: streams and their opening."""

from quire.replication.core import Promise, actions, events
from quire.replication.core.downstreams import match_boundary
from quire.replication.core.messages import Heartbeat, Open, OpenVerb
from tests.replication.world import disk_id, values
from tests.rules.scenes import divided, hear, led, settled, suggested


def test_an_opening_compares_epochs_and_a_divergent_suffix_is_never_an_ack() -> None:
    """A follower's durable suffix, which the leader's log does not have, is counted towards a commit."""
    world = led()
    old, leader = divided(world)
    acks = len(old.acked)
    boundary = leader.start_index
    assert old.log.durable_index > boundary

    world.heal()
    settled(world, leader)

    assert old.acked[acks][1] == boundary
    assert values(old) == values(leader) == ["kept"]


def test_raft_5_3_log_matching_equal_epoch_and_index_mean_equal_logs_up_to_there() -> None:
    """Figure 3, Log Matching: the frames' crcs form a chain, so equal crcs at one index say so, too."""
    world = led()
    for value in range(5):
        world["n1"].write(value)
    settled(world, world["n1"])

    tails = {node.log.tail for node in world.nodes.values()}
    assert len(tails) == 1
    assert values(world["n1"]) == values(world["n2"]) == values(world["n3"])


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


def test_vr_4_1_a_backup_in_another_view_does_not_take_part() -> None:
    """Replicas process messages only of the view that they are in: here, acks of the promise that they hold."""
    world = led()
    world.isolate("n1")
    suggested(world["n2"], by_control_plane=True)
    world.run_until(lambda: world.leader() is world["n2"], within_s=5)
    old = world["n1"]
    before = old.state.commit_index

    old.write("nobody follows")
    world.heal()
    settled(world, world["n2"])

    assert old.state.promise.candidate == "n2"
    assert values(old) == []
    assert before <= old.state.commit_index
