"""A streaming query whose driver is killed, SIGKILL to all of its processes, and started again on its checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quire.log import LogOptions
from tests.pipeline import driver
from tests.pipeline.logs import append_and_flush, expected_rows, writing
from tests.pipeline.sessions import TOP

pytestmark = pytest.mark.soak

# By hand: PIPELINE_KILLS=20 pytest tests/pipeline/test_killing.py, which `make soak` does.
KILLS = int(os.environ.get("PIPELINE_KILLS", "1"))
SEED = int(os.environ.get("PIPELINE_SEED", "1"))
BATCHES_A_KILL = 4
RECORDS_A_BATCH = 500
DEADLINE_S = 240.0
LOOK_S = 0.005


class Query:
    """A log, and what a query makes of it: rows in files, and a checkpoint."""

    def __init__(self, top: Path) -> None:
        self.log, self.folder = top / "log", top / "out"
        self.chance = random.Random(SEED)
        with writing(self.log, LogOptions(segment_bytes=1 << 18)) as log:
            for start in range(0, (KILLS + 1) * BATCHES_A_KILL * RECORDS_A_BATCH, 100):
                append_and_flush(log, [["set", number] for number in range(start, start + 100)])

    def delivered(self, spark: SparkSession) -> list[tuple[int, bytes]]:
        """What stands in the sink, as its own list of committed files says."""
        rows = spark.read.parquet(str(self.folder / "rows")).collect()
        return sorted((row["index"], bytes(row["value"])) for row in rows)

    @property
    def expected(self) -> list[tuple[int, bytes]]:
        return [(row["index"], row["value"]) for row in expected_rows(self.log)]


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Query:
    """One query for all of this module: each kill finds it as the one before left it."""
    return Query(tmp_path_factory.mktemp("query"))


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_query_killed_at_a_random_point_has_delivered_no_record_twice_or_out_of_turn(
    spark: SparkSession, query: Query, kill: int
) -> None:
    _killed(query.log, query.folder, query.chance)

    if _batches(query.folder, "commits"):  # Before, there may be no file to take a schema from.
        rows = query.delivered(spark)
        assert rows == query.expected[: len(rows)], f"PIPELINE_SEED={SEED}, kill {kill}"


def test_a_query_killed_again_and_again_delivers_every_record_once(spark: SparkSession, query: Query) -> None:
    driver.stream(spark, str(query.log), str(query.folder), str(RECORDS_A_BATCH))

    assert query.delivered(spark) == query.expected, f"PIPELINE_SEED={SEED}"


def _killed(log: Path, folder: Path, chance: random.Random) -> None:
    """Run a driver until it has begun, written or committed some batch further on, and a moment more; then kill it."""
    done = _batches(folder, "commits")
    target = done + chance.randrange(1, BATCHES_A_KILL)
    stage, moment = chance.choice(["offsets", "commits"]), chance.random() * 0.2
    command = [sys.executable, "-m", driver.__name__, str(log), str(folder), str(RECORDS_A_BATCH)]
    process = subprocess.Popen(
        command, cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_until(lambda: _batches(folder, stage) >= target or process.poll() is not None)
        deadline = time.monotonic() + moment
        _wait_until(lambda: time.monotonic() > deadline)
        assert process.poll() is None, f"the driver ended by itself, PIPELINE_SEED={SEED}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _batches(folder: Path, stage: str) -> int:
    """How many batches have come to a stage: their offsets are written first, a commit last."""
    try:
        return sum(name.isdigit() for name in os.listdir(folder / "checkpoint" / stage))
    except FileNotFoundError:
        return 0


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        signal.sigtimedwait((), LOOK_S)
