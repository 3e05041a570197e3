"""The crash table of `log/DESIGN.md` and the explorations name one another. (Tests that a page names exist: tidy.)"""

from __future__ import annotations

import re
from pathlib import Path

from tests.log import test_crashes

PAGE = (Path(__file__).parents[2] / "log" / "DESIGN.md").read_text()
STEPS = {steps.__name__ for _, steps in test_crashes.EXPLORATIONS}


def named_steps() -> set[str]:
    """The steps that the table's last column names."""
    table = PAGE.split("## Crashes")[1].split("## Limits")[0]
    cells = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell) if not name.startswith("test_")}


def test_every_step_that_the_crash_table_names_is_explored() -> None:
    assert named_steps() - STEPS == set()


def test_every_step_that_is_explored_stands_in_the_crash_table() -> None:
    assert STEPS - named_steps() == set()
