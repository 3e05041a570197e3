"""The record of what found each planted mistake, and its table in `docs/reliability.md`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from tests.planted.finding import Finding
from tests.planted.mistake import FOLDER, TOP, Mistake

RECORD = FOLDER / "found.json"
PAGE = TOP / "docs" / "reliability.md"
BEGIN = "<!-- planted mistakes: made by `python -m tests.planted --page` -->\n"
END = "<!-- end of planted mistakes -->\n"


def recorded(path: Path = RECORD) -> dict[str, Finding]:
    """What found each mistake when they were last looked for, by the mistake's name."""
    return {name: Finding(**found) for name, found in json.loads(path.read_text()).items()} if path.exists() else {}


def record(found: Mapping[str, Finding], path: Path = RECORD) -> None:
    """Write the record."""
    path.write_text(json.dumps({name: asdict(found[name]) for name in sorted(found)}, indent=1) + "\n")


def page_of(page: str, planted: Iterable[Mistake], found: Mapping[str, Finding]) -> str:
    """The page with a new table; the text around the table stays."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(_row(mistake, found[mistake.name]) for mistake in planted if mistake.name in found)
    table = f"| mistake | rule | found by | after seeds |\n|---|---|---|---|\n{rows}"
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _row(mistake: Mistake, found: Finding) -> str:
    if found.after:
        return f"| {mistake.bug} | {mistake.rule} | the simulator: *{found.found_by}* | {found.after} |\n"
    test = found.found_by.rpartition("::")[2].partition("[")[0]
    return f"| {mistake.bug} | {mistake.rule} | `{test}` | |\n"
