"""The examples of docs/client.md run against a cluster: the service in an environment that has quire's wheel."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import quire
from tests.processes.cluster import Clusters
from tests.tidy.tree import Tree

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "client.md"
TIMEOUT_S = 120


@pytest.mark.full
def test_the_client_page_s_examples_print_what_it_says(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--machine", "kv"])

    results = doctest.testfile(
        str(PAGE), module_relative=False, globs={"quire": quire, "servers": cluster.servers}, raise_on_error=False
    )

    assert (results.attempted, results.failed) == (1, 0)


@pytest.mark.full
def test_the_page_s_service_runs_in_an_environment_of_its_own(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.formed(flags=["--machine", "kv"])
    python = installed(tmp_path)
    program = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "service.py").write_text(program)

    printed = run([python, "service.py", cluster.servers], tmp_path)

    assert printed.splitlines() == ["True", "NO_NUMBER", "blue"]
    assert str(tmp_path) in run([python, "-c", "import quire; print(quire.__file__)"], tmp_path)


def installed(tmp_path: Path) -> Path:
    """The interpreter of a new environment with quire's wheel, and with the dependencies of this one."""
    copy, environment = tmp_path / "checkout", tmp_path / "service"
    for path in Tree.of_checkout(TOP).paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / path, copy / path, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip"]
    run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."], copy)
    run([sys.executable, "-m", "venv", "--without-pip", environment], tmp_path)
    python = environment / "bin" / "python"
    [wheel] = (copy / "dist").glob("quire-*.whl")
    run([*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel], tmp_path)
    [packages] = environment.glob("lib/python*/site-packages")
    [own] = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text(f"{own}\n")
    return python


def run(command: Sequence[str | Path], folder: Path) -> str:
    """What a command prints, in a folder and without this checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
