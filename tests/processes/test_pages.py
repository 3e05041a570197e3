"""Commands of pages, as they are printed there: the README's cluster by hand, and docs/kv.md."""

import doctest
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quire
from tests.ports import free_ports
from tests.processes.cluster import Clusters, environment, run_quire

README = Path(__file__).resolve().parents[2] / "README.md"
TIMEOUT_S = 120.0
KV_PAGE = Path(__file__).parents[2] / "docs" / "kv.md"
SHOWN = re.compile(r"^    \$ quire (.*)\n((?:    (?!\$).*\n)*)", re.MULTILINE)


def commands_after(text: str) -> str:
    """The first commands after a text of the README that start nodes, up to the next text."""
    following = README.read_text().partition(text)[2]
    blocks = re.findall(r"^(?:    .*\n|\n)+", following, re.MULTILINE)
    return re.sub(r"^ {4}", "", next(block for block in blocks if "quire serve" in block), flags=re.MULTILINE)


@contextmanager
def after_running(commands: str, tmp_path: Path) -> Generator[tuple[Path, Path]]:
    """What the commands printed, and their errors; the nodes run until this is left."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said, errors = tmp_path / "said", tmp_path / "errors"  # Files: the nodes that go on hold the shell's own output.
    with said.open("wb") as to_said, errors.open("wb") as to_errors:
        shell = subprocess.Popen(
            ["bash", "-c", f"set -e\n{commands}"],
            cwd=tmp_path,
            env=environment({"PATH": path}),
            stdout=to_said,
            stderr=to_errors,
            start_new_session=True,
        )
        try:
            assert shell.wait(TIMEOUT_S) == 0, errors.read_text()
            yield said, errors
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.full
def test_the_readme_s_cluster_by_hand_has_a_secret_and_gives_the_answers_that_it_names(tmp_path: Path) -> None:
    commands = commands_after("## A cluster by hand").replace("make demo CHECK=1; ", "")
    ports = sorted(free_ports(3))
    commands = re.sub(r"\bexport PATH=.*", "", commands).replace("700$n", "${ports[$n]}")
    for number, port in enumerate(ports, 1):
        commands = commands.replace(f"700{number}", str(port))
    with after_running(f"ports=(0 {' '.join(map(str, ports))})\n{commands}", tmp_path) as (said, errors):
        pass

    named = re.findall(r"^quire apply .*# +(\d+)", commands, re.MULTILINE)
    assert re.findall(r"^\d+$", said.read_text(), re.MULTILINE)[:2] == named == ["45", "9"]
    assert stat.S_IMODE((tmp_path / "data" / "peer-secret").stat().st_mode) == 0o600
    assert "alarm" not in errors.read_text() + said.read_text()


@pytest.mark.full
def test_the_readme_s_single_node_grows_to_three_voters(tmp_path: Path) -> None:
    commands, ports = commands_after("One node is a cluster, too, and grows."), sorted(free_ports(3))
    for number, port in enumerate(ports, 1):
        commands = commands.replace(f"700{number}", str(port))

    def members() -> str:
        return run_quire("members", extra={"QUIRE_SERVER": f"127.0.0.1:{ports[0]}"}).stdout

    with after_running(commands, tmp_path) as (_, errors):
        end = time.monotonic() + TIMEOUT_S
        while "1 of 3 voters may fail now" not in (seen := members()):
            assert time.monotonic() < end, seen + errors.read_text()
        assert "alarm" not in errors.read_text()


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
