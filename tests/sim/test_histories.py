"""Simulated histories: 10 in `make check`, 40 in `make test`, 150 in `make test-all`.

More: `make soak-histories`, or `python -m quire.cluster.simulator --seeds 0:20000 --jobs 2`.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from quire.cluster.simulator.__main__ import Report, outcome_of, outcomes
from quire.cluster.simulator.checks import Counts, Violation
from quire.cluster.simulator.history import MIN_OPERATIONS, MIN_STEPS, Outcome, run, shrink, transcript
from quire.cluster.simulator.plan import Fault, Plan, plan_of
from quire.sm.cursors import BACK, BEYOND, MOVED, TAKEN, UNKNOWN

TOP = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(10), id="10 histories"),
        pytest.param(range(10, 20), id="10 more", marks=pytest.mark.slow),
        pytest.param(range(20, 150), id="130 more", marks=pytest.mark.full),
    ],
)
def test_no_history_breaks_a_rule(seeds: range) -> None:
    report = Report()
    for outcome in outcomes(seeds, jobs=2):
        report.add(outcome)
    findings = [f"python -m quire.cluster.simulator --seed {found.seed}: {found.failure}" for found in report.findings]
    assert not findings, "\n".join(findings)
    assert not report.is_idle, str(report)


@pytest.mark.parametrize("seed", range(3))
def test_each_history_is_long_and_eventful(seed: int) -> None:
    counts = outcome_of(seed).counts
    assert counts.steps >= MIN_STEPS
    assert counts.operations >= MIN_OPERATIONS
    assert counts.crashes >= 1
    assert counts.cuts >= 1


@pytest.mark.full
def test_consumers_get_every_answer_that_a_cursor_gives() -> None:
    rows = sum((outcome_of(seed).counts.cursor_rows for seed in range(20)), Counter[str]())
    assert rows.keys() == {"", BACK, BEYOND, MOVED, TAKEN, UNKNOWN}
    assert rows[""] > rows.total() / 2


@pytest.mark.full
def test_a_seed_gives_the_same_trace_whatever_the_hash_seed_is() -> None:
    here = outcome_of(7).trace_hash
    assert here == outcome_of(7).trace_hash
    assert here != outcome_of(8).trace_hash
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "quire.cluster.simulator", "--seed", "7"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            command, check=True, cwd=TOP, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert f"trace {here}," in ran.stdout, ran.stderr


def test_a_failing_history_is_shrunk_to_the_faults_that_it_needs() -> None:
    plan = plan_of(1)
    needed = [plan.faults[3], plan.faults[-2]]

    def fails(fewer: Plan) -> Outcome:
        broken = all(fault in fewer.faults for fault in needed)
        return Outcome(1, Counts(), "", "a rule, broken" if broken else "", "a rule" if broken else "")

    small = shrink(plan, "a rule", fails)
    assert list(small.faults) == needed


def test_a_transcript_names_the_faults_the_last_steps_and_the_rule() -> None:
    plan = Plan(plan_of(1).settings, (Fault(1_500_000, "crash", ("leader",), ("kill", 50_000)),))
    text = transcript(plan, Outcome(1, Counts(), "", "a rule: broken", "a rule", ["1 n1 Tick 0 1 1"]))
    assert "1.500 s  crash leader kill 50000" in text
    assert "1 n1 Tick 0 1 1" in text
    assert text.endswith("a rule: broken")


def test_a_broken_rule_is_the_outcome_and_not_an_exception() -> None:
    nobody_stands = Plan(plan_of(1).settings, (Fault(0, "no such fault", ("n1",)),))
    outcome = run(nobody_stands)
    assert outcome.rule == "ValueError"
    assert "no such fault" in outcome.failure
    assert Violation("a rule", 1, 2).rule == "a rule"


def test_a_run_that_exercises_nothing_does_not_pass() -> None:
    idle, lively = Report(), Report()
    for number in range(100):
        idle.add(Outcome(number, Counts(steps=2_000, elections=1), ""))
        lively.add(Outcome(number, Counts(leader_changes=number % 3 == 0, truncations=number % 9 == 0), ""))
    assert idle.is_idle
    assert not lively.is_idle
    assert "leader changes in 34%" in str(lively)
