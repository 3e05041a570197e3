"""Spark writes a growing log to real nodes, and checkpoint, spool or session goes back: told, and no row is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quire.log import FileDirectory
from quire.pipeline.sink.state import SinkState
from tests.pipeline.logs import append_and_flush, writing
from tests.pipeline.test_sink import sent
from tests.processes.cluster import Cluster, ending_clusters

ROWS_A_BATCH = 6
TEXT = "command"
RANDOM = "concat('[\"add\", ', cast(rand() * 1000000000 as long), ']') as command"


class Query:
    """A query whose spool is not in its checkpoint. Each run is one batch, of all rows that are new."""

    def __init__(self, cluster: Cluster, spark: SparkSession, top: Path) -> None:
        self.cluster, self.spark, self.top = cluster, spark, top
        self.rows: list[Any] = []
        self.name = "first"
        self.names = [self.name]
        self.first_row = 0

    @property
    def checkpoint(self) -> Path:
        return self.top / self.name / "checkpoint"

    @property
    def spool(self) -> Path:
        return self.top / self.name / "spool"

    def grow(self) -> None:
        new = [["add", len(self.rows) + number] for number in range(ROWS_A_BATCH)]
        with writing(self.top / "log") as log:
            append_and_flush(log, new)
        self.rows += new

    def run(self, column: str = TEXT, **options: str) -> None:
        """A batch, in two partitions and in any order."""
        given = {"bootstrap": self.cluster.servers, "session": self.name, "spoolLocation": str(self.spool), **options}
        source = self.spark.readStream.format("quire").option("startingOffsets", self.first_row)
        rows = source.load(str(self.top / "log")).selectExpr(column).repartition(2)
        writer = rows.writeStream.format("quire").options(**given).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def fails(self, *says: str, column: str = TEXT) -> None:
        """Nothing of a batch is sent, and an error says so."""
        before = self.sent()
        with pytest.raises(PySparkException) as error:
            self.run(column)
        for text in says:
            assert text in str(error.value)
        assert self.sent() == before

    def copy(self, what: Path, number: int) -> Path:
        """A copy of the checkpoint or of the spool."""
        made = self.top / f"{what.name}-{self.name}-{number}"
        shutil.copytree(what, made)
        return made

    def restore(self, what: Path, made: Path) -> None:
        shutil.rmtree(what, ignore_errors=True)
        shutil.copytree(made, what)

    def last_committed(self) -> int:
        return max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))

    def lose_commits(self, batch: int) -> None:
        """Remove the record of a commit, and its checksum."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def start_over(self, name: str) -> None:
        """A new checkpoint, session and spool, from the row after the last that was executed."""
        self.first_row = len(self.sent())
        self.name = name
        self.names.append(name)

    def sent(self) -> list[Any]:
        return [command for name in self.names for command in sent(self.cluster, name)]

    def ends_with_each_row_once(self) -> None:
        self.grow()
        self.run()
        assert sorted(self.sent()) == self.rows


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        yield made.formed()


@pytest.fixture(scope="module")
def query(cluster: Cluster, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """One query for all tests, with a batch: each test brings it to its end, and the next goes on from there."""
    made = Query(cluster, spark, tmp_path_factory.mktemp("query"))
    made.ends_with_each_row_once()
    return made


def test_a_checkpoint_restored_from_a_copy_is_told_and_every_row_is_there_once_with_the_right_one(query: Query) -> None:
    copies = [query.copy(query.checkpoint, 0)]
    for number in (1, 2):
        query.grow()
        query.run()
        copies.append(query.copy(query.checkpoint, number))
    query.grow()
    last = query.last_committed()

    query.restore(query.checkpoint, copies[0])
    query.fails(f"batch {last - 1} comes, but batch {last} is already written", "restore the checkpoint")
    query.restore(query.checkpoint, copies[1])
    query.fails(f"batch {last} comes again with other rows: it was written with 6 commands, and the 12 given")
    query.restore(query.checkpoint, copies[2])
    query.ends_with_each_row_once()


@pytest.mark.full
def test_a_batch_that_spark_repeats_since_its_commit_record_is_gone_is_skipped(query: Query) -> None:
    query.lose_commits(query.last_committed())

    query.ends_with_each_row_once()


@pytest.mark.full
def test_a_trimmed_checkpoint_is_told_and_every_row_is_there_once_after_a_new_start(query: Query) -> None:
    query.ends_with_each_row_once()
    for name in ("offsets", "commits"):
        shutil.rmtree(query.checkpoint / name)
    query.grow()
    query.fails("batch 0 comes, but batch", "start over with a new checkpoint, session and spoolLocation")
    query.start_over("after a trimmed checkpoint")

    query.ends_with_each_row_once()


@pytest.mark.full
def test_a_spool_that_goes_back_alone_is_told_and_every_row_is_there_once_with_the_right_one(query: Query) -> None:
    older = query.copy(query.spool, 0)
    query.grow()
    query.run()
    newer = query.copy(query.spool, 1)
    query.grow()
    query.restore(query.spool, older)
    query.fails(f"session {query.name} is at sequence", "and the checkpoint at", "nothing is sent")
    shutil.rmtree(query.spool)
    query.fails(f"session {query.name} is at sequence", "nothing was sent from this spool", "restore that spool")
    query.restore(query.spool, newer)

    query.ends_with_each_row_once()


@pytest.mark.full
def test_a_session_that_is_closed_is_told_and_every_row_is_there_once_after_a_new_start(query: Query) -> None:
    body = json.dumps({"sessions": [SinkState(FileDirectory(query.spool)).holder()]}).encode()
    closed = query.cluster.elected().call("POST", "/sessions/close", body, {"Content-Type": "application/json"})
    assert closed.status == 200, closed
    query.grow()
    query.fails("is at sequence 0", "the session was closed")
    query.start_over("after a closed session")

    query.ends_with_each_row_once()


@pytest.mark.full
def test_a_query_that_is_not_deterministic_goes_on_with_what_it_sent_if_that_is_said(query: Query) -> None:
    query.start_over("random")
    query.grow()
    query.run(RANDOM)
    query.lose_commits(0)
    query.fails("batch 0 comes again with other rows", "set option failOnChangedRows=false", column=RANDOM)
    before = query.sent()
    query.run(RANDOM, failOnChangedRows="false")

    assert query.sent() == before
    assert query.last_committed() == 0
