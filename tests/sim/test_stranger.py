"""Histories with a stranger that speaks as a member: nobody halts, no record is lost, and all converge after it.

More: `python -m quire.cluster.simulator --stranger --seeds 0:5000 --jobs 2`.
"""

import pytest

from quire.cluster.simulator.__main__ import Sort, outcome_of
from quire.cluster.simulator.history import run
from quire.cluster.simulator.plan import plan_of, plan_with_stranger
from quire.cluster.simulator.stranger import WORDS
from quire.replication.core import core


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(3), id="3 histories"),
        pytest.param(range(3, 60), id="57 more", marks=pytest.mark.full),
    ],
)
def test_no_history_with_a_stranger_breaks_a_rule(seeds: range) -> None:
    found = [outcome for seed in seeds if (outcome := outcome_of(seed, Sort.STRANGER)).failure]
    lines = [f"python -m quire.cluster.simulator --stranger --seed {each.seed}: {each.failure}" for each in found]
    assert lines == []


def test_the_stranger_says_everything_and_changes_nothing_else_of_a_plan() -> None:
    said: set[object] = set()
    for seed in range(20):
        alone, accompanied = plan_of(seed), plan_with_stranger(seed)
        words = [fault for fault in accompanied.faults if fault.kind == "stranger"]
        assert accompanied.settings == alone.settings
        assert sorted(map(str, accompanied.faults)) == sorted(map(str, (*alone.faults, *words)))
        said |= {fault.values[0] for fault in words}
    assert said == set(WORDS)


def test_a_node_that_believes_any_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "judge", lambda *_, **__: None)
    assert "rule 18: no epoch is out of range" in run(plan_with_stranger(0)).failure


def test_a_node_that_follows_a_second_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "refuses", lambda *_: False)
    assert run(plan_with_stranger(0)).rule == "rule 1: one candidate an epoch, but for its leader"
