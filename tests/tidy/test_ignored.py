"""Git ignores what the commands of a page make in the checkout: no log and no secret is committed by mistake."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TIMEOUT_S = 30
PAGES = {"README.md": {"data", "data/peer-secret"}, "deploy/runbook.md": {"data", "data/peer-secret", "data/n1"}}
"""Each page, and what its commands make at least."""
INTO_DATA = "&& cd data"
"""From here on, the commands of a block and of the blocks below it run in `data`."""

MAKERS = re.compile(
    r"--data-dir[ =](\S+)|mkdir (?:-p )?([^\s;-]+)|secret new ([^\s;]+)|--file (\S+)|certs init (\S+)"
    r"|spark archive (\S+)|spark report (\S+)| >>? ?([A-Za-z.$][\w./${}-]*)"
)
COMMANDS = re.compile(r"^```sh\n(.*?)^ *```$|^( {4,}[^\n]*)$", re.MULTILINE | re.DOTALL)


def made_by(page: str) -> set[str]:
    """The relative paths that the page's commands make, if each variable is 1."""
    found: set[str] = set()
    for section in re.split(r"^## ", (TOP / page).read_text(), flags=re.MULTILINE):
        here, _, inside = "\n".join(fenced or indented for fenced, indented in COMMANDS.findall(section)).partition(
            INTO_DATA
        )
        found |= {*_named(here), *(f"data/{path}" for path in _named(inside))}
    return {path for path in found if not path.removeprefix("data/").startswith(("/", "s3:", "<", "$"))}


def _named(commands: str) -> list[str]:
    found = MAKERS.findall(re.sub(r" #.*", "", commands))
    named = [next(filter(None, match)).strip("\"'") for match in found]
    return [path if path.startswith("$") else re.sub(r"\$\{?\w+\}?", "1", path) for path in named]


@pytest.mark.parametrize("page", PAGES)
def test_what_the_commands_of_a_page_make_is_ignored(page: str) -> None:
    made = made_by(page)
    asked = ["git", "check-ignore", "--no-index", *(f"{path}/" for path in made), *made]
    ignored = subprocess.run(asked, cwd=TOP, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    # A folder's pattern matches only what is a folder, and these are not made yet.
    known = {line.rstrip("/") for line in ignored.splitlines()}

    assert made >= PAGES[page]
    assert made - known == set()
