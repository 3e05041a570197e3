"""The sink's commit without Spark: stopped at every write to the disk and every message, taken over, and lied to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from quire.cluster.client import SessionFenced
from quire.cluster.http.routes.stream import decode_message
from quire.cluster.values import CONTAINERS_LIMIT
from quire.log import pack
from quire.log.simulated.faulty import Disk, Keep, PowerLoss
from quire.pipeline.errors import OptionRefused
from quire.pipeline.sink import spool
from quire.pipeline.sink.commit import Target, TaskResult, commit
from quire.pipeline.sink.errors import (
    BatchBehind,
    BatchOvertaken,
    BatchUnfinished,
    CommandsRefused,
    ForeignCluster,
    RowRefused,
    RowsRefused,
    SessionMoved,
    SpoolDamaged,
)
from quire.pipeline.sink.spool import SpoolWriter
from quire.pipeline.sink.state import FIRST_REFUSALS, SPOOL, Done, SinkState
from quire.sm import Applied
from quire.sm.machines.arithmetic import ArithmeticMachine
from quire.sm.machines.log import LogMachine
from tests.pipeline.fake_cluster import Cut, FakeCluster, RefusingMachine, SessionClient

TARGET = Target("c" * 32, "sink")
BATCHES: list[list[list[Any]]] = [
    [[["add", 1], ["mul", 3]], [["sub", 2]], []],
    [[["mul", 2], ["add", 5], ["mul", 7]], [["add", 11], ["mul", 13]]],
    [[["add", 17]], [["mul", 19], ["sub", 23]], [["add", 29], ["mul", 31], ["add", 37]]],
]
"""Commands by batch and partition; in another order, or one of them twice, they come to another number."""
ALL = [command for batch in BATCHES for part in batch for command in part]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two commands: a partition has several, and a batch several messages."""
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 2)


class Spark:
    """What Spark does with the sink: tasks, then the commit; after a death the batch again, with spools of its own."""

    def __init__(self, disk: SinkDisk, cluster: FakeCluster, seed: int = 0) -> None:
        self.disk, self.cluster = disk, cluster
        self.chance = random.Random(seed)
        self.names = 0
        self.committed = -1

    def tasks(self, batch: int, rows: Sequence[Sequence[Any]] | None = None) -> list[TaskResult]:
        """Spool every partition; the messages come as the tasks end."""
        parts: list[TaskResult] = []
        for partition, commands in enumerate(BATCHES[batch] if rows is None else rows):
            self.names += 1
            writer = SpoolWriter(self.disk.directory_of_life(), f"{SPOOL}{self.names:08d}", partition)
            for command in commands:
                writer.add(pack(command))
            parts.append(TaskResult(partition, writer.finished()))
        self.chance.shuffle(parts)
        return parts

    async def commit(
        self, batch: int | None, parts: list[TaskResult], client: SessionClient | None = None, **fails: bool
    ) -> Done:
        folder = SinkState(self.disk.directory_of_life())
        given = {"fails": True, **fails}
        return await commit(folder, TARGET, lambda: client or self.cluster.connect(), parts, batch, **given)

    def write(self, batch: int, rows: Sequence[Sequence[Any]] | None = None, **fails: bool) -> Done:
        done = asyncio.run(self.commit(batch, self.tasks(batch, rows), None, **fails))
        self.committed = batch
        return done

    def write_all(self) -> None:
        """From the batch on that Spark does not know as committed: the sink may have it planned, or done."""
        for batch in range(self.committed + 1, len(BATCHES)):
            self.write(batch)


