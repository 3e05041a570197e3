"""Commands of pages, as they are printed there: the README's cluster by hand, and docs/kv.md."""

import doctest
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import quire
from tests.ports import free_ports
from tests.processes.cluster import Clusters, environment, run_quire

README = Path(__file__).resolve().parents[2] / "README.md"
TIMEOUT_S = 120.0
KV_PAGE = Path(__file__).parents[2] / "docs" / "kv.md"
SHOWN = re.compile(r"^    \$ quire (.*)\n((?:    (?!\$).*\n)*)", re.MULTILINE)


def by_hand() -> str:
    """The commands that start the cluster and use it."""
    [chapter] = re.findall(
        r"^## A cluster by hand\n(.*?)^Or use anything", README.read_text(), re.MULTILINE | re.DOTALL
    )
    blocks = re.findall(r"^(?:    .*\n|\n)+", chapter, re.MULTILINE)
    [lines] = [block for block in blocks if "quire serve" in block]
    return re.sub(r"^ {4}", "", lines, flags=re.MULTILINE)


@pytest.mark.full
def test_the_readme_s_cluster_by_hand_has_a_secret_and_gives_the_answers_that_it_names(tmp_path: Path) -> None:
    commands, ports = by_hand().replace("make demo CHECK=1; ", ""), sorted(free_ports(3))
    commands = re.sub(r"\bexport PATH=.*", "", commands).replace("700$n", "${ports[$n]}")
    for number, port in enumerate(ports, 1):
        commands = commands.replace(f"700{number}", str(port))
    numbered = f"set -e\nports=(0 {' '.join(map(str, ports))})\n"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    said, errors = tmp_path / "said", tmp_path / "errors"  # Files: the nodes that go on hold the shell's own output.
    with said.open("wb") as to_said, errors.open("wb") as to_errors:
        shell = subprocess.Popen(
            ["bash", "-c", numbered + commands],
            cwd=tmp_path,
            env=environment({"PATH": path}),
            stdout=to_said,
            stderr=to_errors,
            start_new_session=True,
        )
        try:
            assert shell.wait(TIMEOUT_S) == 0, errors.read_text()
        finally:
            os.killpg(shell.pid, signal.SIGKILL)

    named = re.findall(r"^quire apply .*# +(\d+)", commands, re.MULTILINE)
    assert re.findall(r"^\d+$", said.read_text(), re.MULTILINE)[:2] == named == ["45", "9"]
    assert stat.S_IMODE((tmp_path / "data" / "peer-secret").stat().st_mode) == 0o600
    assert "alarm" not in errors.read_text() + said.read_text()


@pytest.mark.full
def test_the_kv_page_shows_what_the_commands_print(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--machine", "kv"])
    shown = SHOWN.findall(KV_PAGE.read_text())

    printed = [run_quire(*shlex.split(line), extra={"QUIRE_SERVER": cluster.servers}).stdout for line, _ in shown]

    said = [re.sub("^    ", "", answer, flags=re.MULTILINE) for _, answer in shown]
    assert len(shown) > 4
    assert [re.sub('"index": [0-9]+', "", answer) for answer in printed] == [
        re.sub('"index": [0-9]+', "", answer) for answer in said
    ]
    results = doctest.testfile(
        str(KV_PAGE), module_relative=False, globs={"quire": quire, "servers": cluster.servers}, raise_on_error=False
    )
    assert results.attempted > 1
    assert results.failed == 0
