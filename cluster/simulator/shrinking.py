"""A failing history made small: faults go, one bunch after the other, as long as the same rule breaks without them."""

from collections.abc import Callable

from .history import Outcome, run
from .plan import Plan

MAX_RUNS = 300
TRANSCRIPT_STEPS = 60


def shrink(plan: Plan, rule: str, fails: Callable[[Plan], Outcome] = run) -> Plan:
    """The plan with as few faults as are found to break `rule` still (delta debugging: Zeller 1999)."""
    bunch, runs = max(1, len(plan.faults) // 2), 0
    while True:
        at, went = 0, False
        while at < len(plan.faults) and runs < MAX_RUNS:
            fewer = plan.without(frozenset(range(at, at + bunch)))
            runs += 1
            if fails(fewer).rule == rule:
                plan, went = fewer, True
            else:
                at += bunch
        if runs >= MAX_RUNS or (bunch == 1 and not went):
            return plan
        bunch = max(1, bunch // 2)


def transcript(plan: Plan, outcome: Outcome) -> str:
    """What is left of a failing history: its faults, and its last steps."""
    faults = "\n".join(f"  {fault}" for fault in plan.faults)
    steps = "\n".join(f"  {line}" for line in outcome.trace[-TRANSCRIPT_STEPS:])
    return (
        f"faults that are needed ({len(plan.faults)}):\n{faults}\n"
        f"the last of {len(outcome.trace)} steps (time in us, node, event, promised epoch, end of the log, "
        f"commit_index):\n{steps}\n{outcome.failure}"
    )
