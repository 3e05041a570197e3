"""Every `quire` command in a code block of a page exists, and so do its options."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cluster.cli.commands import app
from tests.pages.page import PageError, read_page
from tests.tidy.tree import Tree

TOP = Path(__file__).parents[2]
COMMAND = re.compile(r"(?:^|\s)quire ((?!serve|spark|-)\S.*)")  # Those have parsers of their own.
FEWEST = 100


def commands_of(name: str) -> list[str]:
    """The arguments of each `quire` command in a page's code blocks, those that are not run included."""
    try:
        blocks = read_page(name).blocks
    except PageError:  # tests/pages says so.
        return []
    commands = [command.text.replace("\\\n", " ") for block in blocks for command in block.commands()]
    lines = [re.split(r"  +| #", line)[0] for command in commands for line in command.split("\n")]
    parts = [part for line in lines for part in re.split(r"[;|>]|&(?:$|\s)", line)]
    return [match[1].strip() for part in parts if (match := COMMAND.search(part))]


PAGES = [str(path) for path in Tree.of_checkout(TOP).paths if path.suffix == ".md" and path.name != "CHANGELOG.md"]
FOUND = [(page, command) for page in PAGES for command in commands_of(page)]


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_a_command_in_a_page_exists_with_its_options(page: str, command: str) -> None:
    shown = CliRunner().invoke(app, [*shlex.split(command), "--help"])  # Parses the options, and runs nothing.

    assert shown.exit_code == 0, shown.output


def test_the_pages_with_commands_are_found() -> None:
    assert len(FOUND) >= FEWEST
    assert {"README.md", "docs/command-line.md", "deploy/runbook.md"} <= {page for page, _ in FOUND}


@pytest.mark.parametrize("command", ["aply add 3", "status --wach", "members denote n3", "log repair d --hold before"])
def test_a_wrong_command_would_be_noticed(command: str) -> None:
    assert CliRunner().invoke(app, [*shlex.split(command), "--help"]).exit_code != 0
