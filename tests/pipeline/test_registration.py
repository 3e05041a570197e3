"""How Spark comes to know the source, and what it costs those who only come by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import quire
import quire.pipeline
import quire.pipeline.source.registration
from quire.pipeline.errors import WorkersLackQuire
from quire.pipeline.source.registration import check_workers
from tests.pipeline.logs import append_and_flush, writing
from tests.pipeline.sessions import TOP

HEAVY = ("aiohttp", "numpy", "orjson", "pandas", "pyarrow", "quire.cluster.client", "quire.log")


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter without any package that was installed."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_what_every_session_of_spark_imports_is_light() -> None:
    program = f"import sys, pyspark_quire; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert ran.stdout.strip() == "[]"


@pytest.mark.full
def test_a_session_that_was_told_of_the_source_reads_with_it(spark: SparkSession, tmp_path: Path) -> None:
    with writing(tmp_path / "log") as log:
        append_and_flush(log, [1, 2, 3])
    session = spark.newSession()
    quire.pipeline.register(session)

    assert session.read.format("quire").load(str(tmp_path / "log")).count() == 3


def test_workers_without_quire_are_told_of_before_anything_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, bare_python: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)

    says = rf"{bare_python}, which cannot import quire: ModuleNotFoundError: No module named 'quire'; .*PYSPARK_PYTHON"
    with pytest.raises(WorkersLackQuire, match=says):
        quire.pipeline.register(spark.newSession())


def test_workers_with_quire_but_without_what_it_needs_are_told_of(tmp_path: Path, bare_python: str) -> None:
    script = Path(bare_python)
    sources = f"import sys; sys.path.insert(0, {str(TOP / 'src')!r})"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S -c "{sources}; $2"\n')

    with pytest.raises(WorkersLackQuire, match="cannot import quire: ModuleNotFoundError: No module named 'pyspark'"):
        check_workers(bare_python)


def test_workers_that_cannot_be_run_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent").write_text("#!/bin/sh\nexit 3\n")
    os.chmod(tmp_path / "silent", 0o755)

    with pytest.raises(WorkersLackQuire, match="No such file"):
        check_workers(str(tmp_path / "nothing"))
    with pytest.raises(WorkersLackQuire, match="it exited with 3"):
        check_workers(str(tmp_path / "silent"))
    (tmp_path / "silent").write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    monkeypatch.setattr(quire.pipeline.source.registration, "IMPORT_TIMEOUT_S", 0.2)
    with pytest.raises(WorkersLackQuire, match="timed out after"):
        check_workers(str(tmp_path / "silent"))
