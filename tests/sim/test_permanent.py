"""Histories in which a minority has permanent faults: how they are drawn, what is demanded, and what is measured.

A third of all histories are such (`test_histories`).
"""

from dataclasses import replace

import pytest

from quire.cluster.simulator.clock import Clocks, Schedule
from quire.cluster.simulator.history import run
from quire.cluster.simulator.permanent import phase
from quire.cluster.simulator.permanent.distribution import Distribution
from quire.cluster.simulator.permanent.faults import KINDS, PermanentFault, permanent_faults_of
from quire.cluster.simulator.permanent.fitness import SHOWS
from quire.cluster.simulator.permanent.prober import Unavailability
from quire.cluster.simulator.plan import is_permanent, plan_of
from quire.replication.core.fitness import Level


def test_a_third_of_all_seeds_have_permanent_faults_and_they_draw_each_kind() -> None:
    drawn = [found for seed in range(600) if (found := permanent_faults_of(seed, 5, expires=True)) is not None]
    assert 160 <= len(drawn) <= 240
    kinds = {fault.kind for found in drawn for faults in found.faulty for fault in faults}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("voters", [3, 5])
def test_permanent_faults_leave_a_majority_healthy(voters: int) -> None:
    for seed in range(200):
        found = permanent_faults_of(seed, voters, expires=True)
        assert found is None or len(found.faulty) <= (voters - 1) // 2


def test_a_majority_that_stops_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase, "MOST_ELECTIONS", 0)
    outcome = run(plan_of(14))
    assert outcome.rule == "a faulty minority never stops a healthy majority"
    assert "fails: clock_rate 0.5" in outcome.failure


def test_histories_with_one_kind_of_fault_can_be_picked() -> None:
    picked = [seed for seed in range(200) if is_permanent(seed, "full_disk")]
    assert picked
    assert all("full_disk" in str(plan_of(seed).permanent) for seed in picked)
    assert len(picked) < len([seed for seed in range(200) if is_permanent(seed)])


def test_the_distribution_has_a_line_for_each_kind_and_one_for_all() -> None:
    distribution = Distribution()
    distribution.add(None)
    for number in range(100):
        kinds = ("full_disk", "slow_disk") if number < 50 else ("slow_disk",)
        distribution.add(Unavailability(kinds, number / 100, number / 10, 1, number / 20))
    full, slow, everything = distribution.lines()
    assert full.startswith("full_disk           50 histories; to the first write 0.2 / 0.5 / 0.5;")
    assert slow.startswith("slow_disk          100 histories;")
    assert everything.endswith("without a read 2.5 / 5.0 / 5.0; at most 1 elections")


def test_a_clock_whose_rate_changes_does_not_jump() -> None:
    schedule = Schedule()
    clocks = Clocks(schedule, 1.0, 0)
    schedule.now = 1_000_000
    clocks.run_at(2.0)
    assert clocks.now() == 1_000_000
    schedule.now = 1_500_000
    assert clocks.now() == 2_000_000


@pytest.mark.slow
def test_a_node_that_does_not_say_what_ails_it_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(49)
    assert plan.permanent is not None
    a_follower = replace(plan, permanent=replace(plan.permanent, faulty=((PermanentFault("failed_machine"),),)))
    monkeypatch.setitem(SHOWS, "failed_machine", Level.NO_ROOM)
    outcome = run(a_follower)
    assert outcome.rule == "a node reports its fitness correctly"
    assert "MACHINE_FAILED, NO_ROOM" in outcome.failure


@pytest.mark.full
def test_a_slow_disk_that_flushes_nothing_need_not_show() -> None:
    # n2's disk is slow, and the leader, which a majority hears, does not reach n2: nothing is written there.
    assert run(plan_of(14980).without_consumers()).failure == ""
