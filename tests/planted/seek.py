"""In a copy with a mistake: `python -m tests.planted.seek SEEDS` runs histories until a rule breaks and says which.

With a kind of fault as second argument, only histories in which a minority has that for good.
"""

import json
import sys
from itertools import count, islice
from pathlib import Path

import quire.log
from quire.cluster.simulator.clock import EndlessHistory
from quire.cluster.simulator.history import Outcome, run
from quire.cluster.simulator.machine import ModelBroken
from quire.cluster.simulator.plan import is_permanent, plan_of
from quire.replication.core.invariants import InvariantBroken

TOP = Path(__file__).resolve().parents[2]


def seek(seeds: int, fault: str = "") -> dict[str, object] | None:
    """The first of so many seeds that breaks something; None if none does."""
    looked_at = (seed for seed in count() if not fault or is_permanent(seed, fault))
    for after, seed in enumerate(islice(looked_at, seeds), 1):
        outcome = run(plan_of(seed))
        if outcome.failure:
            rule = rule_of(outcome)
            return {"seed": seed, "after": after, "rule": rule, "is_rule": bool(rule), "failure": outcome.failure}
    return None


def rule_of(outcome: Outcome) -> str:
    """The rule that a history broke, in words; "" where it ended with an error that is none."""
    match outcome.rule:
        case InvariantBroken.__name__:
            return outcome.failure.partition(": ")[2].rpartition(": ")[0]
        case ModelBroken.__name__:
            return "what clients meant stands in the log, and executes once"
        case EndlessHistory.__name__:
            return "a history ends"
        case rule:
            return "" if rule.isidentifier() and rule[0].isupper() else rule


if __name__ == "__main__":
    if TOP not in Path(quire.log.__file__).resolve().parents:
        raise SystemExit(f"not the code of this copy: {quire.log.__file__}")
    sys.stdout.write(json.dumps(seek(int(sys.argv[1]), *sys.argv[2:])))
