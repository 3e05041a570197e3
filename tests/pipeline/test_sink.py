"""Spark writes to real nodes: batches, refusals, and a stream whose executors, driver and leader are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from quire.log import LogOptions, stored_records, walk_frames
from quire.pipeline.sink.options import FOLDER
from quire.sm.machines.arithmetic import ArithmeticMachine
from tests.pipeline import sink_driver
from tests.pipeline.fake_cluster import FakeCluster
from tests.pipeline.logs import append_and_flush, writing
from tests.pipeline.sessions import TOP
from tests.ports import free_port
from tests.processes.cluster import Cluster, ending_clusters

# By hand: PIPELINE_KILLS=20 pytest tests/pipeline/test_sink.py, which `make soak` does.
KILLS = int(os.environ.get("PIPELINE_KILLS", "1"))
SEED = int(os.environ.get("PIPELINE_SEED", "1"))
KINDS = ("executor", "leader", "driver")
BATCHES_A_KILL = 3
RECORDS_A_BATCH = 3000
DEADLINE_S = 240.0
LOOK_S = 0.005


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        yield made.formed()


def state_of(cluster: Cluster) -> Any:
    """The state, equal on all nodes."""
    cluster.wait_for_equal()
    return cluster.elected().local_state()["state"]


def after(state: Any, commands: list[Any]) -> Any:
    """What a machine comes to that applies commands to a state, each once and in their order."""
    clean = FakeCluster(machine=ArithmeticMachine(state))
    clean.send(clean.open().id, 1, commands)
    return clean.applier.state()


def sent(cluster: Cluster, name: str) -> list[Any]:
    """The commands of a session in the order of their sequences, all of them, whatever ids it was held under."""
    frames = list(walk_frames(cluster.elected().raw_frames()))
    records = [record for frame in frames for record in stored_records(frame)]
    opened = {
        record.index
        for record in records
        if record.kind == 2 and isinstance(record.value, dict) and record.value.get("name") == name
    }
    by_sequence: dict[int, Any] = {}
    for record in records:
        if record.session in opened:
            assert by_sequence.setdefault(record.sequence, record.value) == record.value, record
    assert sorted(by_sequence) == list(range(1, len(by_sequence) + 1))
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def to(cluster: Cluster, frame: DataFrame, folder: Path, **options: str) -> DataFrameWriter:
    given = {"bootstrap": cluster.servers, "spoolLocation": str(folder), **options}
    return frame.write.format("quire").options(**given).mode("append")


def rows(spark: SparkSession, texts: list[str], partitions: int = 3) -> DataFrame:
    """Rows of JSON text, cut into partitions in their order."""
    listed = ", ".join(f"'{text}'" for text in texts)
    numbers = spark.range(len(texts), numPartitions=partitions)
    return numbers.selectExpr(f"element_at(array({listed}), cast(id + 1 as int)) as command")


@pytest.mark.full
def test_a_batch_is_written_once_in_order_and_its_repetition_is_skipped(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    before = state_of(cluster)
    commands = [command for n in range(1500) for command in (["add", n], ["mul", 3], ["sub", "0.5"], ["div", 3])]
    turn = """case id % 4 when 0 then concat('["add", ', id div 4, ']') when 1 then '["mul", 3]'
              when 2 then '["sub", "0.5"]' else '["div", 3]' end as command"""
    frame = spark.range(len(commands), numPartitions=3).selectExpr(turn)
    for _ in range(2):
        to(cluster, frame, tmp_path, SESSION="batch", batchid="7").save()

    assert sent(cluster, "batch") == commands
    assert state_of(cluster) == after(before, commands)
    assert sorted(os.listdir(tmp_path))[1:3] == ["holder", "identity"]


@pytest.mark.full
def test_bad_rows_are_a_table_of_spark_s_and_the_others_are_executed(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    bad = {3: '["pow", 2]', 4: '["add", 1'}
    frame = rows(spark, [bad.get(row, f'["add", {row}]') for row in range(12)])
    given = {"session": "kept", "badRows": "table", "badRowsLocation": str(tmp_path / "bad")}
    for batch in ("7", "7", "8"):
        to(cluster, frame, tmp_path / "spool", **given, batchId=batch).save()

    assert sent(cluster, "kept") == 2 * [["add", row] for row in range(12) if row not in bad]
    found = spark.read.parquet(str(tmp_path / "bad")).orderBy("batch", "row", "partition").collect()
    assert [(row["batch"], row["partition"], row["row"], row["code"]) for row in found] == [
        (batch, *place) for batch in (7, 8) for place in ((1, 0, "NO_COMMAND"), (0, 3, "OPERATION_UNKNOWN"))
    ]
    assert [bytes(row["value"]).decode() for row in found] == [bad[4], bad[3]] * 2
    assert all(row["text"] for row in found)
    to(cluster, frame, tmp_path / "other", session="dropped", badRows="drop").save()
    assert sent(cluster, "dropped") == [["add", row] for row in range(12) if row not in bad]


@pytest.mark.full
def test_rows_that_are_no_commands_are_named_and_nothing_of_their_batch_is_written(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    bad = {3: '["pow", 2]', 4: '["add", 1', 5: '["div", 0]', 11: '["add", 123456789012345678901]'}
    frame = rows(spark, [bad.get(row, '["add", 1]') for row in range(12)])
    bounds = cluster.elected().get("/index_bounds")

    with pytest.raises(PySparkException) as refused:
        to(cluster, frame, tmp_path, session="bad").save()
    text = str(refused.value)
    assert "4 rows are not commands" in text
    for place in (
        "partition 0, row 3: OPERATION_UNK",
        "partition 1, row 0: NO_COMMAND",
        "partition 1, row 1: DIV",
        "2, row 3",
    ):
        assert place in text, text
    assert cluster.elected().get("/index_bounds") == bounds
    assert os.listdir(tmp_path) == ["identity"]


@pytest.mark.full
def test_what_cannot_be_written_is_refused_before_anything_is(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    frame = rows(spark, ['["add", 1]'], 1)
    nobody = f"127.0.0.1:{free_port()}"
    for writer, says in (
        (to(cluster, frame.selectExpr("command", "1 as n"), tmp_path, session="s"), "have command string, n int"),
        (to(cluster, frame, tmp_path, session="s").mode("overwrite"), "a log is only appended to"),
        (to(cluster, frame, tmp_path), "option session: name"),
        (to(cluster, frame, tmp_path, session="s", bootstrap=nobody, sendTimeoutMs="2000"), "within 2 s.*refused"),
    ):
        with pytest.raises(PySparkException, match=says):
            writer.save()


class Stream:
    """A log whose records go to the cluster as commands, by a driver that is killed and started again."""

    def __init__(self, cluster: Cluster, top: Path) -> None:
        self.cluster, self.log, self.folder = cluster, top / "log", top / "out"
        self.before = state_of(cluster)
        self.chance = random.Random(SEED)
        self.process: subprocess.Popen[bytes] | None = None
        count = (KILLS * BATCHES_A_KILL + 1) * RECORDS_A_BATCH
        turn, numbers = (("add", 7), ("mul", 3), ("sub", 5), ("div", 3)), range(count // 4)
        self.commands: list[Any] = [[name, by + at % 5 * (name == "add")] for at in numbers for name, by in turn]
        with writing(self.log, LogOptions(segment_bytes=1 << 18)) as log:
            for start in range(0, len(self.commands), 500):
                append_and_flush(log, self.commands[start : start + 500])

    @property
    def arguments(self) -> list[str]:
        return [str(self.log), str(self.folder), self.cluster.servers, str(RECORDS_A_BATCH)]

    @property
    def session(self) -> str:
        """The name of its session."""
        return f"spark/{json.loads((self.folder / 'checkpoint' / 'metadata').read_bytes())['id']}"

    def start(self) -> None:
        """Begin, or go on, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", sink_driver.__name__, *self.arguments],
                cwd=TOP,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill the driver and what it has started."""
        if self.process is not None:
            with suppress(ProcessLookupError):  # It has ended by itself, since an executor was killed.
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stages(self, stage: str) -> int:
        """The batch that has come farthest to a stage: planned, or done; -1 before the first."""
        try:
            names = os.listdir(self.folder / "checkpoint" / FOLDER)
        except FileNotFoundError:
            return -1
        numbers = [int(name.split("-")[1]) for name in names if name.startswith(stage) and not name.endswith(".half")]
        return max(numbers, default=-1)

    def kill_worker(self) -> bool:
        """Kill some process that runs a task or a commit, which Spark's daemon has forked; whether there was one."""
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
            daemons = {each.pid for each in found if _is_daemon(each)}
            workers = [each for each in found if each.ppid() in daemons]
            if workers:
                self.chance.choice(workers).kill()
                return True
        return False

    def kill(self, kind: str) -> None:
        """Let it come to a batch further on, and a moment more; then kill an executor, the driver or the leader."""
        self.start()
        target = self.stages("done-") + self.chance.randrange(1, BATCHES_A_KILL)
        stage, moments = self.chance.choice(["plan-", "done-"]), self.chance.randrange(40)
        self.cluster.wait_until(f"{stage}{target}", lambda: self.stages(stage) >= target or self._ended(), DEADLINE_S)
        for _ in range(moments):
            signal.sigtimedwait((), LOOK_S)
        match kind:
            case "executor":
                self.cluster.wait_until("a worker", lambda: self._ended() or self.kill_worker(), DEADLINE_S)
            case "driver":
                self.end()
            case _:
                leader = self.cluster.elected()
                leader.kill()
                self.cluster.elected(but=leader)
                self.cluster.start_again(leader)

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "daemon" in " ".join(process.cmdline()) and "java" in psutil.Process(process.ppid()).name()
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def stream(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """One stream for all of its kills: each finds it as the one before left it."""
    made = Stream(cluster, tmp_path_factory.mktemp("stream"))
    yield made
    made.end()


@pytest.mark.soak
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_stream_killed_at_a_random_point_has_sent_its_commands_once_and_in_order(stream: Stream, kill: int) -> None:
    stream.kill(KINDS[kill % len(KINDS)])

    executed = sent(stream.cluster, stream.session)
    assert executed == stream.commands[: len(executed)], f"PIPELINE_SEED={SEED}, kill {kill}"


@pytest.mark.soak
def test_a_stream_killed_again_and_again_comes_to_the_state_and_commands_of_a_clean_run(
    stream: Stream, spark: SparkSession
) -> None:
    stream.end()
    sink_driver.stream(spark, *stream.arguments)

    assert sent(stream.cluster, stream.session) == stream.commands, f"PIPELINE_SEED={SEED}"
    assert state_of(stream.cluster) == after(stream.before, stream.commands), f"PIPELINE_SEED={SEED}"
