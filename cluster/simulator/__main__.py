"""Run simulated histories of a cluster, and check every step of them.

    python -m quire.cluster.simulator --seeds 0:1000 --jobs 2    1,000 histories, in two processes
    python -m quire.cluster.simulator --seed 17                  one; if it fails, the shortest transcript found
    python -m quire.cluster.simulator --soak 1000000             from that seed on, until a rule breaks
    python -m quire.cluster.simulator --permanent --histories 50 in each, a minority has permanent faults
    python -m quire.cluster.simulator --stranger --histories 50  in each, a stranger poses as a member
    python -m quire.cluster.simulator --other-code --histories 50 in each, a minority runs other code
    python -m quire.cluster.simulator --members --histories 50   in each, an operator changes the members

A seed determines its history. The exit status is 1 if a rule was broken.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count, islice
from typing import assert_never

from .history import Outcome, run, shrink, transcript
from .permanent.distribution import Distribution
from .permanent.faults import KINDS
from .plan import Plan, changes_members, is_permanent, plan_of, plan_with_stranger

MIN_CHANGED = 0.30
MIN_TRUNCATED = 0.10
MIN_HISTORIES = 50
"""With fewer histories, these shares mean nothing."""
REPORT_EVERY = 1_000
COMMAND = "python -m quire.cluster.simulator"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Sort(StrEnum):
    """Which histories are run: its value is the flag."""

    PLAIN = ""
    STRANGER = "--stranger"
    OTHER_CODE = "--other-code"

    def plan(self, seed: int) -> Plan:
        """The plan of a seed."""
        match self:
            case Sort.PLAIN:
                return plan_of(seed)
            case Sort.STRANGER:
                return plan_with_stranger(seed)
            case Sort.OTHER_CODE:
                return plan_of(seed, other_code=True)
            case _:
                assert_never(self)

    def rerun(self, seed: int) -> str:
        """The command that runs one history again."""
        return " ".join(filter(None, (COMMAND, self.value, f"--seed {seed}")))


def outcome_of(seed: int, sort: Sort = Sort.PLAIN) -> Outcome:
    """Run the history of a seed. To one with a stranger consumers add nothing: no rule about them is a peer's."""
    plan = sort.plan(seed)
    return run(plan.without_consumers() if sort is Sort.STRANGER else plan)


@dataclass
class Report:
    """What happened in many histories, and which of them failed."""

    histories: int = 0
    changed: int = 0
    truncated: int = 0
    lost_tails: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)
    unavailability: Distribution = field(default_factory=Distribution)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one history."""
        counts = outcome.counts
        self.histories += 1
        self.unavailability.add(outcome.unavailability)
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
            "removals",
            "recoveries",
            "restores",
        ):
            self.totals[name] += getattr(counts, name)
        if outcome.failure:
            self.findings.append(outcome)

    @property
    def is_idle(self) -> bool:
        """Whether too little happened in the histories: a simulator that exercises nothing must not pass."""
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


def outcomes(seeds: Iterable[int], jobs: int, sort: Sort = Sort.PLAIN) -> Iterator[Outcome]:
    """The outcomes of seeds, in their order, run in `jobs` processes."""
    outcome_of_sort = partial(outcome_of, sort=sort)
    if jobs == 1:
        yield from map(outcome_of_sort, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        seeds = iter(seeds)
        while batch := list(islice(seeds, 50 * jobs)):
            yield from pool.map(outcome_of_sort, batch, chunksize=5)


def explain(seed: int, sort: Sort) -> int:
    """Run one seed; if it fails, print the shortest transcript found. Returns an exit status."""
    plan = sort.plan(seed)
    outcome = run(plan)
    say(f"seed {seed}: trace {outcome.trace_hash}, {outcome.counts}")
    if not outcome.failure:
        return 0
    say(outcome.failure)
    small = shrink(plan, outcome.rule)
    say(f"rerun: {sort.rerun(seed)}")
    say(transcript(small, run(small, keep_trace=True)))
    return 1


def run_all(seeds: Iterable[int], jobs: int, sort: Sort, *, stop_at_first: bool) -> int:
    """Run seeds, and print failures and totals. Returns an exit status."""
    report, began = Report(), time.monotonic()
    for outcome in outcomes(seeds, jobs, sort):
        report.add(outcome)
        if outcome.failure:
            say(f"seed {outcome.seed}: {outcome.failure}\n  rerun: {sort.rerun(outcome.seed)}")
            if stop_at_first:
                return explain(outcome.seed, sort)
        if report.histories % REPORT_EVERY == 0:
            say(f"{time.monotonic() - began:.0f} s: {report}")
    say(f"{time.monotonic() - began:.0f} s: {report}")
    if lines := report.unavailability.lines():
        say("progress with a permanently faulty minority: median / 99th percentile / worst, in election timeouts:")
        say("\n".join(lines))
    if report.is_idle:
        say(f"too little happened: {MIN_CHANGED:.0%} must change leaders, {MIN_TRUNCATED:.0%} must truncate")
    return 1 if report.findings or report.is_idle else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m quire.cluster.simulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one history; if it fails, shrink it to a transcript")
    what.add_argument("--seeds", metavar="A:B", help="run the histories of the seeds from A, below B")
    what.add_argument("--soak", type=int, metavar="A", help="run seeds from A on, until a rule breaks")
    what.add_argument("--histories", type=int, metavar="N", help="run N histories, from seed 0 on")
    parser.add_argument(
        "--permanent",
        nargs="?",
        const="",
        choices=("", *KINDS),
        metavar="KIND",
        help="only histories in which a minority has permanent faults; with KIND, faults of that kind",
    )
    sort = parser.add_mutually_exclusive_group()
    sort.add_argument(
        Sort.STRANGER,
        dest="sort",
        action="store_const",
        const=Sort.STRANGER,
        help="histories in which a stranger poses as a member",
    )
    sort.add_argument(
        Sort.OTHER_CODE,
        dest="sort",
        action="store_const",
        const=Sort.OTHER_CODE,
        help="histories in which a minority runs other code",
    )
    parser.add_argument(
        "--members", action="store_true", help="only histories in which an operator changes the members"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    arguments = parser.parse_args()
    sort_asked = arguments.sort or Sort.PLAIN
    if arguments.seed is not None:
        return explain(arguments.seed, sort_asked)
    seeds: Iterable[int] = count(arguments.soak or 0)
    if arguments.seeds is not None:
        seeds = range(*map(int, arguments.seeds.split(":")))
    if arguments.permanent is not None:
        seeds = (seed for seed in seeds if is_permanent(seed, arguments.permanent))
    if arguments.members:
        seeds = (seed for seed in seeds if changes_members(seed))
    seeds = islice(seeds, arguments.histories)
    return run_all(seeds, arguments.jobs, sort_asked, stop_at_first=arguments.soak is not None)


if __name__ == "__main__":
    sys.exit(main())
