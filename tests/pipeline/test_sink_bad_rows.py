"""Rows that are not commands and are left out: counted, and kept as a table, each once, wherever a commit stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq
import pytest

from quire.cluster.client import SessionFenced
from quire.log import Directory, pack
from quire.log.simulated.faulty import Disk, Keep, PowerLoss
from quire.pipeline.errors import OptionRefused
from quire.pipeline.sink.bad_rows import BAD, BadRowsFolder, BadRowsWriter
from quire.pipeline.sink.commit import Target, TaskResult, commit
from quire.pipeline.sink.errors import RowRefused, RowsChanged, RowsRefused, SpoolDamaged
from quire.pipeline.sink.options import SinkOptions
from quire.pipeline.sink.spool import SpoolWriter
from quire.pipeline.sink.state import SPOOL, Done, Plan, SinkState
from tests.pipeline.fake_cluster import Cut, FakeCluster

GIVEN = {"bootstrap": "127.0.0.1:7001", "checkpointlocation": "/checkpoint"}
BATCHES: list[list[list[Any]]] = [
    [[["add", 1], "one"], [["mul", 2]], ["two", "three"]],
    [["four", "five"], ["six"]],
]
"""By batch and partition: a list is a command, a text a row that is none."""
COMMANDS = [row for batch in BATCHES for part in batch for row in part if not isinstance(row, str)]


class Spark:
    """A sink with a table for bad rows, both on one disk. A batch that runs again is partitioned otherwise."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.cluster, self.committed, self.names = disk, FakeCluster(), -1, 0
        self.begin_again()

    def begin_again(self) -> None:
        self.top = self.disk.directory()
        self.state, self.table = SinkState(self.top.child("spool")), self.top.child("bad")
        self.top.sync()

    def tasks(self, batch: int, rows: Sequence[Sequence[Any]] | None = None) -> list[TaskResult]:
        results = []
        parts = BATCHES[batch] if rows is None else rows
        if self.names % 2:  # All in one partition.
            parts = [[row for part in parts for row in part]]
        for partition, values in enumerate(parts):
            self.names += 1
            spool = SpoolWriter(self.state.directory, f"{SPOOL}{self.names:08d}", partition)
            bad = BadRowsWriter(self.table, f"{BAD}{self.names:08d}", partition)
            refused = []
            for row, value in enumerate(values):
                if isinstance(value, str):
                    refused.append(RowRefused(partition, row, "NO_COMMAND", "it is none"))
                    bad.add(refused[-1], value)
                else:
                    spool.add(pack(value))
            results.append(
                TaskResult(partition, spool.finished(), 0, 0, len(refused), tuple(refused[:10]), bad.finished())
            )
        return results

    def target(self, session: str = "sink") -> Target:
        return Target("c" * 32, session, None, True, BadRowsFolder(self.table))

    def write(
        self, batch: int, results: list[TaskResult] | None = None, target: Target | None = None, *, changed: bool = True
    ) -> Done:
        """`changed`: whether other rows than those of before are an error."""
        parts = self.tasks(batch) if results is None else results
        into = target or self.target()
        given = {"fails": True, "fails_on_change": changed}
        done = asyncio.run(commit(self.state, into, self.cluster.connect, parts, batch, **given))
        self.committed = batch
        return done

    def write_all(self, again: int = 0) -> None:
        for batch in range(max(0, self.committed + 1 - again), len(BATCHES)):
            self.write(batch)

    def shown(self) -> list[tuple[int, str]]:
        """What a reader of Parquet sees: the values by batch."""
        found = []
        for folder in self.table.list():
            if not folder.startswith(("_", ".")):
                files = self.table.child(folder)
                for name in files.list():
                    if not name.startswith(("_", ".")):
                        storage = files.open(name)
                        values = pq.read_table(BytesIO(storage.read_at(0, storage.size))).column("value").to_pylist()
                        found += [(int(folder.removeprefix("batch=")), value.decode()) for value in values]
        return sorted(found)


BAD_ROWS = sorted(
    (number, row) for number, batch in enumerate(BATCHES) for part in batch for row in part if isinstance(row, str)
)


def test_bad_rows_are_left_out_counted_and_kept_with_their_place() -> None:
    spark = Spark(Disk())
    done = spark.write(0)

    assert (done.commands, done.bad_rows) == (2, 3)
    assert done.first_bad == tuple((*place, "NO_COMMAND", "it is none") for place in ((0, 1), (2, 0), (2, 1)))
    assert spark.state.done() == done
    files = spark.table.child("batch=0")
    assert sorted(files.list()) == ["part-00000.parquet", "part-00002.parquet"]
    storage = files.open("part-00002.parquet")
    assert pq.read_table(BytesIO(storage.read_at(0, storage.size))).to_pylist() == [
        {"partition": 2, "row": row, "code": "NO_COMMAND", "text": "it is none", "value": value}
        for row, value in enumerate([b"two", b"three"])
    ]
    assert spark.table.child("_quire").list() == ["identity"]


