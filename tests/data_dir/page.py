"""The tables of damaged data directories in docs/reliability.md."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_MARKS = {
    name: (
        f"<!-- damaged data directories, {name}: made by `python -m tests.data_dir` -->\n",
        f"<!-- end of {name} -->\n",
    )
    for name in ("alone", "in pairs")
}


def part_of(page: str, name: str) -> str:
    """The table of a name, as the page has it."""
    begin, end = _MARKS[name]
    return page.partition(begin)[2].partition(end)[0].strip() + "\n"


def page_of(page: str, name: str, table: str) -> str:
    """The page with a new table. Raises ValueError: it has no place for it."""
    begin, end = _MARKS[name]
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page does not say where the table of {name} stands")
    return f"{before}{begin}\n{table}\n{end}{after}"
