"""Runs histories: `python -m quire.cluster.simulator --seeds 0:1000 --jobs 2`, `--seed 17`, `--soak`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice

from .history import Outcome, run
from .plan import plan_of
from .shrinking import shrink, transcript

MIN_CHANGED = 0.30
MIN_TRUNCATED = 0.10
MIN_HISTORIES = 50
"""Below this many the shares of histories say nothing."""
REPORT_EVERY = 1_000
RERUN = "python -m quire.cluster.simulator --seed"


def outcome_of(seed: int) -> Outcome:
    """A seed's history."""
    return run(plan_of(seed))


@dataclass
class Report:
    """What many histories went through, and what they found."""

    histories: int = 0
    changed: int = 0
    truncated: int = 0
    lost_tails: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take one more into account."""
        counts = outcome.counts
        self.histories += 1
        self.changed += counts.leader_changes > 0
        self.truncated += counts.truncations > 0
        self.lost_tails += counts.lost_tails > 0
        for name in (
            "steps",
            "operations",
            "crashes",
            "cuts",
            "leader_changes",
            "truncations",
            "lost_tails",
            "snapshots",
            "expiries",
            "installs",
            "changes",
        ):
            self.totals[name] += getattr(counts, name)
        if outcome.failure:
            self.findings.append(outcome)

    @property
    def is_idle(self) -> bool:
        """Whether the histories exercised too little: a simulator that does nothing must not pass."""
        enough = self.changed >= MIN_CHANGED * self.histories and self.truncated >= MIN_TRUNCATED * self.histories
        return self.histories >= MIN_HISTORIES and not enough

    def __str__(self) -> str:
        shares = (
            f"{name} in {100 * number / max(1, self.histories):.0f}%"
            for name, number in (
                ("leader changes", self.changed),
                ("truncations", self.truncated),
                ("lost tails", self.lost_tails),
            )
        )
        totals = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in self.totals.items())
        return f"{self.histories:,} histories: {', '.join(shares)}; {totals}; {len(self.findings)} findings"


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """The outcomes of seeds, in their order."""
    if jobs == 1:
        yield from map(outcome_of, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        seeds = iter(seeds)
        while batch := list(islice(seeds, 50 * jobs)):
            yield from pool.map(outcome_of, batch, chunksize=5)


def explain(seed: int) -> int:
    """Run one seed; of a failing one, print the smallest transcript that is found. Returns an exit status."""
    plan = plan_of(seed)
    outcome = run(plan)
    print(f"seed {seed}: trace {outcome.trace_hash}, {outcome.counts}")
    if not outcome.failure:
        return 0
    print(outcome.failure)
    small = shrink(plan, outcome.rule)
    print(f"rerun: {RERUN} {seed}")
    print(transcript(small, run(small, keep_trace=True)))
    return 1


def run_all(seeds: Iterable[int], jobs: int, *, stop_at_first: bool) -> int:
    """Run seeds and print what they found. Returns an exit status."""
    report, began = Report(), time.monotonic()
    for outcome in outcomes(seeds, jobs):
        report.add(outcome)
        if outcome.failure:
            print(
                f"seed {outcome.seed}: {outcome.failure}\n"
                f"  rerun: python -m quire.cluster.simulator --seed {outcome.seed}",
                flush=True,
            )
            if stop_at_first:
                return explain(outcome.seed)
        if report.histories % REPORT_EVERY == 0:
            print(f"{time.monotonic() - began:.0f} s: {report}", flush=True)
    print(f"{time.monotonic() - began:.0f} s: {report}")
    if report.is_idle:
        print(f"too little happened: {MIN_CHANGED:.0%} must change leaders, {MIN_TRUNCATED:.0%} must truncate")
    return 1 if report.findings or report.is_idle else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m quire.cluster.simulator", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one history; a failing one is shrunk to a transcript")
    what.add_argument("--seeds", metavar="A:B", help="the histories of these seeds, B not included")
    what.add_argument("--soak", type=int, metavar="A", help="seed A and on, until a rule breaks")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return explain(arguments.seed)
    if arguments.soak is not None:
        return run_all(count(arguments.soak), arguments.jobs, stop_at_first=True)
    first, last = map(int, arguments.seeds.split(":"))
    return run_all(range(first, last), arguments.jobs, stop_at_first=False)


if __name__ == "__main__":
    sys.exit(main())
