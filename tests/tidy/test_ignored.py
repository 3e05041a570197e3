"""Git ignores what the commands of a page make in the checkout: no log and no secret is committed by mistake."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TIMEOUT_S = 30
PAGES = {"README.md": {"data", "data/peer-secret", "data/n1", "d1", "d2", "d3", "archive", "report"}}
"""Each page, and what its commands make at least."""

MAKERS = re.compile(
    r"--data-dir[ =](\S+)|mkdir (?:-p )?([^\s;-]+)|secret new ([^\s;]+)|--file (\S+)|certs init (\S+)"
    r"|spark archive (\S+)|spark report (\S+)| >>? ?([A-Za-z.$][\w./${}-]*)"
)


def made_by(page: str) -> set[str]:
    """The relative paths that the page's commands make, if each variable is 1."""
    commands = re.findall(r"^ {4,}\S.*$", (TOP / page).read_text(), re.MULTILINE)
    named = [path for command in commands for path in _named(command.partition(" #")[0])]
    return {path for path in named if not path.startswith(("/", "s3:", "<", "$"))}


def _named(command: str) -> list[str]:
    found = [next(filter(None, match)) for match in MAKERS.findall(command)]
    return [re.sub(r"\$\{?\w+\}?", "1", path.strip("\"'")) if not path.startswith("$") else path for path in found]


@pytest.mark.parametrize("page", PAGES)
def test_what_the_commands_of_a_page_make_is_ignored(page: str) -> None:
    made = made_by(page)
    asked = ["git", "check-ignore", "--no-index", *(f"{path}/" for path in made), *made]
    ignored = subprocess.run(asked, cwd=TOP, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    # A folder's pattern matches only what is a folder, and these are not made yet.
    known = {line.rstrip("/") for line in ignored.splitlines()}

    assert made >= PAGES[page]
    assert made - known == set()
