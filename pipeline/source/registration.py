"""`register`: make the source known to a Spark session that does not find it by itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from ..errors import WorkersLackQuire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPORT_TIMEOUT_S = 120.0
"""Importing Spark and Arrow from a cold disk on a busy machine takes seconds."""

# Everything that a task needs: a worker with quire but without pyarrow would fail later, with a worse message.
_IMPORT = "import quire.pipeline.source.readers"


def register(spark: SparkSession) -> None:
    """Make `format("quire")` known to a session. Usually Spark finds `pyspark_quire` without this.

    The workers' Python is checked here, on the driver's machine. Executors on other machines, and the workers of a
    Spark Connect session, which does not reveal their Python, are not checked before they run.

    Raises:
        WorkersLackQuire: the Python of the session's workers cannot import quire.
    """
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        check_workers(context.pythonExec)

    from .source import QuireSource  # noqa: PLC0415  # The command line imports this where there is no PySpark.

    spark.dataSource.register(QuireSource)


def check_workers(python: str) -> None:
    """Check that an interpreter can import what a task of Spark needs.

    Raises:
        WorkersLackQuire: it cannot; the error says why.
    """
    # Run it like Spark's workers: in this environment and directory, with the directory first on the module path.
    command = [python, "-c", _IMPORT]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkersLackQuire(python, str(error)) from error
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        raise WorkersLackQuire(python, said[-1] if said else f"it exited with {ran.returncode}")
