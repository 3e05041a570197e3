"""The sink's commit where one of checkpoint, spool, session and log went back: an error, or each row once, in order."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.pipeline.sink import spool
from quire.pipeline.sink.commit import TaskResult
from quire.pipeline.sink.errors import (
    BatchBehind,
    BatchUnfinished,
    RowRefused,
    RowsChanged,
    RowsRefused,
    SessionMoved,
    SpoolDamaged,
)
from quire.pipeline.sink.state import VERSION, SinkState
from tests.pipeline.fake_cluster import Cut, FakeCluster
from tests.pipeline.test_sink_commit import ALL, BATCHES, SinkDisk, Spark

OTHER = [[["mul", 1000]]]
DONE_0, PLAN_0, PLAN_1 = f"done-{0:020d}", f"plan-{0:020d}-{1:020d}", f"plan-{1:020d}-{5:020d}"
OLDER = {
    "identity": b'{"version":1,"cluster_id":"cccccccccccccccccccccccccccccccc","session":"sink",'
    b'"query":null}\n867ba30a',
    DONE_0: b'{"batch":0,"next_sequence":4,"commands":3,"refused":0,"unanswered":0,"first_refused":[]}\ne7c8d734',
    PLAN_0: b'{"batch":0,"session":1,"first_sequence":1,"spools":[["spool-00000001",0,2,32,2812301561],'
    b'["spool-00000002",1,1,26,1959479051]]}\n115f262d',
    PLAN_1: b'{"batch":1,"session":5,"first_sequence":4,"spools":[["spool-00000004",0,3,50,896572758],'
    b'["spool-00000005",1,2,32,2515749661]]}\n6f949c3b',
}
"""What the program before digests wrote of the first two of the batches, the second of them unfinished."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two commands: a partition has several, and a batch several messages."""
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 2)


def planned(spark: Spark, batch: int, rows: Sequence[Sequence[Any]] | None = None) -> None:
    """A batch is planned and partly sent when its driver dies."""
    spark.cluster.cut_after = spark.cluster.messages + 1
    with pytest.raises(Cut):
        spark.write(batch, rows)


def shuffled(batch: int) -> list[list[Any]]:
    """The rows of a batch in another order, and in other partitions."""
    rows = [command for part in BATCHES[batch] for command in part]
    return [[], rows[::-2], rows[-2::-2]]


def executed(spark: Spark) -> list[Any]:
    return [command for _, command in spark.cluster.executed]


def test_a_batch_below_the_last_one_is_an_error_whatever_its_rows_are() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write_all()
    index = spark.cluster.applier.applied_index
    for batch in (0, 1):
        for rows in (None, OTHER, []):
            for fails in (True, False):
                with pytest.raises(BatchBehind, match=f"batch {batch} comes, but batch 2 is already written.* restore"):
                    spark.write(batch, rows, fails_on_change=fails)

    assert spark.cluster.applier.applied_index == index
    assert executed(spark) == ALL


def test_a_batch_below_the_one_that_is_planned_is_an_error() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    planned(spark, 1)
    index = spark.cluster.applier.applied_index
    for fails in (True, False):
        with pytest.raises(BatchBehind, match="batch 0 comes, but batch 1 is already planned"):
            spark.write(0, OTHER, fails_on_change=fails)
    assert spark.cluster.applier.applied_index == index  # Who sends it is not fenced for that.
    spark.write_all()

    assert executed(spark) == ALL


