"""SECURITY.md says who can do what: a row for each kind of caller, and tests that hold it."""

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
CALLERS = (
    "a stranger",
    "a `read` token",
    "a `write` token",
    "an `admin` token",
    "a peer",
    "who hands over a backup",
    "who takes a pod",
)


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    _, _, section = (TOP / "SECURITY.md").read_text().partition("\n## Who can do what\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_kind_of_caller_has_its_row() -> None:
    assert [next(caller for caller in CALLERS if row[0].startswith(caller)) for row in rows()] == list(CALLERS)
    assert all(len(row) == 6 and all(row) for row in rows())


def test_the_tests_that_the_table_names_are_there() -> None:
    found = {
        name
        for path in (TOP / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for *_, tests in rows():
        named = re.findall(r"`(test_\w+)`", tests)
        assert named
        assert set(named) <= found
