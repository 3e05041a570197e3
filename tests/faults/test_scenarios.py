"""Scenarios on clusters of real processes whose every link goes through toxiproxy; one verdict judges them all.

Scenarios of one shape share a cluster. `make test` runs two, `make test-all` one of each kind, `make soak-faults` all.

Run one by hand: `python -m tests.faults "the leader is cut off"`.
"""

import random
from collections.abc import Generator
from pathlib import Path

import pytest

from quire.cluster.config.serve import MIB
from tests.faults.drawing import drawn, drawn_for_good
from tests.faults.page import PAGE, kinds_on, percentile, permanent_faults_on
from tests.faults.permanent import OF_ITS_PROCESS, PERMANENT_FAULTS
from tests.faults.running import Grounds
from tests.faults.scenario import Scenario
from tests.faults.scenarios import KINDS, OF_EACH_TEST, OF_TEST_ALL, SCENARIOS, faulty_leader
from tests.faults.slow import LEADER_GROWTH_BYTES, slow_follower

AT_LEAST = 60


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Generator[Grounds]:
    made = Grounds(tmp_path_factory.mktemp("grounds"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in OF_EACH_TEST else [pytest.mark.full])
        for each in SCENARIOS
        if each.name in OF_TEST_ALL
    ],
)
def test_nothing_acknowledged_is_lost_or_executed_twice_and_all_agree_after(
    scenario: Scenario, grounds: Grounds
) -> None:
    outcome = grounds.run(scenario)

    assert outcome.acknowledged > 0


def test_there_are_enough_scenarios_and_each_has_a_name_of_its_own() -> None:
    names = {scenario.name for scenario in SCENARIOS}

    assert len(names) == len(SCENARIOS)
    assert names > OF_TEST_ALL > OF_EACH_TEST
    assert len(names) >= AT_LEAST


def test_the_page_has_the_kinds_of_scenarios_that_there_are() -> None:
    assert kinds_on(PAGE.read_text()) == {kind: len(those) for kind, those in KINDS.items()}, "make soak-faults"


def test_the_page_has_values_of_nearly_all_permanent_faults_and_of_no_others() -> None:
    faults = permanent_faults_on(PAGE.read_text())

    assert faults <= set(PERMANENT_FAULTS)
    assert len(faults) >= 0.9 * len(PERMANENT_FAULTS), "make soak-faults"


@pytest.mark.soak
def test_a_slow_follower_costs_the_others_nothing_and_catches_up(tmp_path: Path) -> None:
    slowed = slow_follower(tmp_path, minutes=0.1, before_s=3.0, kept_rate=0.4)  # Of seconds; other tests run beside.

    assert slowed.lag_bytes > slowed.other_lag_bytes
    assert f"grow by at most {LEADER_GROWTH_BYTES // MIB} MiB" in PAGE.read_text(), "the bound that was judged by"


def test_a_seed_draws_the_same_scenarios_again() -> None:
    first, second, other = ([drawn(random.Random(seed), "drawn") for _ in range(1)] for seed in (7, 7, 8))

    assert first == second != other


@pytest.mark.full
@pytest.mark.parametrize("kind", ["its connections fell silent"])
def test_a_majority_commits_while_its_leader_has_a_permanent_fault(kind: str, grounds: Grounds) -> None:
    outcome = grounds.run(faulty_leader(kind))

    assert outcome.acknowledged > 0


def test_a_seed_draws_the_same_permanent_faults_again_and_a_minority_has_them() -> None:
    chance = random.Random(7)
    scenarios = [drawn_for_good(chance, "drawn") for _ in range(400)]
    again = random.Random(7)

    assert scenarios == [drawn_for_good(again, "drawn") for _ in range(400)]
    assert {kind for each in scenarios for kind in each.permanent} == set(PERMANENT_FAULTS)
    for each in scenarios:
        assert len(each.permanent) <= 2
        assert each.shape.size == 5 or len(OF_ITS_PROCESS.intersection(each.permanent)) <= 1


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(200, 0, -1)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [100.0, 180.0, 198.0, 200.0]
    assert percentile([3.0], 0.5) == 3.0