@pytest.mark.parametrize("rows", [OTHER, [], [*BATCHES[0], [["add", 1]]], [[["add", 1], ["mul", 3]], [["sub", 3]]]])
def test_a_batch_that_is_written_with_other_rows_is_an_error_or_keeps_those_of_before(
    rows: list[list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    index, count = spark.cluster.applier.applied_index, sum(map(len, rows))
    for _ in range(2):
        with pytest.raises(RowsChanged, match=f"was written with 3 commands, and the {count} given .*OnChangedRows=f"):
            spark.write(0, rows)
    with caplog.at_level(logging.WARNING):
        assert spark.write(0, rows, fails_on_change=False).commands == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"batch 0 came again with other rows: its 3 commands of before are kept, the {count} given now are dropped"
    ]
    assert spark.cluster.applier.applied_index == index
    spark.write_all()

    assert executed(spark) == ALL


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_is_planned_with_other_rows_is_an_error_or_sends_those_of_before(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    planned(spark, 0)
    index = spark.cluster.applier.applied_index
    with caplog.at_level(logging.WARNING):
        if fails:
            with pytest.raises(RowsChanged, match="was planned with 3 commands, and the 1 given"):
                spark.write(0, OTHER)
            assert spark.cluster.applier.applied_index == index
        else:
            spark.write(0, OTHER, fails_on_change=False)
    assert len(caplog.records) == (0 if fails else 1)
    spark.write_all()

    assert executed(spark) == ALL


@pytest.mark.parametrize("finished", [True, False])
def test_a_batch_whose_rows_come_in_another_order_and_other_partitions_is_the_same(finished: bool) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    if finished:
        spark.write(1)
    else:
        planned(spark, 1)
    spark.write(1, shuffled(1))
    spark.write_all()

    assert executed(spark) == ALL


@pytest.mark.parametrize("others", [[0], [0, 1]])
@pytest.mark.parametrize("moment", ["opening", "opened"])
def test_rows_that_another_driver_did_not_write_are_an_error_of_the_late_one(moment: str, others: list[int]) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    client, late = spark.cluster.connect(), spark.tasks(0, OTHER)

    async def write_others() -> None:
        setattr(client, moment, _nothing)
        for batch in others:
            await spark.commit(batch, spark.tasks(batch))

    setattr(client, moment, write_others)
    with pytest.raises(RowsChanged if others == [0] else BatchBehind):
        asyncio.run(spark.commit(0, late, client))
    spark.committed = others[-1]
    spark.write_all()

    assert executed(spark) == ALL


def test_rows_that_another_driver_did_not_plan_are_an_error_of_the_late_one() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    client, late = spark.cluster.connect(), spark.tasks(0, OTHER)

    async def plan() -> None:
        spark.cluster.cut_after = spark.cluster.messages + 1
        with pytest.raises(Cut):
            await spark.commit(0, spark.tasks(0))

    client.opening = plan
    with pytest.raises(RowsChanged, match="was planned with 3"):
        asyncio.run(spark.commit(0, late, client))
    spark.write_all()

    assert executed(spark) == ALL


async def _nothing() -> None:
    pass


def test_a_batch_whose_spools_are_removed_while_it_opens_the_session_is_not_planned() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    client, before, at_once = spark.cluster.connect(), spark.tasks(0), spark.tasks(1)

    async def write_before() -> None:
        await spark.commit(0, before)

    client.opening = write_before
    with pytest.raises(SpoolDamaged, match="a spool of the batch is missing"):
        asyncio.run(spark.commit(1, at_once, client))
    spark.committed = 0
    spark.write_all()

    assert executed(spark) == ALL


def test_empty_batches_in_between_do_not_hide_that_the_checkpoint_went_back() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    for batch, rows in enumerate([BATCHES[0], [], []]):
        spark.write(batch, rows)
    for batch, error in ((1, BatchBehind), (2, RowsChanged)):
        with pytest.raises(error):
            spark.write(batch, OTHER)
    spark.write(2, [[], []])
    spark.write(3, BATCHES[1])
    spark.write(4, BATCHES[2])

    assert executed(spark) == ALL


@pytest.mark.parametrize("finished", [True, False])
def test_rows_that_are_no_commands_are_an_error_of_a_batch_that_had_none(finished: bool) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    if finished:
        spark.write(0)
    else:
        planned(spark, 0)
    bad = TaskResult(3, None, refused=1, first_refused=(RowRefused(3, 7, "NO_COMMAND", "it is null"),))
    with pytest.raises(RowsRefused, match="partition 3, row 7"):
        asyncio.run(spark.commit(0, [*spark.tasks(0), bad]))
    spark.write_all()

    assert executed(spark) == ALL


def older(spark: Spark) -> None:
    """Bring the documents into the form that they had before digests."""
    for name in set(spark.disk.names()) & set(OLDER):
        spark.disk.replace(name, OLDER[name])


def test_a_batch_that_a_program_before_digests_wrote_is_known_by_its_count() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    older(spark)
    with pytest.raises(RowsChanged, match="was written with 3 commands, and the 1 given"):
        spark.write(0, OTHER)
    assert spark.write(0, OTHER * 3).digest is None
    spark.write_all()
    for batch in (0, 1):
        with pytest.raises(BatchBehind):
            spark.write(batch)

    assert executed(spark) == ALL
    assert f'"version":{VERSION}'.encode() in spark.disk.content("identity")


def test_a_plan_that_a_program_before_digests_made_is_sent_for_as_many_rows() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    planned(spark, 1)
    older(spark)
    with pytest.raises(RowsChanged, match="was planned with 5 commands, and the 1 given"):
        spark.write(1, OTHER)
    spark.write(1, OTHER * 5)
    spark.write_all()

    assert executed(spark) == ALL
    assert f'"version":{VERSION}'.encode() in spark.disk.content("identity")


Checkpoint = tuple[list[int], int]


class Query:
    """A query whose rows grow, all of them different. Its checkpoint: where each batch ends, and the last committed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.spark = Spark(SinkDisk(seed), FakeCluster(), seed)
        self.rows: list[Any] = []
        self.ends: list[int] = []
        self.committed = -1

    def run(self, *, dies: bool = False) -> None:
        """A batch: the one that is not committed, or else one of all new rows."""
        self.rows += [["add", len(self.rows) + number] for number in range(self.chance.choice([0, 1, 3, 6]))]
        batch = self.committed + 1
        if batch == len(self.ends):
            self.ends.append(len(self.rows))
        rows = self.rows[self.ends[batch - 1] if batch else 0 : self.ends[batch]]
        cut = self.chance.randrange(len(rows) + 1)
        if dies:
            self.spark.cluster.cut_after = self.spark.cluster.messages + 1
        try:
            self.spark.write(batch, [rows[:cut], rows[cut:]])
        except Cut:
            return
        finally:
            self.spark.cluster.cut_after = None
        self.committed = batch
        self.check(rows)

    def check(self, rows: list[Any]) -> None:
        """These are executed, and no row is twice."""
        found = executed(self.spark)
        assert all(command in found for command in rows), (rows, found)
        assert len(set(map(tuple, found))) == len(found), found

    def checkpoint(self) -> Checkpoint:
        return self.ends[:], self.committed

    def spool(self) -> dict[str, bytes]:
        return {name: self.spark.disk.content(name) for name in self.spark.disk.names()}

    def cluster(self) -> FakeCluster:
        return copy.deepcopy(self.spark.cluster)

    def restore(self, what: str, then: Any) -> None:
        """Bring back a copy of the checkpoint, the spool, or the cluster with its log."""
        if what == "checkpoint":
            ends, self.committed = then
            self.ends = ends[:]
        elif what == "cluster":
            self.spark.cluster = copy.deepcopy(then)
        else:
            for name in self.spark.disk.names():
                self.spark.disk.delete(name)
            for name, content in then.items():
                self.spark.disk.directory_of_life().create(name)
                self.spark.disk.replace(name, content)


TOLD = (BatchBehind, RowsChanged, BatchUnfinished, SessionMoved, SpoolDamaged)


def lost_a_commit(query: Query) -> Checkpoint:
    return query.ends[:], max(-1, query.committed - 1)


def trimmed(query: Query) -> Checkpoint:
    return [], -1


def cut_short(query: Query) -> Checkpoint:
    kept = query.chance.randrange(len(query.ends))
    return query.ends[:kept], kept - 1


def without_a_file(query: Query) -> dict[str, bytes]:
    """The spool without one of its files. The identity only comes again, and the holder counts in the first batch."""
    kept = query.spool()
    kept.pop(query.chance.choice([name for name in kept if name.startswith(("done", "plan", "spool"))] or ["holder"]))
    return kept


WAYS: dict[str, tuple[str, Callable[[Query], Any] | None]] = {
    "an older checkpoint": ("checkpoint", None),
    "a checkpoint without its last commit": ("checkpoint", lost_a_commit),
    "an empty checkpoint": ("checkpoint", trimmed),
    "a checkpoint without its last batches": ("checkpoint", cut_short),
    "an older spool": ("spool", None),
    "no spool": ("spool", lambda _: {}),
    "a spool without a file": ("spool", without_a_file),
    "an older log": ("cluster", None),
}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("way", WAYS)
def test_whatever_goes_back_alone_each_row_is_executed_once_or_an_error_tells(way: str, seed: int) -> None:
    what, change = WAYS[way]
    query = Query(seed)
    copies = []
    for _ in range(query.chance.randrange(1, 6)):
        query.run(dies=query.chance.random() < 0.3)
        copies.append(getattr(query, what)())
    query.restore(what, change(query) if change is not None else query.chance.choice(copies))
    try:
        for _ in range(3):
            query.run(dies=query.chance.random() < 0.2)
    except TOLD:
        query.restore(what, copies[-1])  # As the error says. What came before it went well and is there.
    for _ in range(3):
        query.run()

    assert executed(query.spark) == query.rows[: query.ends[-1]]


@pytest.mark.parametrize("seed", range(25))
def test_a_session_that_was_closed_takes_no_row_twice_and_loses_none_in_silence(seed: int) -> None:
    query = Query(seed)
    for _ in range(query.chance.randrange(1, 6)):
        query.run(dies=query.chance.random() < 0.3)
    holder = SinkState(query.spark.disk.directory_of_life()).holder()
    if holder is not None:
        query.spark.cluster.close(holder)
    sent = executed(query.spark)
    try:
        for _ in range(3):
            query.run()
    except SessionMoved:
        assert executed(query.spark) == sent
    else:
        assert executed(query.spark) == query.rows[: query.ends[-1]]
        assert not sent
