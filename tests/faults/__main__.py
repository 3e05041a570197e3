"""Run fault scenarios: named ones, all, or drawn from a seed; write their table in docs/reliability.md.

python -m tests.faults                             all, one after the other
python -m tests.faults "the leader is cut off"     one
python -m tests.faults "its disk is full"          the leader has this fault until the verdict
python -m tests.faults --page                      all, and their table into the page
python -m tests.faults --seed 7 --minutes 30       what a seed draws; with --page, how long nothing was committed
python -m tests.faults --slow-follower 5           one follower behind 1 MB/s for five minutes, under full load
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.drawing import drawn, drawn_for_good
from tests.faults.page import PAGE, Row, Value, page_of, page_with_values, table_of
from tests.faults.running import ELECTION_TIMEOUT_MS, Grounds, Outcome
from tests.faults.scenario import Scenario
from tests.faults.scenarios import SCENARIOS, named
from tests.faults.slow import slow_follower
from tests.processes.cluster import Unreachable
from tests.verdict.bounds import COMMITS_WITHIN_TIMEOUTS, HEALED_WITHIN_S

BEFORE_S = 20.0
KEPT_RATE = 0.8


def judged(run: Callable[[Scenario], Outcome], scenario: Scenario) -> Outcome | None:
    """Run it and say how it went; None if something was wrong."""
    began = time.monotonic()
    try:
        outcome = run(scenario)
    except (AssertionError, Unreachable) as error:
        print(f"{scenario.name}: {type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        return None
    print(f"{scenario.name}: {outcome}", flush=True)
    return outcome


def run_those(grounds: Grounds, scenarios: list[Scenario], tries: int, *, page: bool) -> bool:
    """Whether all went well, each time of so many."""
    rows: list[Row] = []
    failed = 0
    for scenario in scenarios:
        for _ in range(tries):
            outcome = judged(grounds.run, scenario)
            if outcome is None:
                failed += 1
                break
            rows.append(Row(scenario, outcome))
    if page and not failed:
        PAGE.write_text(page_of(PAGE.read_text(), rows))
    return not failed


def run_drawn(grounds: Grounds, seed: int, minutes: float, for_good: float, *, page: bool) -> bool:
    """Whether what a seed draws went well for so long; says what it came to.

    So large a share of the scenarios leaves a minority faulty until the verdict. The seed goes on after a failure.
    """
    chance = random.Random(seed)
    end = time.monotonic() + minutes * 60
    outcomes: list[Outcome] = []
    values: list[Value] = []
    failed: list[Scenario] = []
    while time.monotonic() < end:
        name = f"seed {seed}, number {len(outcomes) + len(failed)}"
        scenario = drawn_for_good(chance, name) if chance.random() < for_good else drawn(chance, name)
        if scenario.permanent:
            print(f"{name}: {', '.join(scenario.permanent)}", flush=True)
        outcome = judged(grounds.run_once, scenario)
        if outcome is None:
            print(f"it was {scenario}", flush=True)
            failed.append(scenario)
            continue
        outcomes.append(outcome)
        if scenario.permanent:
            values.append(Value(scenario, outcome.without_commit, outcome.waited))
    if not outcomes:
        return False
    print(summary(outcomes, minutes))
    if values:
        print(table := table_of(values, seed, minutes))
        if page and not failed:
            PAGE.write_text(page_with_values(PAGE.read_text(), table))
    late = [value for value in values if value.without_commit > COMMITS_WITHIN_TIMEOUTS]
    for value in late:
        print(f"{value.without_commit:.2f} election timeouts without a commit: {value.scenario}")
    print(f"{len(failed)} scenarios failed, {len(late)} committed nothing for too long")
    return not failed and not late and max(each.recovery_s for each in outcomes) <= HEALED_WITHIN_S


def summary(outcomes: list[Outcome], minutes: float) -> str:
    """What so many scenarios came to, in one sentence."""
    longest_s = max(each.recovery_s for each in outcomes)
    peaks = {
        node_id: max(each.peak_bytes[node_id] for each in outcomes if node_id in each.peak_bytes)
        for node_id in sorted({node_id for each in outcomes for node_id in each.peak_bytes})
    }
    return (
        f"{len(outcomes)} scenarios in {minutes:g} minutes: {sum(each.acknowledged for each in outcomes):,} commands "
        f"acknowledged, lost 0, executed twice 0 ({sum(each.retries for each in outcomes):,} sent again), "
        f"{sum(each.changes for each in outcomes)} changes of leader; longest outage after healing "
        f"{longest_s:.2f} s; peak memory "
        + ", ".join(f"{node_id} {peak / 1e6:.0f} MB" for node_id, peak in peaks.items())
    )


def main() -> int:
    """Run what the arguments say; 0 if all was judged good."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tries", type=int, default=1, help="run each so often, or until something is wrong")
    parser.add_argument("--election-timeout-ms", type=int, default=ELECTION_TIMEOUT_MS)
    parser.add_argument("--unchecked", action="store_true", help="nodes check no invariants: the verdict judges alone")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--for-good", type=float, default=0.6, help="the share drawn in which a minority stays faulty")
    parser.add_argument("--slow-follower", type=float, metavar="MINUTES")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        if given.slow_follower is not None:
            print(slow_follower(Path(folder), given.slow_follower, BEFORE_S, KEPT_RATE))
            return 0
        grounds = Grounds(Path(folder), given.election_timeout_ms, check_invariants=not given.unchecked)
        try:
            if given.seed is not None:
                well = run_drawn(grounds, given.seed, given.minutes, given.for_good, page=given.page)
            else:
                those = [named(name) for name in given.names] or list(SCENARIOS)
                well = run_those(grounds, those, given.tries, page=given.page)
        finally:
            grounds.close()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
