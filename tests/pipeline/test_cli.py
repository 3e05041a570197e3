"""`quire spark` as a part of `quire`: light while it is not used, and plain where its extra is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quire.sm import ArithmeticMachine
from tests.pipeline.test_replay import run_cluster
from tests.processes.cluster import run_quire

HEAVY = ("pyspark", "pyarrow", "numpy", "matplotlib", "pandas")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_quire_has_the_group_that_the_pipeline_brings() -> None:
    run = run_quire("spark", "--help")

    assert run.code == 0
    for job in ("archive", "scrub", "replay", "report"):
        assert f"  {job} " in run.stdout


def test_the_group_imports_nothing_heavy_before_a_job_runs() -> None:
    run = python(f"import sys, quire.pipeline.cli; print([name for name in {HEAVY} if name in sys.modules])")

    assert run.stdout == "[]\n", run.stderr


def hiding(hidden: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    """`quire spark` where some packages cannot be imported. Its last line on stdout says which of HEAVY it imported."""
    return python(
        f"import sys; sys.modules.update(dict.fromkeys({hidden})); "
        f"sys.argv = ['quire', 'spark', *{[str(argument) for argument in arguments]}]\n"
        "from quire.cluster.cli.main import main\n"
        "try: main()\n"
        f"finally: print([name for name in {HEAVY} if sys.modules.get(name)])"
    )


@pytest.mark.parametrize(
    ("hidden", "arguments", "missing"),
    [
        (("pyspark",), ("scrub", "--path", "data", "--spark"), "pyspark"),
        (("pyspark", "pandas"), ("report", "page", "--path", "data", "--conf", "a=b"), "pyspark, pandas"),
        (("pyarrow", "pyspark", "matplotlib"), ("archive", "there", "--path", "data"), "pyarrow"),
        (("numpy",), ("replay", "--path", "data", "--on", "local"), "numpy"),
        (("matplotlib", "pyspark"), ("report", "page", "--path", "data"), "matplotlib"),
    ],
)
def test_of_the_packages_that_are_not_installed_only_those_that_the_run_needs_are_named(
    hidden: tuple[str, ...], arguments: tuple[str, ...], missing: str
) -> None:
    run = hiding(hidden, *arguments)

    assert (run.returncode, run.stdout) == (2, "[]\n")
    [sentence] = run.stderr.splitlines()
    assert sentence == (
        f"quire: quire spark needs {missing}, which is not installed; "
        "in quire's checkout, .venv/bin/pip install -e '.[spark]'"
    )


@pytest.mark.parametrize("hidden", [("pyspark", "py4j", "pandas"), ()])
def test_without_spark_s_options_every_job_runs_in_this_process_and_needs_no_spark(
    tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(), records=100)

    for job, says, heavy in (
        (("scrub",), "whole; ", ["pyarrow", "numpy"]),
        (("archive", tmp_path / "archive"), "100 records, [0, 100)", ["pyarrow", "numpy"]),
        (("replay",), "proven up to index 85", ["pyarrow", "numpy"]),
        (("report", tmp_path / "report"), "report.html", ["pyarrow", "numpy", "matplotlib"]),
    ):
        run = hiding(hidden, *job, "--path", tmp_path / "n1")
        assert (run.returncode, run.stderr) == (0, "")
        *lines, imported = run.stdout.splitlines()
        assert says in "\n".join(lines)
        assert imported == str(heavy)


def test_the_jobs_are_there_for_programs_without_spark() -> None:
    run = python("import sys; sys.modules['pyspark'] = None; import quire.pipeline.jobs")

    assert (run.returncode, run.stderr) == (0, "")


def test_every_module_can_be_the_first_that_a_worker_of_spark_imports() -> None:
    run = python(FIRST_IMPORTS)

    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) > 30


FIRST_IMPORTS = """
import sys
from importlib import import_module
from pkgutil import walk_packages
import quire.pipeline

names = [module.name for module in walk_packages(quire.pipeline.__path__, "quire.pipeline.")]
for name in names:
    for loaded in [each for each in sys.modules if each.startswith("quire.pipeline")]:
        del sys.modules[loaded]
    import_module(name)
print(len(names))
"""
