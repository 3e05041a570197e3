"""The crash table of `log/DESIGN.md` names each explored step, and no other. (Tidy checks the tests that it names.)"""

from __future__ import annotations

import re
from pathlib import Path

from tests.log import test_crashes

PAGE = (Path(__file__).parents[2] / "log" / "DESIGN.md").read_text()
STEPS = {steps.__name__ for _, steps in test_crashes.EXPLORATIONS}


def named_steps() -> set[str]:
    """The steps in the last column of the table."""
    table = PAGE.split("## Crashes")[1].split("## Limits")[0]
    cells = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell) if not name.startswith("test_")}


def test_every_step_that_the_crash_table_names_is_explored() -> None:
    assert named_steps() - STEPS == set()


def test_every_explored_step_is_in_the_crash_table() -> None:
    assert STEPS - named_steps() == set()
