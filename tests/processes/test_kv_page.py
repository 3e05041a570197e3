"""docs/kv.md shows what the commands print, checked against a cluster of three processes."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

import quire
from tests.processes.cluster import Clusters, run_quire

PAGE = Path(__file__).parents[2] / "docs" / "kv.md"
SHOWN = re.compile(r"^    \$ quire (.*)\n((?:    (?!\$).*\n)*)", re.MULTILINE)


@pytest.mark.full
def test_the_kv_page_shows_what_the_commands_print(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--machine", "kv"])
    shown = SHOWN.findall(PAGE.read_text())

    printed = [run_quire(*shlex.split(line), extra={"QUIRE_SERVER": cluster.servers}).stdout for line, _ in shown]

    said = [re.sub("^    ", "", answer, flags=re.MULTILINE) for _, answer in shown]
    assert len(shown) > 4
    assert [re.sub('"index": [0-9]+', "", answer) for answer in printed] == [
        re.sub('"index": [0-9]+', "", answer) for answer in said
    ]
    results = doctest.testfile(
        str(PAGE), module_relative=False, globs={"quire": quire, "servers": cluster.servers}, raise_on_error=False
    )
    assert results.attempted > 1
    assert results.failed == 0
