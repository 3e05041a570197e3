"""What a mistyped command or option is answered with: what was meant, never its opposite."""

import re

import pytest
from typer.testing import CliRunner

from quire.cluster.cli.commands import COMMANDS, app
from quire.cluster.cli.group import likely


@pytest.mark.parametrize(
    ("line", "meant", "opposite"),
    [
        ("undrian n1", "'undrain'", "'drain'"),
        ("drian n1", "'drain'", "'undrain'"),
        ("members demot n1", "'demote'", "'promote'"),
        ("expire --no-dry-run", "No such option", "(Possible options: --dry-run)"),
        ("status --no-watch", "No such option", "--watch)"),
        ("expire --dry-rum", "--dry-run", "--no-dry-run"),
        ("aply add 3", "'apply'", "'append'"),
    ],
)
def test_a_suggestion_is_what_was_meant_and_not_its_opposite(line: str, meant: str, opposite: str) -> None:
    ended = CliRunner().invoke(app, line.split())

    assert ended.exit_code == 2
    assert meant in ended.stderr
    assert opposite not in ended.stderr


def test_a_name_is_likely_if_it_negates_as_what_was_asked_does() -> None:
    assert likely("--no-json", ["--json"]) == []
    assert likely("--json-lines", ["--json"]) == ["--json"]
    assert likely("unset", ["set", "unsent"]) == ["unsent"]


def test_the_line_of_a_command_in_the_list_is_the_first_sentence_of_its_help() -> None:
    for name, location in COMMANDS.items():
        if name not in ("serve", "spark"):  # The node's own parser; an extra.
            shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
            text = " ".join(shown.split("\n\n")[1].split())
            assert re.split(r"(?<=\.) ", text)[0] == location.about
