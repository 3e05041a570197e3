"""The table of the scenarios in docs/reliability.md."""

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


class Row(NamedTuple):
    """A scenario and how it went."""

    scenario: Scenario
    outcome: Outcome


def page_of(page: str, rows: Sequence[Row]) -> str:
    """The page with these rows between its marks. Raises ValueError: it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page does not say where the table stands")
    return before + BEGIN + "\n" + HEAD + "".join(map(_line, rows)) + "\n" + END + behind


def _line(row: Row) -> str:
    scenario, outcome = row
    return (
        f"| {scenario.name} | {scenario.shape.size} | {outcome.acknowledged:,} | {outcome.retries} | "
        f"{outcome.changes} | {outcome.recovery_s:.2f} s | {outcome.growth_bytes / 1e6:.1f} MB |\n"
    )


def names_on(page: str) -> list[str]:
    """The scenarios that the page's table names."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
