"""Rows that are marked as executed or not, against what a replica executes, over seeded histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from quire.log import SESSION_TTL, Frame, Kind, LogOptions, Run, encode_frame, encode_system, stored_records
from quire.pipeline import mark_executed
from quire.pipeline.errors import MarkingRefused
from quire.pipeline.executed.runs import Marks, marks_of, runs_of
from quire.sm import Applier, Sessions
from tests.pipeline.logs import writing
from tests.sm.frames import Frames
from tests.sm.ledger import Ledger

SEEDS = range(60)
FRAMES = 150
LIMITS = {"max_sessions": 4, "session_window": 8, "session_ttl_s": 50}
ROWS = pa.schema(
    [
        ("index", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("session", pa.int64()),
        ("sequence", pa.int64()),
        ("value", pa.binary()),
    ]
)
Row = tuple[int, int, int, int, bytes | None]


class History:
    """A log and what a replica made of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.frames = Frames()
        self.applier = Applier(Ledger(), sessions=Sessions(**LIMITS))
        self.log: list[Frame] = []
        self.rows: list[Row] = []
        self.executed: list[bool | None] = []
        self.sessions: dict[int, int] = {}  # Every session that was opened, to the sequence that its writer is at.
        self.named: dict[str, int] = {}
        self.apply(self.frames.system({"type": "genesis", "members": [], "limits": LIMITS}))
        for _ in range(FRAMES):
            self.step()

    def apply(self, frame: Frame) -> Any:
        self.frames.timestamp += self.random.choice((0, 1, 1_000_000, 9_000_000))
        self.log.append(frame)
        applied = self.applier.apply(frame)
        is_system = frame.header.kind == Kind.SYSTEM
        for position, record in enumerate(stored_records(frame)):
            value = encode_system(record.value) if isinstance(record.value, dict) and is_system else None
            self.rows.append((record.index, record.timestamp, record.session, record.sequence, value))
            self.executed.append(None if is_system else position not in applied.answered)
        return applied.results

    def step(self) -> None:
        match self.random.randrange(12):
            case 0 | 1:
                name = self.random.choice(("a", "b", "", ""))
                owner = {"owner": self.random.choice("xxy")} if self.random.random() < 0.3 else {}
                [status] = self.apply(self.frames.system({"type": "open_session", "name": name} | owner))
                if status is not None:
                    self.sessions[status["session"]] = status["sequence"] + 1
            case 2 if self.sessions:
                chosen = self.random.choice([*self.sessions])
                self.apply(self.frames.system({"type": "close_session", "session": chosen}))
            case 3 if self.random.random() < 0.1:
                self.apply(self.frames.system({"type": "features", "names": [SESSION_TTL]}))
            case 3:
                self.apply(self.frames.system({"type": "epoch_start", "node_id": "n1"}))
            case 4 | 5:
                runs = [self.run() for _ in range(self.random.randint(1, 5))]
                self.apply(self.frames.runs(runs, list(range(sum(run.count for run in runs)))))
            case _:
                session, sequence, count = self.run()
                self.apply(self.frames.records(list(range(count)), session, sequence))

    def run(self) -> Run:
        """A run that is new, a retry, a retry in part, behind a gap, or without a session."""
        count = self.random.randint(1, 6)
        if not self.sessions or self.random.random() < 0.1:
            return Run(0, 0, count)
        session = self.random.choice([*self.sessions][-6:])
        following = self.sessions[session]
        if self.random.random() < 0.6:
            self.sessions[session] = following + count
            return Run(session, following, count)
        return Run(session, max(1, following + self.random.randint(-9, 3)), count)