def test_a_batch_of_bad_rows_alone_is_a_batch_of_no_commands() -> None:
    spark = Spark(Disk())
    spark.write_all()

    assert [command for _, command in spark.cluster.executed] == COMMANDS
    assert spark.shown() == BAD_ROWS


@pytest.mark.parametrize("keep", list(Keep))
def test_a_commit_stopped_before_any_write_leaves_no_doubled_and_no_lost_bad_row(keep: Keep) -> None:
    step, stops = 1, True
    while stops:
        disk = Disk(step)
        disk.on_power_loss = keep
        spark = Spark(disk)
        disk.stop_before = disk.operations + step
        stops = False
        try:
            spark.write_all()
        except PowerLoss:
            stops = True
        disk.lose_power()
        disk.stop_before = None
        spark.begin_again()
        seen = spark.shown()
        assert all(seen.count(row) == 1 for row in seen)
        done = spark.state.done()
        is_latest = spark.state.plan() is None and done is not None and done.batch == spark.committed
        spark.write_all(again=1 if is_latest else 0)
        assert spark.shown() == BAD_ROWS, step
        assert [command for _, command in spark.cluster.executed] == COMMANDS
        step += 1
    assert step > 60


@pytest.mark.parametrize("side", ["cut_before", "cut_after"])
def test_a_batch_that_runs_again_keeps_the_bad_rows_that_were_planned(side: str) -> None:
    spark = Spark(Disk())
    setattr(spark.cluster, side, 1)
    with pytest.raises(Cut):
        spark.write(0)
    assert spark.shown() == []
    setattr(spark.cluster, side, None)
    spark.names += spark.names % 2
    others: list[list[list[Any]]] = [[["other", ["mul", 1000]]], [[["add", 1], "one"], [["mul", 2]], ["two"]]]
    for other in others:
        with pytest.raises(RowsChanged):
            spark.write(0, spark.tasks(0, other))
        spark.names += spark.names % 2
    spark.write(0, spark.tasks(0, [["other", ["mul", 1000]]]), changed=False)
    spark.write_all()

    assert spark.shown() == BAD_ROWS
    assert [command for _, command in spark.cluster.executed] == COMMANDS


def test_bad_rows_fail_a_batch_unless_they_may_be_left_out() -> None:
    spark = Spark(Disk())

    with pytest.raises(
        RowsRefused, match=r"3 rows are not commands .*; to leave them out, set badRows=drop or badRows=t"
    ):
        spark.write(0, target=Target("c" * 32, "sink"))
    assert spark.cluster.executed == []
    dropped = [replace(result, bad_file=None) for result in spark.tasks(0)]
    done = spark.write(0, dropped, Target("c" * 32, "sink", None, True))
    assert (done.commands, done.bad_rows, spark.shown()) == (2, 3, [])


def test_a_damaged_file_of_bad_rows_sends_nothing() -> None:
    spark = Spark(Disk())
    results = spark.tasks(0)
    [name, *_] = [result.bad_file.name for result in results if result.bad_file is not None]
    spark.table.child("_quire").open(name).write_at(9, b"\xff")

    with pytest.raises(SpoolDamaged, match=f"{name}: its crc32c"):
        spark.write(0, results)
    assert spark.cluster.executed == []


def test_a_table_of_bad_rows_belongs_to_one_query() -> None:
    spark = Spark(Disk())
    spark.write(0)
    other = SinkState(spark.top.child("other spool"))
    results = [TaskResult(0, None)]

    with pytest.raises(OptionRefused, match=r"^option badRowsLocation: "):
        asyncio.run(commit(other, spark.target("another"), spark.cluster.connect, results, 0, fails=True))


def test_a_batch_planned_with_a_table_is_not_ended_without_it() -> None:
    spark = Spark(Disk())
    spark.cluster.cut_after = 1
    with pytest.raises(Cut):
        spark.write(0)

    with pytest.raises(OptionRefused, match="badRowsLocation: batch 0 is planned with bad rows"):
        spark.write(0, target=Target("c" * 32, "sink", None, True))
    spark.write_all()
    assert spark.shown() == BAD_ROWS


