"""Rule 1 of `docs/protocol.md`: one promise per epoch."""

from quire.replication.core import Promise
from quire.replication.core.messages import Heartbeat
from tests.rules.scenes import ask, hear, led, settled, started, suggested


def test_an_epoch_is_promised_once_and_durably_and_following_raises_the_promise() -> None:
    """Two leaders in one epoch; a stale node that helps commit."""
    node = started()["n2"]

    assert ask(node, 7, "n3")
    assert not ask(node, 7, "n1")
    assert not ask(node, 7, "n3", incarnation=2)
    node.crash()
    node.start()
    assert node.state.promise == Promise(7, "n3", 1)

    hear(node, "n1", Heartbeat(Promise(8, "n1", 5), 1, 0))
    node.world.run_for(0.005)
    assert node.running.promises.promise == Promise(8, "n1", 5)


def test_raft_5_2_a_candidate_that_hears_a_leader_of_its_epoch_follows_it() -> None:
    """Raft: '... then the candidate recognizes the leader as legitimate and returns to follower state.'"""
    world = started()
    node = world["n2"]
    world.isolate("n2")
    suggested(node, by_control_plane=True)
    world.run_for(0.2)
    leader = Promise(max(1, node.state.promise.epoch), "n1", 5)

    hear(node, "n1", Heartbeat(leader, 1, 0))
    world.run_for(0.01)

    assert node.following.leader == leader


def test_vr_4_3_a_replica_that_crashed_may_not_forget_the_view_in_which_it_took_part() -> None:
    """There a replica that recovers asks the others for its state before it takes part in a view change again.

    Here what it promised is on its disk, so it takes part at once, and still helps no older leader.
    """
    world = led()
    promise = world["n2"].state.promise
    world["n2"].crash()
    world["n2"].start()

    assert world["n2"].state.promise == promise
    settled(world, world["n1"])
