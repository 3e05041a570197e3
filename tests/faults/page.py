"""The tables of the scenarios in docs/reliability.md, and for how long a majority committed nothing meanwhile."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.running import Outcome
from tests.faults.scenario import Scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN = "<!-- fault scenarios: made by `make soak-faults` -->\n"
END = "<!-- end of the fault scenarios -->\n"
HEAD = (
    "| scenario | nodes | acknowledged | sent again | epochs | first acknowledgement after healing | memory grew by |\n"
    "|---|---|---|---|---|---|---|\n"
)


VALUES_BEGIN = "<!-- a minority that stays ill: made by `make soak-faults` -->\n"
VALUES_END = "<!-- end of a minority that stays ill -->\n"


class Row(NamedTuple):
    """A scenario and how it went."""

    scenario: Scenario
    outcome: Outcome


def page_with_values(page: str, table: str) -> str:
    """The page with this table between the marks for it. Raises ValueError: it has none."""
    return _between(page, VALUES_BEGIN, "\n" + table + "\n", VALUES_END)


def page_of(page: str, rows: Sequence[Row]) -> str:
    """The page with these rows between its marks. Raises ValueError: it has none."""
    return _between(page, BEGIN, "\n" + HEAD + "".join(map(_line, rows)) + "\n", END)


def _between(page: str, begin: str, text: str, end: str) -> str:
    before, found, rest = page.partition(begin)
    _, found_end, behind = rest.partition(end)
    if not found or not found_end:
        raise ValueError("the page does not say where the table stands")
    return before + begin + text + end + behind


def _line(row: Row) -> str:
    scenario, outcome = row
    return (
        f"| {scenario.name} | {scenario.shape.size} | {outcome.acknowledged:,} | {outcome.retries} | "
        f"{outcome.changes} | {outcome.recovery_s:.2f} s | {outcome.growth_bytes / 1e6:.1f} MB |\n"
    )


def names_on(page: str) -> list[str]:
    """The scenarios that the page's table names."""
    return _first_column(page, BEGIN, END)


def kinds_on(page: str) -> list[str]:
    """The illnesses, and groups of them, that the page has values of."""
    return _first_column(page, VALUES_BEGIN, VALUES_END)


def _first_column(page: str, begin: str, end: str) -> list[str]:
    table = page.partition(begin)[2].partition(end)[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]


# For how long a healthy majority committed nothing while a minority was ill

VALUES_HEAD = (
    "| what stays wrong with a minority | scenarios | median | 90th | 99th | worst | longest wait of a command |\n"
    "|---|---|---|---|---|---|---|\n"
)


class Value(NamedTuple):
    """A scenario in which a minority was ill, and two times of it in election timeouts."""

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
    return said + VALUES_HEAD + "".join(_line_of(name, group) for name, group in groups if group)


def _line_of(name: str, group: Sequence[Value]) -> str:
    without = [value.without_commit for value in group]
    shares = " | ".join(f"{percentile(without, share):.2f}" for share in (0.5, 0.9, 0.99, 1.0))
    return f"| {name} | {len(group)} | {shares} | {max(value.waited for value in group):.2f} |\n"