class LateState(SinkState):
    """Of a driver that stands still before it writes its plan, while others do what they do."""

    def __init__(self, directory: Directory, meanwhile: Callable[[], object]) -> None:
        super().__init__(directory)
        self._meanwhile = meanwhile

    def write_plan(self, plan: Plan) -> None:
        with ThreadPoolExecutor(1) as others:  # They have an event loop of their own.
            others.submit(self._meanwhile).result()
        super().write_plan(plan)


@pytest.mark.parametrize("others", [1, 2])
def test_a_late_driver_without_a_command_leaves_the_bad_rows_of_the_next_driver(others: int) -> None:
    spark = Spark(Disk())
    late = spark.tasks(0, [["b1", "b2", "b3"]])
    batches: list[list[list[Any]]] = [[["b1"], ["b2"], ["b3"]], [[["add", 1], "x"]]]
    shown = [(0, "b1"), (0, "b2"), (0, "b3"), (1, "x")]

    def write_others() -> None:
        for batch, rows in enumerate(batches[:others]):
            spark.names += spark.names % 2
            spark.write(batch, spark.tasks(batch, rows))

    state = LateState(spark.state.directory, write_others)
    with pytest.raises(SessionFenced):
        asyncio.run(commit(state, spark.target(), spark.cluster.connect, late, 0, fails=True))
    done = spark.state.done()
    assert done is not None
    assert done.batch == others - 1
    assert spark.shown() == shown[: 2 + others]
    spark.write(others, spark.tasks(0, [[["add", 2]]]))
    assert spark.shown() == shown[: 2 + others]


def test_a_batch_whose_bad_rows_are_removed_while_it_opens_the_session_is_not_planned() -> None:
    spark = Spark(Disk())
    client, before, at_once = spark.cluster.connect(), spark.tasks(0), spark.tasks(1)

    async def write_before() -> None:
        await commit(spark.state, spark.target(), spark.cluster.connect, before, 0, fails=True)

    client.opening = write_before
    with pytest.raises(SpoolDamaged, match="a file of the batch's bad rows is missing"):
        asyncio.run(commit(spark.state, spark.target(), lambda: client, at_once, 1, fails=True))
    spark.committed = 0
    spark.write_all()

    assert spark.shown() == BAD_ROWS


def test_bad_rows_that_cannot_be_published_leave_those_that_are() -> None:
    spark = Spark(Disk())
    spark.write(0)
    before = spark.shown()
    spark.names += spark.names % 2
    files = [result.bad_file for result in spark.tasks(0, [["other"], ["others"]]) if result.bad_file is not None]
    spark.table.child("_quire").remove(files[-1].name)

    with pytest.raises(SpoolDamaged, match=f"{files[-1].name}: .* is missing"):
        BadRowsFolder(spark.table).publish(0, files)
    assert spark.shown() == before


def test_a_planned_batch_whose_table_is_elsewhere_names_the_option_and_is_ended_with_the_former_folder() -> None:
    spark = Spark(Disk())
    spark.cluster.cut_after = 1
    with pytest.raises(Cut):
        spark.write(0)
    other = replace(spark.target(), bad_rows=BadRowsFolder(spark.top.child("elsewhere")))

    with pytest.raises(
        SpoolDamaged, match="bad rows is missing; if badRowsLocation has changed, give the former folder"
    ):
        spark.write(0, target=other)
    spark.write_all()
    assert spark.shown() == BAD_ROWS


def test_bad_rows_that_were_planned_to_be_dropped_are_a_warning_once_there_is_a_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spark = Spark(Disk())
    spark.cluster.cut_after = 1
    with pytest.raises(Cut):
        spark.write(
            0, [replace(result, bad_file=None) for result in spark.tasks(0)], Target("c" * 32, "sink", None, True)
        )
    with caplog.at_level(logging.WARNING):
        spark.write_all()

    told = "batch 0 was planned with badRows=drop: its 3 rows that are not commands are not in the table"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert spark.shown() == [row for row in BAD_ROWS if row[0]]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"badRows": "skip"}, "badRows"),
        ({"badRows": "table"}, "badRowsLocation"),
        ({"badRows": "drop", "badRowsLocation": "/bad"}, "badRowsLocation"),
        ({"badRowsLocation": "/bad"}, "badRowsLocation"),
        ({"badRows": "table", "badRowsLocation": "s3://bad"}, "badRowsLocation"),
    ],
)
def test_options_of_bad_rows_that_cannot_be_are_refused(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionRefused, match=f"^option {option}: "):
        SinkOptions.parse({**GIVEN, **given}, streaming=True)
