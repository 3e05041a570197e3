"""Rule 4 of `docs/protocol.md`: pre-vote, and asking another to campaign."""

from quire.replication.core.messages import Last
from tests.replication.world import values
from tests.rules.scenes import ask, led, started, suggested


def test_a_pre_vote_has_no_effect_and_no_voter_that_hears_a_leader_grants_it() -> None:
    """A node that was cut off comes back and disturbs a healthy leader."""
    world = led()
    epoch = world["n1"].state.promise.epoch

    world.cut(("n1", "n3"), ("n3", "n1"))
    suggested(world["n3"], by_control_plane=True)
    world.run_for(5)

    assert world.leader() is world["n1"]
    assert {node.state.promise.epoch for node in world.nodes.values()} == {epoch}


def test_a_candidate_that_is_not_the_best_of_a_majority_asks_the_best_to_campaign() -> None:
    """The control plane names one that cannot win, and nobody leads."""
    world = led()
    world.isolate("n3")
    world["n1"].write("acknowledged")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()

    suggested(world["n3"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is world["n2"]


def test_raft_5_2_randomized_times_resolve_split_votes() -> None:
    """Raft: 'Raft uses randomized election timeouts to ensure that split votes are rare and ... resolved quickly.'"""
    world = started("n1", "n2", "n3", "n4")
    for node in world.nodes.values():
        suggested(node, by_control_plane=True)

    world.run_until(lambda: world.leader() is not None, within_s=5)


def test_raft_3_10_a_server_that_would_make_no_good_leader_hands_over_to_one_that_holds_everything() -> None:
    """Thesis: 'In some cases, one or more servers may be more suitable to lead the cluster than others.'"""
    world = led()
    leader = world["n1"]
    world.run_for(3)
    leader.write("before")

    leader.machine_failed = True
    world.run_until(lambda: world.leader() not in (None, leader), within_s=2)

    other = world.leader()
    assert other is not None
    assert values(other) == ["before"]


def test_raft_3_10_a_server_that_is_unsuitable_votes_like_the_others() -> None:
    """5.2: 'Each server will vote for at most one candidate in a given term, on a first-come-first-served basis.'"""
    world = started()
    for node in world.nodes.values():
        node.machine_failed = True
    world.run_for(0.3)
    assert ask(world["n2"], 5, "n1")
    assert not ask(world["n2"], 5, "n3")


def test_vr_4_2_the_new_view_starts_from_the_log_of_the_latest_view_and_of_those_the_longest() -> None:
    """The new primary takes the log of the largest normal view, and of those the one with the largest op-number.

    Here the log stays where it is and the candidate makes way for whoever has it.
    """
    assert Last(3, 1) > Last(2, 9) > Last(2, 8)
    world = led("n1", "n2", "n3", "n4", "n5")
    for behind in ("n4", "n5"):
        world.isolate(behind)
    world["n1"].write("a")
    world.run_until(lambda: world["n3"].apply_to == world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()

    suggested(world["n5"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    leader = world.leader()
    assert leader is not None
    assert leader.node_id in ("n2", "n3")
    assert values(leader) == ["a"]
