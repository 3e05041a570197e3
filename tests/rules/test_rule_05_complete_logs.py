"""Rule 5 of `docs/protocol.md`: only a log that is complete."""

from quire.replication.core.messages import Last
from tests.replication.world import values
from tests.rules.scenes import ask, led, settled, started, suggested


def is_prefix(shorter: list[object], longer: list[object]) -> bool:
    return longer[: len(shorter)] == shorter


def test_a_node_promises_only_to_a_candidate_whose_durable_last_is_at_least_its_own() -> None:
    """A leader without an acknowledged record."""
    world = led()
    world["n1"].write("acknowledged")
    settled(world, world["n1"])
    epoch, index = world["n2"].running.durable

    assert not ask(world["n2"], 50, "n3", last=Last(epoch, index - 1))
    assert not ask(world["n2"], 50, "n3", last=Last(epoch - 1, index + 1))
    assert ask(world["n2"], 50, "n3", last=Last(epoch, index))


def test_raft_5_2_a_candidate_wins_with_a_majority_of_the_full_cluster() -> None:
    """Raft: "... votes from a majority of the servers in the full cluster for the same term": two of five are none."""
    world = started("n1", "n2", "n3", "n4", "n5")
    for node in ("n3", "n4", "n5"):
        world.isolate(node)
    suggested(world["n1"], by_control_plane=True)
    world.run_for(5)
    assert not world["n1"].leads

    world.heal()
    world.run_until(lambda: world.leader() is not None)


def test_raft_5_4_1_a_later_last_epoch_is_more_up_to_date_than_a_longer_log() -> None:
    """Raft: '... then the log with the later term is more up-to-date.'"""
    epoch, index = led()["n2"].running.durable
    assert Last(epoch + 1, 1) > Last(epoch, index) > Last(epoch - 1, index + 1000)


def test_raft_5_4_3_leader_completeness_what_was_committed_is_in_every_later_leaders_log() -> None:
    """Figure 3, Leader Completeness; and State Machine Safety: no index ever holds two records."""
    world = led()
    committed: list[object] = []
    for number, node in enumerate(("n1", "n2", "n3", "n1")):
        for other in world.nodes.values():
            suggested(other, by_control_plane=other.node_id == node)
        leader = world.leader()
        if leader is not None and leader is not world[node]:
            leader.crash()
        world.run_until(lambda: world.leader() is not None)
        current = world.leader()
        assert current is not None
        assert is_prefix(committed, values(current))
        current.write(number)
        settled(world, current)
        committed = values(current, current.state.commit_index)
        for other in world.nodes.values():
            if other.core is None:
                other.start()
        settled(world, current)

    assert committed == [0, 1, 2, 3]