def table_of(runs: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(runs)


def batches(rows: Sequence[Row], chance: random.Random) -> list[pa.RecordBatch]:
    """The rows in batches of random sizes."""
    found: list[pa.RecordBatch] = []
    start = 0
    while start < len(rows):
        end = start + chance.choice((1, 2, 7, 50, 1000))
        columns = list(zip(*rows[start:end], strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=ROWS))
        start = end
    return found


def marks(partitions: Sequence[Sequence[Row]], chance: random.Random) -> Marks:
    return marks_of(table_of([run for rows in partitions for run in runs_of(batches(rows, chance))]))


def marked(found: Marks, rows: Sequence[Row]) -> list[bool | None]:
    index, _, session, sequence, value = zip(*rows, strict=True)
    told = found.executed(*(pa.array(column, pa.int64()) for column in (index, session, sequence))).to_pylist()
    return [None if is_system else each for each, is_system in zip(told, value, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_marked_as_a_replica_executes_them_however_they_are_partitioned(seed: int) -> None:
    history, chance = History(seed), random.Random(seed)
    assert {True, False} <= set(history.executed)
    cuts = sorted(chance.sample(range(1, len(history.rows)), 3))
    in_order = [history.rows[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    shuffled: list[list[Row]] = [[], [], []]
    for row in history.rows:
        chance.choice(shuffled).append(row)
    chance.shuffle(shuffled[0])

    for partitions in ([history.rows], in_order, shuffled):
        found = marks(partitions, chance)
        assert (found.from_index, found.to_index) == (0, len(history.rows))
        chance.shuffle(partitions)
        for rows in partitions:
            expected = [history.executed[row[0]] for row in rows]
            assert marked(found, rows) == expected


def test_a_session_without_retries_is_one_run_however_many_batches_there_are() -> None:
    rows: list[Row] = [(index, index, 5, index, None) for index in range(1, 500)]

    made = table_of([*runs_of(batches(rows, random.Random(1)))]).to_pylist()
    assert [(run["first_index"], run["last_index"], run["count"]) for run in made] == [(1, 499, 499), (1, 499, 0)]


def test_sequences_that_cannot_be_the_next_execute_nothing() -> None:
    sequences = [0, 1, 2, -1, 0, 2, 3]  # -1 is 2**64 - 1: a gap. None is below 1.
    opening = encode_system({"type": "open_session"})
    rows: list[Row] = [(0, 0, 0, 0, opening), (1, 1, 0, 0, opening)]
    rows += [(index, index, 1, sequence, None) for index, sequence in enumerate(sequences, 2)]

    assert marked(marks([rows], random.Random(1)), rows)[2:] == [False, True, True, False, False, False, True]


def test_rows_that_came_since_are_unknown() -> None:
    history = History(1)
    found = marks([history.rows[10:60]], random.Random(1))

    told = marked(found, history.rows)
    assert {told[position] for position in (*range(10), *range(60, len(told)))} == {None}
    assert None not in {each for each, row in zip(told[10:60], history.rows[10:60], strict=True) if row[4] is None}


@pytest.mark.parametrize("change", ["missing", "twice"])
def test_rows_that_are_missing_or_there_twice_are_refused(change: str) -> None:
    rows = History(1).rows
    wrong = [*rows[:40], *rows[41:]] if change == "missing" else [*rows[:40], *rows[39:]]

    with pytest.raises(MarkingRefused, match="the row after index 39 has index "):
        marks([wrong], random.Random(1))


def test_no_rows_have_no_marks() -> None:
    assert marks([[], []], random.Random(1))[:2] == (0, 0)


@pytest.mark.full
def test_spark_marks_the_rows_of_a_log_and_counts_each_command_once(spark: SparkSession, tmp_path: Path) -> None:
    history = History(3)
    with writing(tmp_path, LogOptions(segment_bytes=8192)) as log:
        for header, payload in history.log:
            fields = header._asdict()
            same = ("index", "epoch", "timestamp", "count", "prev_crc32c", "kind", "session", "sequence")
            log.append_frames(encode_frame(payload=payload, **{name: fields[name] for name in same}))
        log.flush()
    read = spark.read.format("quire").load(str(tmp_path))

    marked_rows = mark_executed(read)
    found = marked_rows.select("index", "executed").orderBy("index").collect()
    assert [row["executed"] for row in found] == history.executed
    assert read.rdd.getNumPartitions() > 1
    assert marked_rows.where("executed").count() == history.executed.count(True)
    again = mark_executed(read.repartition(3))
    assert again.where(~F.col("executed")).count() == history.executed.count(False)

    with pytest.raises(MarkingRefused, match="the row after index 6 has index 8"):
        mark_executed(read.where("index != 7"))
    with pytest.raises(MarkingRefused, match="they lack kind, value"):
        mark_executed(read.drop("kind", "value"))
    with pytest.raises(MarkingRefused, match="they are a stream's"):
        mark_executed(spark.readStream.format("quire").load(str(tmp_path)))
