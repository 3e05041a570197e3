"""The tables of the scenarios in docs/reliability.md, and for how long a majority committed nothing meanwhile."""

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.running import Outcome
from tests.faults.scenario import Scenario
from tests.faults.scenarios import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN = "<!-- fault scenarios: made by `make soak-faults` -->\n"
END = "<!-- end of the fault scenarios -->\n"
HEAD = (
    "| faults | scenarios | acknowledged | sent again | leader changes | slowest acknowledgement after healing "
    "| most memory growth |\n"
    "|---|---|---|---|---|---|---|\n"
)


VALUES_BEGIN = "<!-- a minority with permanent faults: made by `make soak-faults` -->\n"
VALUES_END = "<!-- end of a minority with permanent faults -->\n"


class Row(NamedTuple):
    """A scenario and how it went."""

    scenario: Scenario
    outcome: Outcome


def page_with_values(page: str, table: str) -> str:
    """The page with this table between the marks for it. Raises ValueError: it has none."""
    return _between(page, VALUES_BEGIN, "\n" + table + "\n", VALUES_END)


def page_of(page: str, rows: Sequence[Row]) -> str:
    """The page with a line for each kind of these rows between its marks. Raises ValueError: it has none."""
    kinds = [(name, [row.outcome for row in rows if row.scenario in those]) for name, those in KINDS.items()]
    return _between(page, BEGIN, "\n" + HEAD + "".join(_line(*kind) for kind in kinds if kind[1]) + "\n", END)


def _between(page: str, begin: str, text: str, end: str) -> str:
    before, found, rest = page.partition(begin)
    _, found_end, behind = rest.partition(end)
    if not found or not found_end:
        raise ValueError("the page does not say where the table stands")
    return before + begin + text + end + behind


def _line(kind: str, outcomes: Sequence[Outcome]) -> str:
    return (
        f"| {kind} | {len(outcomes)} | {sum(each.acknowledged for each in outcomes):,} | "
        f"{sum(each.retries for each in outcomes)} | {sum(each.changes for each in outcomes)} | "
        f"{max(each.recovery_s for each in outcomes):.2f} s | "
        f"{max(each.growth_bytes for each in outcomes) / 1e6:.1f} MB |\n"
    )


def kinds_on(page: str) -> dict[str, int]:
    """The kinds of faults that the page's table has, each with the number of its scenarios."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    cells = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    return {cell[1].strip(): int(cell[2]) for cell in cells}


def permanent_faults_on(page: str) -> set[str]:
    """The permanent faults that the page has values of."""
    values = " ".join(page.partition(VALUES_BEGIN)[2].partition(VALUES_END)[0].split())
    return set(re.findall(r"([^;:()]+) \(\d+, ", values.partition(OF_EACH + ": ")[2].replace("; ", ";")))


# For how long a healthy majority committed nothing while a minority was faulty

VALUES_HEAD = (
    "| what stays wrong with a minority | scenarios | median | 90th | worst | longest wait of a command |\n"
    "|---|---|---|---|---|---|\n"
)


class Value(NamedTuple):
    """A scenario in which a minority was faulty, and two times of it in election timeouts."""

    scenario: Scenario
    without_commit: float
    waited: float


OF_EACH = "The number of scenarios with each fault, and their worst time"
GROUPS = ("anything", "one thing", "two things at once", "two nodes of five")


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def table_of(values: Sequence[Value], seed: int, minutes: float) -> str:
    """The distribution over all, over single and double faults; then the worst time with each fault."""
    alone = [value for value in values if len(value.scenario.permanent) == 1]
    two = [value for value in values if len(value.scenario.permanent) > 1 and value.scenario.shape.size == 3]
    of_five = [value for value in values if value.scenario.shape.size == 5]
    groups = zip(GROUPS, (values, alone, two, of_five), strict=True)
    said = f"Seed {seed}, {minutes:g} minutes; times in election timeouts.\n\n"
    table = said + VALUES_HEAD + "".join(_line_of(name, group) for name, group in groups if group)
    times: defaultdict[str, list[float]] = defaultdict(list)
    for value in values:
        for fault in value.scenario.permanent:
            times[fault].append(value.without_commit)
    worst = "; ".join(f"{name} ({len(times[name])}, {max(times[name]):.2f})" for name in sorted(times))
    each = textwrap.fill(f"{OF_EACH}: {worst}.", 128, break_on_hyphens=False)
    return f"{table}\n{each}\n"


def _line_of(name: str, group: Sequence[Value]) -> str:
    without = [value.without_commit for value in group]
    shares = " | ".join(f"{percentile(without, share):.2f}" for share in (0.5, 0.9, 1.0))
    return f"| {name} | {len(group)} | {shares} | {max(value.waited for value in group):.2f} |\n"
