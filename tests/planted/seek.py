"""In a copy with a mistake: `python -m tests.planted.seek SEEDS` runs histories until a rule breaks and says which."""

import json
import sys
from pathlib import Path

import quire.log
from quire.cluster.simulator.clock import EndlessHistory
from quire.cluster.simulator.history import Outcome, run
from quire.cluster.simulator.machine import ModelBroken
from quire.cluster.simulator.plan import plan_of
from quire.replication.core.invariants import InvariantBroken

TOP = Path(__file__).resolve().parents[2]


def seek(seeds: int) -> dict[str, object] | None:
    """The first of these seeds that breaks something; None if none does."""
    for seed in range(seeds):
        outcome = run(plan_of(seed))
        if outcome.failure:
            rule = rule_of(outcome)
            return {"seed": seed, "rule": rule, "is_rule": bool(rule), "failure": outcome.failure}
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
    sys.stdout.write(json.dumps(seek(int(sys.argv[1]))))
