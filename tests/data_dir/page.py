"""What docs/reliability.md says of damaged data directories."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_BEGIN = "<!-- damaged data directories: made by `python -m tests.data_dir --page` -->\n"
_END = "<!-- end of damaged data directories -->\n"


def table_of(page: str) -> str:
    """The table, as the page has it."""
    return page.partition(_BEGIN)[2].partition(_END)[0].strip() + "\n"


def page_of(page: str, table: str) -> str:
    """The page with a new table. Raises ValueError: it has no place for it."""
    before, found, rest = page.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError("the page has no marks around the table of damaged data directories")
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"