class SinkDisk(Disk):
    """A disk; each of its lives has one handle."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._handle = self.directory()

    def directory_of_life(self) -> Any:
        return self._handle

    def begin_again(self) -> None:
        self._handle = self.directory()


def ends_as_a_clean_run(spark: Spark) -> None:
    executed = spark.cluster.executed
    assert [command for _, command in executed] == ALL
    assert [sequence for sequence, _ in executed] == list(range(1, len(ALL) + 1))
    clean = ArithmeticMachine(42)
    clean_cluster = FakeCluster(machine=clean)
    clean_cluster.send(clean_cluster.open().id, 1, ALL)
    assert spark.cluster.applier.state() == clean.query(None)


def leaves_nothing(spark: Spark) -> None:
    """Behind the next batch nothing is left of those before it, whatever was stopped."""
    number = len(BATCHES)
    spark.write(number, [[["add", 1]]])
    session = SinkState(spark.disk.directory_of_life()).holder()
    assert spark.disk.names() == [f"done-{number:020d}", "holder", "identity", f"plan-{number:020d}-{session:020d}"]


def test_a_clean_run_executes_every_command_once_in_the_order_of_partitions_and_leaves_no_spool() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write_all()

    ends_as_a_clean_run(spark)
    leaves_nothing(spark)


def stopped(disk: SinkDisk, spark: Spark) -> bool:
    """Write until the end or a stop; then everything not synced is gone, and the process."""
    try:
        spark.write_all()
    except (PowerLoss, Cut):
        return True
    finally:
        disk.lose_power()
        disk.begin_again()
    return False


@pytest.mark.parametrize("keep", list(Keep))
def test_a_commit_stopped_before_any_write_to_the_disk_is_ended_by_the_next(keep: Keep) -> None:
    step, stops = 1, True
    while stops:
        disk = SinkDisk(step)
        disk.on_power_loss = keep
        spark = Spark(disk, FakeCluster(), step)
        disk.stop_before = disk.operations + step
        stops = stopped(disk, spark)
        spark.write_all()
        ends_as_a_clean_run(spark)
        leaves_nothing(spark)
        step += 1
    assert step > 60


@pytest.mark.parametrize("side", ["cut_before", "cut_after"])
def test_a_commit_stopped_at_any_message_is_ended_by_the_next_under_the_same_sequences(side: str) -> None:
    step, stops = 1, True
    while stops:
        disk, cluster = SinkDisk(), FakeCluster()
        spark = Spark(disk, cluster, step)
        setattr(cluster, side, step)
        stops = stopped(disk, spark)
        setattr(cluster, side, None)
        spark.write_all()
        ends_as_a_clean_run(spark)
        leaves_nothing(spark)
        step += 1
    assert step > 8


@pytest.mark.parametrize("seed", range(40))
def test_a_commit_stopped_again_and_again_comes_to_the_end_of_a_clean_run(seed: int) -> None:
    chance = random.Random(seed)
    disk, cluster = SinkDisk(seed), FakeCluster(window=4)
    spark = Spark(disk, cluster, seed)
    for _ in range(6):
        disk.stop_before = disk.operations + chance.randrange(1, 40)
        cluster.cut_before = cluster.messages + chance.randrange(1, 12)
        cluster.cut_after = cluster.messages + chance.randrange(1, 12)
        stopped(disk, spark)
    cluster.cut_before = cluster.cut_after = None
    spark.write_all()

    assert [command for _, command in cluster.executed] == ALL


def test_a_repeated_batch_is_skipped_whole_and_opens_no_session() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write_all()
    index = spark.cluster.applier.applied_index
    for _ in range(2):
        spark.write(len(BATCHES) - 1)

    assert spark.cluster.applier.applied_index == index
    ends_as_a_clean_run(spark)


def zombie(spark: Spark, moment: str, batches: Sequence[int]) -> SessionClient:
    """A client at whose hook of that name another driver writes these batches."""
    client = spark.cluster.connect()

    async def others() -> None:
        setattr(client, moment, _never_again)
        for batch in batches:
            await spark.commit(batch, spark.tasks(batch))

    setattr(client, moment, others)
    return client


async def _never_again() -> None:
    pass


@pytest.mark.parametrize("moment", ["opening", "opened", "sending"])
@pytest.mark.parametrize("others", [[0], [0, 1], [0, 1, 2]])
def test_a_zombie_driver_sends_nothing_once_another_has_opened_the_session(moment: str, others: list[int]) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    client = zombie(spark, moment, others)
    parts = spark.tasks(0)

    with suppress(SessionFenced, BatchBehind):
        asyncio.run(spark.commit(0, parts, client))  # It finds the batch done, or a later one, or else is fenced.
        assert moment != "sending"
        assert others == [0]
    spark.committed = others[-1]
    spark.write_all()

    assert [command for _, command in spark.cluster.executed] == ALL


def test_a_late_driver_that_holds_the_session_uses_the_plan_of_the_one_before() -> None:
    disk, cluster = SinkDisk(), FakeCluster()
    spark = Spark(disk, cluster)
    late, parts = spark.tasks(0), spark.tasks(0)
    cluster.cut_after = 1
    with pytest.raises(Cut):
        asyncio.run(spark.commit(0, parts))
    asyncio.run(spark.commit(0, late))
    spark.committed = 0
    spark.write_all()

    ends_as_a_clean_run(spark)


def test_an_abort_removes_what_was_spooled_in_vain_and_not_what_is_planned() -> None:
    disk, cluster = SinkDisk(), FakeCluster()
    spark = Spark(disk, cluster)
    folder = SinkState(disk.directory_of_life())
    for planned in (False, True):
        parts = spark.tasks(0)
        if planned:
            cluster.cut_after = 1
            with pytest.raises(Cut):
                asyncio.run(spark.commit(0, parts))
        folder.abandon(part.spool for part in parts if part.spool is not None)
        assert [name for name in disk.names() if name.startswith(SPOOL)] == [
            part.spool.name for part in sorted(parts, key=lambda part: part.partition) if part.spool and planned
        ]
    spark.write_all()

    ends_as_a_clean_run(spark)


def test_rows_that_are_no_commands_are_named_and_nothing_is_written() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    bad = [RowRefused(partition, 7, "OPERATION_UNKNOWN", "no pow") for partition in (2, 1)]
    parts = [*spark.tasks(0), *(TaskResult(row.partition, None, refused=8, first_refused=(row,)) for row in bad)]

    with pytest.raises(
        RowsRefused, match=r"16 rows .* partition 1, row 7: OPERATION_UNKNOWN: no pow; partition 2.* 14 mo"
    ):
        asyncio.run(spark.commit(0, parts))
    assert spark.cluster.applier.applied_index == spark.cluster.empty_index
    assert spark.cluster.executed == []


@pytest.mark.parametrize(("largest", "taken"), [(95, True), (96, False)])
def test_a_command_larger_than_the_cluster_takes_is_named_by_its_row(largest: int, taken: bool) -> None:
    spark = Spark(SinkDisk(), FakeCluster(message_bytes=100))
    [part, *_] = spark.tasks(0, [[["add", 1]]])
    parts = [TaskResult(0, part.spool, largest, 12)]
    if taken:
        asyncio.run(spark.commit(0, parts))
        return
    with pytest.raises(RowsRefused, match=r"partition 0, row 12: TOO_LARGE: .* 96 bytes, and the cluster takes 95 "):
        asyncio.run(spark.commit(0, parts))
    assert spark.cluster.executed == []
    assert SinkState(spark.disk.directory_of_life()).plan() is None


@pytest.mark.full
def test_commands_with_more_lists_together_than_a_message_may_carry_are_sent_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 1000)
    spark = Spark(SinkDisk(), FakeCluster(machine=LogMachine(None)))
    sent: list[int] = []
    send = spark.cluster.send

    def decoding(session: int, sequence: int, commands: Sequence[Any]) -> Applied:
        sent.append(len(decode_message(pack([sequence, commands]))[1]))
        return send(session, sequence, commands)

    monkeypatch.setattr(spark.cluster, "send", decoding)
    rows: list[list[Any]] = [[[number, *[[]] * 99] for number in range(1000)], [["after"]]]
    spark.cluster.cut_after = 2
    with pytest.raises(Cut):
        spark.write(0, rows)
    spark.write(0, rows)

    assert [command for _, command in spark.cluster.executed] == [*rows[0], *rows[1]]
    assert max(sent) * 100 <= CONTAINERS_LIMIT - 2


@pytest.mark.parametrize("most", [1, 0])
def test_replies_too_long_for_one_answer_are_asked_for_one_by_one(most: int) -> None:
    spark = Spark(SinkDisk(), FakeCluster(machine=RefusingMachine(42)))
    spark.cluster.answer_results = most
    rows = [[["add", 13], ["add", 1], ["add", 2]], [["add", 3], ["add", 13]]]

    done = asyncio.run(spark.commit(0, spark.tasks(0, rows), fails=False))

    assert [command for _, command in spark.cluster.executed] == [*rows[0], *rows[1]]
    assert (done.commands, done.refused, done.unanswered) == ((5, 2, 0) if most else (5, 0, 5))
    spark.cluster.answer_results = None
    spark.write(1)


REFUSED = [[["add", 13], ["add", 1], ["add", 2]], [["add", 3], ["add", 13], ["add", 4], ["add", 5], ["add", 6]]]


def refused_run(window: int, message: int) -> Spark:
    """Two refused commands; the driver dies once, with the answer to a message on its way."""
    disk, cluster = SinkDisk(), FakeCluster(machine=RefusingMachine(42), window=window)
    spark = Spark(disk, cluster)
    cluster.cut_after = message
    with pytest.raises(Cut):
        spark.write(0, REFUSED)
    for _ in range(2):
        with pytest.raises(
            CommandsRefused, match=r"refused 2 of its commands .*sequence 1: UNLUCKY.*sequence 5: UNLUCKY"
        ):
            spark.write(0, REFUSED)
    assert len(cluster.executed) == 8
    return spark


@pytest.mark.parametrize("window", [2, 3, 4, 8192])
@pytest.mark.parametrize("message", [1, 2, 4, 5])
def test_what_the_machine_refuses_fails_the_batch_once_it_is_written_though_a_driver_died_over_it(
    window: int, message: int
) -> None:
    spark = refused_run(window, message)

    done = spark.write(0, REFUSED, fails=False)
    assert (done.commands, done.refused, done.unanswered) == (8, 2, 0)
    spark.write(1)


@pytest.mark.parametrize("count", [FIRST_REFUSALS, FIRST_REFUSALS + 1])
def test_so_many_refusals_are_named_and_the_others_counted(count: int) -> None:
    spark = Spark(SinkDisk(), FakeCluster(machine=RefusingMachine(42)))
    with pytest.raises(CommandsRefused) as refused:
        asyncio.run(spark.commit(0, spark.tasks(0, [[["add", 13]] * count])))

    assert refused.value.refused == count
    assert str(refused.value).count("UNLUCKY") == FIRST_REFUSALS


def test_replies_that_the_session_has_forgotten_are_counted() -> None:
    disk, cluster = SinkDisk(), FakeCluster(machine=RefusingMachine(42))
    spark = Spark(disk, cluster)
    rows = [[["add", 13], ["add", 1], ["add", 2]]]
    cluster.cut_after = 1
    with pytest.raises(Cut):
        asyncio.run(spark.commit(0, spark.tasks(0, rows)))
    for replies in cluster.applier.sessions.replies.values():
        replies.forget()

    with pytest.raises(CommandsRefused, match="the replies to 2 more are gone"):
        spark.write(0, rows)
    assert [command for _, command in cluster.executed] == rows[0]


def test_what_one_driver_could_not_ask_for_the_next_does_not_count_again() -> None:
    disk, cluster = SinkDisk(), FakeCluster(machine=RefusingMachine(42), window=2)
    spark = Spark(disk, cluster)
    rows = [[["add", 13], ["add", 1], ["add", 2]]]
    for message in (2, 4):  # The third asks for a reply that is gone.
        cluster.cut_after = message
        with pytest.raises(Cut):
            asyncio.run(spark.commit(0, spark.tasks(0, rows)))
        for replies in cluster.applier.sessions.replies.values():
            if message == 2:
                replies.forget()

    with pytest.raises(CommandsRefused, match=r"refused 1 of its .* the replies to 1 more are gone"):
        spark.write(0, rows)
    assert [command for _, command in cluster.executed] == rows[0]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("cut", [True, False])
def test_a_session_that_was_closed_under_the_query_is_told_and_nothing_is_sent(batch: int, cut: bool) -> None:
    disk, cluster = SinkDisk(), FakeCluster()
    spark = Spark(disk, cluster)
    if batch:
        spark.write(0)
    if cut:
        cluster.cut_after = cluster.messages + 1
        with pytest.raises(Cut):
            asyncio.run(spark.commit(batch, spark.tasks(batch)))
    elif not batch:
        return  # Nothing was sent: there was no session.
    holder = SinkState(disk.directory_of_life()).holder()
    assert holder is not None
    cluster.close(holder)
    executed = list(cluster.executed)

    for _ in range(2):
        with pytest.raises(SessionMoved, match="is at sequence 0"):
            asyncio.run(spark.commit(batch, spark.tasks(batch)))
    assert cluster.executed == executed


def test_a_session_that_another_has_written_under_is_told() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    spark.cluster.send(spark.cluster.open().id, 4, [["add", 1]])

    with pytest.raises(SessionMoved, match="at sequence 4, and the checkpoint at 3"):
        asyncio.run(spark.commit(1, spark.tasks(1)))


def test_a_session_that_was_written_under_from_elsewhere_takes_nothing_of_a_new_spool() -> None:
    cluster = FakeCluster()
    Spark(SinkDisk(), cluster).write_all()
    anew = Spark(SinkDisk(), cluster)
    for batch in (0, None):
        with pytest.raises(
            SessionMoved, match=f"at sequence {len(ALL)}, but nothing was sent from this spool.*new ses"
        ):
            asyncio.run(anew.commit(batch, anew.tasks(0)))

    assert [command for _, command in cluster.executed] == ALL


def test_another_cluster_or_session_than_the_checkpoints_is_refused() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    for target, error in ((Target("d" * 32, "sink"), ForeignCluster), (Target("c" * 32, "other"), OptionRefused)):
        for batch in (0, 1, None):  # What is done under another's name is not done here.
            with pytest.raises(error):
                spark_commit(spark, target, batch)
    assert len(spark.cluster.executed) == 3


def spark_commit(spark: Spark, target: Target, batch: int | None) -> Done:
    """A commit that goes to somewhere of its own."""
    folder, parts = SinkState(spark.disk.directory_of_life()), spark.tasks(0)
    return asyncio.run(commit(folder, target, spark.cluster.connect, parts, batch, fails=True))


def test_what_one_query_has_done_is_not_done_for_another_with_the_same_session_and_spool() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    first, second = Target("c" * 32, "sink", "first"), Target("c" * 32, "sink", "second")
    for _ in range(2):
        assert spark_commit(spark, first, 0).batch == 0
    for target in (second, TARGET):
        for batch in (0, 1, None):
            with pytest.raises(OptionRefused, match=r"is of query first, not of (second|an unknown query)"):
                spark_commit(spark, target, batch)
    assert len(spark.cluster.executed) == 3


def test_a_batch_that_is_planned_must_be_ended_before_another() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.cluster.cut_after = 1
    with pytest.raises(Cut):
        asyncio.run(spark.commit(0, spark.tasks(0)))
    index = spark.cluster.applier.applied_index
    for batch in (None, 1):
        with pytest.raises(BatchUnfinished, match="batchId=0"):
            asyncio.run(spark.commit(batch, spark.tasks(1)))
    assert spark.cluster.applier.applied_index == index  # Who sends it is not fenced for that.
    spark.write_all()

    ends_as_a_clean_run(spark)


def test_writes_without_a_number_follow_each_other() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    for batch in range(len(BATCHES)):
        assert asyncio.run(spark.commit(None, spark.tasks(batch))).batch == batch

    ends_as_a_clean_run(spark)


def test_a_write_without_a_number_that_another_overtakes_is_told_and_not_taken_for_that() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    late, parts = spark.cluster.connect(), spark.tasks(2)

    async def other() -> None:
        await spark.commit(None, spark.tasks(1))

    late.opening = other
    with pytest.raises(BatchOvertaken, match="batch 1 was written by another"):
        asyncio.run(spark.commit(None, parts, late))
    asyncio.run(spark.commit(None, spark.tasks(2)))

    ends_as_a_clean_run(spark)


def test_a_write_without_a_number_does_not_end_another_s_in_its_own_s_place() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    late, parts = spark.cluster.connect(), spark.tasks(2)

    async def other() -> None:
        spark.cluster.cut_after = spark.cluster.messages + 1
        with suppress(Cut):
            await spark.commit(None, spark.tasks(1))

    late.opening = other
    with pytest.raises(BatchUnfinished, match="batch 1 is planned and not finished, so a write must wait"):
        asyncio.run(spark.commit(None, parts, late))
    spark.write(1)
    asyncio.run(spark.commit(None, spark.tasks(2)))

    ends_as_a_clean_run(spark)


def test_a_write_without_a_number_goes_on_under_its_number_where_replies_are_gone() -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    client, parts = spark.cluster.connect(), spark.tasks(0)

    async def sent_before() -> None:
        """The client sends again what the session has executed and forgotten."""
        client.sending = _never_again
        session = await client.session()
        spark.cluster.send(session.id, 1, BATCHES[0][0])
        for replies in spark.cluster.applier.sessions.replies.values():
            replies.forget()

    client.sending = sent_before
    clients = iter([client, spark.cluster.connect()])
    folder = SinkState(spark.disk.directory_of_life())
    done = asyncio.run(commit(folder, TARGET, lambda: next(clients), parts, None, fails=False))
    spark.committed = done.batch
    spark.write_all()

    assert done.batch == 0
    ends_as_a_clean_run(spark)


def test_a_damaged_spool_sends_nothing_before_its_plan_and_behind_it() -> None:
    disk, cluster = SinkDisk(), FakeCluster()
    spark = Spark(disk, cluster)
    parts = spark.tasks(0)
    disk.flip_bit(f"{SPOOL}00000001", 25)
    with pytest.raises(SpoolDamaged):
        asyncio.run(spark.commit(0, parts))
    assert cluster.applier.applied_index == cluster.empty_index
    cluster.cut_after = 1
    with pytest.raises(Cut):
        asyncio.run(spark.commit(0, spark.tasks(0, BATCHES[1])))
    executed = list(cluster.executed)
    disk.flip_bit(f"{SPOOL}00000005", 25)  # What comes behind what is to be sent next.
    with pytest.raises(SpoolDamaged, match=f"{SPOOL}00000005: the block at position 8"):
        asyncio.run(spark.commit(0, spark.tasks(0, BATCHES[1])))
    assert cluster.executed == executed


@pytest.mark.parametrize("name", ["identity", "done-00000000000000000000", "holder"])
def test_a_damaged_document_of_the_sink_is_told(name: str) -> None:
    spark = Spark(SinkDisk(), FakeCluster())
    spark.write(0)
    spark.disk.flip_bit(name, 3)

    with pytest.raises(SpoolDamaged, match=f"{name}: its crc"):
        asyncio.run(spark.commit(1, spark.tasks(1)))
    assert len(spark.cluster.executed) == 3
