"""Telling a Spark session of the source, where it does not find it by itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from ..errors import WorkersLackQuire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPORT_TIMEOUT_S = 120.0
"""A busy machine's cold disk may take seconds to import Spark and Arrow."""

# All that a task needs: a worker that has quire and no pyarrow would fail later, and say less.
_IMPORT = "import quire.pipeline.source.readers"


def register(spark: SparkSession) -> None:
    """Make `format("quire")` known to a session. (Spark finds `pyspark_quire` in its own interpreter without it.)

    The workers' Python is tried here, on the driver's machine; that of executors elsewhere shows when they run. A
    session of Spark Connect does not tell what its workers run, so there it shows then, too.

    Raises:
        WorkersLackQuire: the session's workers run a Python that cannot import quire.
    """
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        check_workers(context.pythonExec)

    from .source import QuireSource  # noqa: PLC0415  # The command line imports this where there is no PySpark.

    spark.dataSource.register(QuireSource)


def check_workers(python: str) -> None:
    """Have an interpreter import what a task of Spark needs.

    Raises:
        WorkersLackQuire: it cannot, and why.
    """
    # Like Spark's own workers: in this environment and directory, and the module path begins with the latter.
    command = [python, "-c", _IMPORT]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkersLackQuire(python, str(error)) from error
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        raise WorkersLackQuire(python, said[-1] if said else f"it ended with {ran.returncode}")
