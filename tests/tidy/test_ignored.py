"""Git ignores what the commands of a page make in the checkout: no log and no secret is committed by mistake."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TIMEOUT_S = 30
PAGES = {"README.md": {"data", "data/peer-secret"}, "deploy/runbook.md": {"data", "data/peer-secret", "data/n1"}}
"""Each page, and what its commands make at least."""
OUTSIDE = ("/", "~", "$", "<", "s3:")
"""How a path begins that is not in the checkout, or that nobody can know."""

MAKERS = re.compile(
    r"--data-dir[ =](\S+)|mkdir (?:-p )?([^\s;-]+)|secret new ([^\s;]+)|--file (\S+)|certs init (\S+)"
    r"|spark archive (\S+)|spark report (\S+)| >>? ?([A-Za-z.$][\w./${}-]*)"
)
COMMANDS = re.compile(r"^```sh\n(.*?)^ *```$|^( {4,}[^\n]*)$", re.MULTILINE | re.DOTALL)


def made_by(page: str) -> set[str]:
    """The paths in the checkout that the page's commands make, if each variable is 1.

    Each section begins at the top of the checkout, and `cd` counts until the section ends.
    """
    found: set[str] = set()
    for section in re.split(r"^## ", (TOP / page).read_text(), flags=re.MULTILINE):
        commands = "\n".join(fenced or indented for fenced, indented in COMMANDS.findall(section))
        first, *inside = re.split(r"\bcd (?=[~\w/])", re.sub(r" #.*", "", commands))
        found |= set(_named(first))
        for part in inside:
            folder, _, rest = part.partition("\n")
            found |= {f"{folder.split()[0].rstrip(';')}/{path}" for path in _named(rest)}
    return {path for path in found if not path.startswith(OUTSIDE)}


def _named(commands: str) -> list[str]:
    named = [next(filter(None, match)).strip("\"'") for match in MAKERS.findall(commands)]
    return [re.sub(r"\$\{?\w+\}?", "1", path) for path in named if not path.startswith(OUTSIDE)]


@pytest.mark.parametrize("page", PAGES)
def test_what_the_commands_of_a_page_make_is_ignored(page: str) -> None:
    made = made_by(page)
    asked = ["git", "check-ignore", "--no-index", *(f"{path}/" for path in made), *made]
    ignored = subprocess.run(asked, cwd=TOP, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    # A folder's pattern matches only what is a folder, and these are not made yet.
    known = {line.rstrip("/") for line in ignored.splitlines()}

    assert made >= PAGES[page]
    assert made - known == set()
