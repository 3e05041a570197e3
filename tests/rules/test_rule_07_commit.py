"""Rule 7 of `docs/protocol.md`: commit."""

from quire.replication.core import events
from quire.replication.core.messages import Ack
from tests.replication.world import World, values
from tests.rules.scenes import led, settled, suggested


def test_a_record_commits_when_a_majority_and_the_leaders_own_disk_hold_it() -> None:
    """The leader loses power, and what it answered with it."""
    world = led()
    leader = world["n1"]
    leader.hold_flush = True
    before = leader.state.commit_index
    leader.write("a")
    world.run_until(lambda: all(world[node].log.durable_index > before for node in ("n2", "n3")))
    world.run_for(0.1)
    assert leader.state.commit_index == before

    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)


def test_an_ack_beyond_what_was_shipped_is_a_peers_fault() -> None:
    """Rules 7 and 8 count what peers say: within what can be true."""
    world = led()
    leader = world["n1"]
    stream = next(iter(leader.leading.downstreams.streams))

    leader.step(events.AckArrived(stream, Ack(10**6, 10**6, 0, bytes(16))))

    assert stream not in leader.leading.downstreams.streams
    assert leader.state.commit_index <= leader.log.tail.index


def test_raft_5_3_a_leader_never_overwrites_its_own_log() -> None:
    """Figure 3, Leader Append-Only."""
    world = led()
    for value in range(5):
        world["n1"].write(value)
        world.run_for(0.01)

    assert world["n1"].truncations == []
    assert values(world["n1"]) == list(range(5))


def test_raft_5_4_2_records_of_earlier_epochs_do_not_commit_by_counting() -> None:
    """Raft: "Raft never commits log entries from previous terms by counting replicas": figure 8."""
    world = led()
    old = world["n1"]
    before = old.state.commit_index
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    old.write("of the first epoch")
    world.run_until(lambda: all(node.log.tail.index == old.log.tail.index for node in world.nodes.values()))
    old.crash()
    for follower in ("n2", "n3"):
        world[follower].release()
    world.run_for(0.9)
    held = world["n2"].log.durable_index
    assert held > before
    leader = world["n2"]
    suggested(leader, by_control_plane=True)
    leader.hold_flush = True  # Its epoch_start becomes durable nowhere; the old record is everywhere.
    world.run_until(lambda: leader.leads)
    world.run_for(0.2)

    assert leader.log.durable_index <= leader.start_index
    assert leader.state.commit_index == before
    leader.release()
    world.run_until(lambda: leader.state.commit_index > leader.start_index)
    assert values(leader) == ["of the first epoch"]


def test_raft_6_a_server_that_only_replicates_is_not_considered_for_majorities() -> None:
    """Raft: '... the leader replicates log entries to them, but they are not considered for majorities.'"""
    world = World("n1", "n2", "n3")
    world.members = World("n1", "n2").members
    world.start()
    leader = world.elect("n1")
    settled(world, leader)
    world["n2"].hold_flush = True
    leader.write("a")
    world.run_for(0.3)

    assert world["n3"].log.durable_index == leader.log.tail.index
    assert leader.state.commit_index < leader.log.tail.index
