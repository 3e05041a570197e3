"""Histories in which a minority runs other code, whose results differ: no client gets one, and nobody parts for good.

More: `python -m quire.cluster.simulator --other-code --histories 200 --jobs 2`.
"""

import pytest

from quire.cluster.simulator.__main__ import Sort, outcome_of
from quire.cluster.simulator.plan import plan_of


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(3), id="3 histories"),
        pytest.param(range(3, 40), id="37 more", marks=pytest.mark.full),
    ],
)
def test_no_history_with_other_code_breaks_a_rule(seeds: range) -> None:
    found = [outcome for seed in seeds if (outcome := outcome_of(seed, Sort.OTHER_CODE)).failure]
    lines = [f"{Sort.OTHER_CODE.rerun(each.seed)}: {each.failure}" for each in found]
    assert lines == []


def test_in_each_such_history_a_minority_runs_other_code_and_mostly_the_leader_does() -> None:
    plans = [plan_of(seed, other_code=True) for seed in range(60)]
    permanent = [plan.permanent for plan in plans if plan.permanent is not None]
    assert len(permanent) == len(plans)
    assert {fault.kind for found in permanent for faults in found.faulty for fault in faults} == {"other_code"}
    assert sum(found.hits_leader for found in permanent) > len(permanent) / 2
    assert all(
        len(found.faulty) <= (plan.settings.voters - 1) // 2 for found, plan in zip(permanent, plans, strict=True)
    )
