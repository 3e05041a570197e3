"""Rule 3 of `docs/protocol.md`: a new epoch is above every epoch seen."""

from quire.replication.core.election import SHORT_TIMEOUTS
from quire.replication.core.messages import HeartbeatEcho
from tests.rules.scenes import ask, hear, led, started, suggested


def test_a_new_epoch_is_above_the_highest_seen_and_never_resumed() -> None:
    """An epoch would have two sequences of frames, and comparing epochs would prove nothing."""
    world = started()
    assert ask(world["n3"], 41, "n2")

    first = world.elect("n1").state.promise.epoch
    assert first == 42
    world.run_for(SHORT_TIMEOUTS)  # A node that is lost sooner makes way for the others.
    world["n1"].crash()
    world["n1"].start()
    world.run_until(lambda: world.leader() is world["n1"])

    assert world["n1"].state.promise.epoch > first


def test_raft_5_1_a_leader_that_discovers_a_higher_epoch_steps_down() -> None:
    """Raft: 'If a candidate or leader discovers that its term is out of date, it immediately reverts ...'"""
    leader = led()["n1"]
    epoch = leader.state.promise.epoch

    hear(leader, "n2", HeartbeatEcho(epoch, 1, epoch + 1))

    assert not leader.leads


def test_raft_5_3_election_safety_at_most_one_leader_an_epoch() -> None:
    """Figure 3, Election Safety."""
    world = started()
    for node in world.nodes.values():
        suggested(node, by_control_plane=True)
    world.run_for(5)
    for lost in ("n1", "n2"):
        world[lost].crash()
        world.run_for(3)
        world[lost].start()
        world.run_for(3)

    led_by: dict[int, set[str]] = {}
    for node in world.nodes.values():
        for role in node.roles:
            if role.role == "leader":
                led_by.setdefault(role.epoch, set()).add(node.node_id)
    assert len(led_by) > 1
    assert all(len(leaders) == 1 for leaders in led_by.values())
