"""`quire spark` as a part of `quire`: light while it is not used, and plain where its extra is missing."""

from __future__ import annotations

import subprocess
import sys

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


def test_without_the_extra_it_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['pyspark'] = None; sys.argv = ['quire', 'spark', 'scrub', '--path', 'data']; "
    run = python(hidden + "from quire.cluster.cli.main import main; main()")

    assert (run.returncode, run.stdout) == (2, "")
    [sentence] = run.stderr.splitlines()
    assert sentence == (
        "quire: quire spark needs pyspark, which is not installed; "
        "in quire's checkout, .venv/bin/pip install -e '.[spark]'"
    )


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
