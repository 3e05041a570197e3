"""One Spark for all tests of the pipeline: a bare start takes longer than most of them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import daemon

TOP = Path(__file__).parents[2]

# Before the JVM starts: its workers run in this environment, where quire is. Of the tests they import one module.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join([str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads of this machine, with little memory."""
    session = (
        SparkSession.Builder()
        .appName("quire tests")
        .master("local[2]")
        .config("spark.python.daemon.module", daemon.__name__)
        .config("spark.driver.memory", "768m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
