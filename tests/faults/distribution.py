"""For how long a healthy majority committed nothing while a minority was ill: the distribution, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.faults.scenario import Scenario

HEAD = "| what stays wrong with a minority | scenarios | median | 90th | 99th | worst | longest wait of a command |\n"
RULE = "|---|---|---|---|---|---|---|\n"


class Value(NamedTuple):
    """A scenario, and two times of it in election timeouts."""

    scenario: Scenario
    without_commit: float
    waited: float


GROUPS = ("anything", "one thing", "two things at once", "two nodes of five")


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def table_of(values: Sequence[Value], seed: int, minutes: float) -> str:
    """The distribution over all, over single and double illnesses, and over the scenarios of each illness."""
    alone = [value for value in values if len(value.scenario.ill) == 1]
    two = [value for value in values if len(value.scenario.ill) > 1 and value.scenario.shape.size == 3]
    of_five = [value for value in values if value.scenario.shape.size == 5]
    groups = list(zip(GROUPS, (values, alone, two, of_five), strict=True))
    kinds = sorted({kind for value in values for kind in value.scenario.ill})
    groups += [(kind, [value for value in values if kind in value.scenario.ill]) for kind in kinds]
    said = f"Seed {seed}, {minutes:g} minutes; times in election timeouts.\n\n"
    return said + HEAD + RULE + "".join(_line(name, group) for name, group in groups if group)


def _line(name: str, group: Sequence[Value]) -> str:
    without = [value.without_commit for value in group]
    shares = " | ".join(f"{percentile(without, share):.2f}" for share in (0.5, 0.9, 0.99, 1.0))
    return f"| {name} | {len(group)} | {shares} | {max(value.waited for value in group):.2f} |\n"
