"""Spark on two threads of this machine, with little memory, for tests and for the drivers that tests kill."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline import daemon

TOP = Path(__file__).parents[2]
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute: with the quick compiler alone, start and warm-up take a third less CPU time."""


def local_session(daemon_module: str = daemon.__name__, threads: str = "local[2]") -> SparkSession:
    """The session of this process; workers are forked from this daemon of Spark's. `threads`: and tries of a task."""
    # Before the JVM starts: its workers run in this environment, where quire is. Of the tests they import one module.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_START  # For the JVM that assembles the driver's command line.
    session = (
        SparkSession.Builder()
        .appName("quire tests")
        .master(threads)
        .config("spark.python.daemon.module", daemon_module)
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
