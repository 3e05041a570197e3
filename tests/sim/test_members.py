"""Histories in which an operator changes the members, and in which a majority is lost and a survivor recovered."""

from dataclasses import replace

import pytest

from quire.cluster.simulator.checks import Violation
from quire.cluster.simulator.history import History, run
from quire.cluster.simulator.membership.wishes import member_plan_of
from quire.cluster.simulator.plan import Fault, Plan, changes_members, plan_of, settings_of

SEEDS = 200
LIMIT_CALLS = 200_000


def test_the_members_change_in_about_half_of_all_histories_and_some_of_these_are_recovered() -> None:
    plans = [plan_of(seed) for seed in range(SEEDS)]
    changing = [plan for plan in plans if plan.changes_members]
    assert 0.4 * SEEDS < len(changing) < 0.6 * SEEDS
    assert any(plan.recovers for plan in changing)
    assert any(plan.restores for plan in changing)
    assert not any(plan.recovers and plan.restores for plan in changing)
    assert not any(plan.recovers or plan.settings.spares for plan in plans if not plan.changes_members)


def test_a_history_without_wishes_has_the_settings_of_its_seed() -> None:
    unchanged = [seed for seed in range(20) if not changes_members(seed) and plan_of(seed).permanent is None]
    assert unchanged
    assert all(plan_of(seed).settings == settings_of(seed) for seed in unchanged)


def test_the_wishes_of_a_seed_are_always_the_same() -> None:
    assert member_plan_of(5, ["n1", "n2", "n3"], 6_000_000) == member_plan_of(5, ["n1", "n2", "n3"], 6_000_000)


def of_kind(kind: str) -> int:
    """The first seed whose operator has such a wish and no recovery."""
    plans = (plan_of(seed) for seed in range(SEEDS))
    return next(
        plan.settings.seed
        for plan in plans
        if plan.changes_members and not plan.recovers and any(fault.kind == kind for fault in plan.faults)
    )


@pytest.mark.parametrize("kind", ["add", "remove", "demote", "move", "drain", "return"])
def test_a_history_with_each_kind_of_wish_breaks_no_rule(kind: str) -> None:
    outcome = run(plan_of(of_kind(kind)))
    assert not outcome.failure


def test_a_survivor_is_recovered_and_the_others_join_it() -> None:
    seeds = (seed for seed in range(SEEDS) if plan_of(seed).recovers)
    for seed in seeds:
        outcome = run(plan_of(seed))
        assert not outcome.failure
        if outcome.counts.recoveries:
            return
    raise AssertionError("no history was recovered")


@pytest.mark.slow
def test_a_backup_is_restored_beside_the_members_and_neither_notices_the_other() -> None:
    restored = 0
    for seed in (seed for seed in range(SEEDS) if plan_of(seed).restores):
        outcome = run(plan_of(seed))
        assert not outcome.failure
        restored += outcome.counts.restores
        if restored >= 3:
            return
    raise AssertionError("too few backups were restored")


def test_several_nodes_that_join_are_all_started_before_the_end() -> None:
    # One of two was level and waited for the other, which nobody started.
    outcome = run(plan_of(20301).without_consumers())

    assert not outcome.failure


def calm_history() -> History:
    """Three voters and a spare node, without faults."""
    settings = replace(plan_of(3).settings, voters=3, observers=0, spares=1, rates=(1.0,) * 4)
    history = History(Plan(settings, (), changes_members=True))
    for node in history.nodes:
        history.nemesis.start(node)
    history.nodes[0].nominated = True
    return history


def test_a_node_that_forms_although_it_joins_is_a_finding() -> None:
    history = calm_history()
    spare = history.nodes[-1]
    joining = history.nemesis.members.joining
    joining.initial = [spare.node_id]
    with pytest.raises(Violation, match="a node with --join never forms"):
        joining.begin(spare)


def test_a_node_that_stops_without_a_committed_removal_is_a_finding() -> None:
    history = calm_history()
    node = history.nodes[1]
    for _ in range(LIMIT_CALLS):
        history.schedule.run_next()
        if any(one.leads for one in history.nodes):
            break
    node.running.health.removed(1)
    with pytest.raises(Violation, match="a node stops only once its removal is committed"):
        history.nemesis.ended(node, "halted")


def test_a_fault_with_a_wish_is_readable() -> None:
    assert str(Fault(1_500_000, "add", ("n4", "n5"), ("joining",))) == "   1.500 s  add n4 n5 joining"
