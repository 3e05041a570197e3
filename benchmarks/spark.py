"""How fast Spark reads a log from files: `python -m benchmarks.spark`, in an environment with quire[spark].

Spark runs on this machine with two threads. The benchmark alternates between the quire source, Parquet with the same
rows, and a Python loop over the same log. Then it measures counts and a read from an index on, a stream while a writer
appends at a steady rate, and the planning of a read of a log with many segments. Processor time includes the JVM and
all Python workers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from quire.log import FileDirectory, Log, LogOptions, walk_frames
from quire.log.options import STORE_HEADER_BYTES
from quire.log.payload import stored_records
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader
from quire.pipeline.source.source import full_schema

RECORDS = 5_000_000
COUNTED = 3_000_000
VALUE_BYTES = 100
BATCH = 1_000
ROUNDS = 5
STREAM_RATE = 300_000
STREAM_S = 30
SEGMENTS = 10_000
TICK_S = 0.02
DEADLINE_S = 600.0
CLUSTER = b"benchmark-spark!"
TICKS = os.sysconf("SC_CLK_TCK")
PARENT, TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat after the name: user and system time, of the process and of its exited children."""


@contextmanager
def writing(path: Path, options: LogOptions | None = None) -> Generator[Log]:
    """A log to append to."""
    log = Log.open(
        FileDirectory(path),
        options or LogOptions(),
        cluster_id=CLUSTER,
        clock=lambda: time.time_ns() // 1000,
        standalone=True,
        initial_index=0,
    )
    try:
        yield log
    finally:
        log.flush()
        log.close()


def raw_values(start: int, count: int) -> list[bytes]:
    """Distinct values of VALUE_BYTES."""
    return [b"%0*d" % (VALUE_BYTES, number) for number in range(start, start + count)]


def commands(start: int, count: int) -> list[list[object]]:
    """Commands of about the same size."""
    return [["set", number, "x" * (VALUE_BYTES - 12)] for number in range(start, start + count)]


def write_log(path: Path, records: int, values: Callable[[int, int], list[bytes] | list[list[object]]]) -> None:
    """Write a log of this many records, in frames of BATCH."""
    with writing(path) as log:
        for start in range(0, records, BATCH):
            log.append(values(start, BATCH))
            if start % (100 * BATCH) == 0:
                log.flush()


def started() -> SparkSession:
    """Spark on two threads, with this Python interpreter for its workers."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.Builder()
        .appName("quire benchmark")
        .master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


class Measured:
    """The wall and processor seconds of repeated runs."""

    def __init__(self, name: str, records: int, goal: str, run: Callable[[], int]) -> None:
        self.name, self.records, self.goal, self.run = name, records, goal, run
        self._seconds: list[float] = []
        self._processor: list[float] = []

    def once(self, *, counts: bool = True) -> None:
        """Run once. With `counts=False`, as a warm-up."""
        before, began = _processor_seconds(), time.perf_counter()
        found = self.run()
        took = time.perf_counter() - began
        if found != self.records:
            raise SystemExit(f"{self.name}: {found} records of {self.records}")
        if counts:
            self._seconds.append(took)
            self._processor.append(_processor_seconds() - before)

    @property
    def processor_s(self) -> float:
        """The median of the processor seconds."""
        return statistics.median(self._processor)

    def line(self) -> str:
        """The row of the table."""
        best, median = self.records / min(self._seconds), self.records / statistics.median(self._seconds)
        processor = self.processor_s / self.records * 1e6
        return f"| {self.name} | {median:,.0f} | {best:,.0f} | {processor:.2f} | {self.goal} |"


def _processor_seconds() -> float:
    """Of this process and all its descendants: the JVM and Spark's workers, also exited ones. Linux only."""
    spent: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has exited, and its parent's times include it.
            fields = stat.read_text().rpartition(")")[2].split()
            spent[int(stat.parent.name)] = int(fields[PARENT]), sum(map(int, fields[TIMES]))
    below = {os.getpid()}
    while more := {process for process, (parent, _) in spent.items() if parent in below} - below:
        below |= more
    return sum(spent[process][1] for process in below) / TICKS


def summed(frame: DataFrame) -> int:
    """Have Spark read every value; return their number."""
    [row] = frame.agg(sql.count("*").alias("rows"), sql.sum(sql.length("value")).alias("bytes")).collect()
    return int(row["rows"]) if row["bytes"] else 0


def passed(frame: DataFrame, records: int) -> int:
    """Have Spark produce every column of every row, without a sink."""
    frame.write.format("noop").mode("overwrite").save()
    return records


def bare_loop(path: Path) -> int:
    """Read the log without Spark: one object per record, every crc checked, one thread."""
    count = 0
    with closing(DataDirLog(str(path))) as files:
        end = files.bounds().highest_index
    for store in sorted((path / "log").glob("*.store")):
        raw = memoryview(store.read_bytes())[STORE_HEADER_BYTES:]
        for frame in walk_frames(raw):
            count += sum(1 for record in stored_records(frame) if record.value)
            if count == end:
                break  # The rest is preallocated.
    return count


def batch_lines(spark: SparkSession, top: Path, records: int) -> list[str]:
    """Measure batch reads; return the lines of the table."""
    raw, texts, parquet = top / "raw", top / "texts", top / "parquet"
    write_log(raw, records, raw_values)
    write_log(texts, records, commands)

    def quire(path: Path, schema: str | None = None) -> DataFrame:
        reader = spark.read.format("quire")
        return (reader.schema(schema) if schema else reader).load(str(path))

    quire(raw).write.parquet(str(parquet))
    runs = [
        Measured(
            "quire: `value`, its lengths summed", records, "2,000,000/s", lambda: summed(quire(raw, "value binary"))
        ),
        Measured("Parquet: `value`, its lengths summed", records, "", lambda: summed(spark.read.parquet(str(parquet)))),
        Measured("quire: all columns, to no sink", records, "", lambda: passed(quire(raw), records)),
        Measured(
            "Parquet: all columns, to no sink", records, "", lambda: passed(spark.read.parquet(str(parquet)), records)
        ),
        Measured(
            "quire: all columns, where `command` is JSON text", records, "", lambda: passed(quire(texts), records)
        ),
        Measured("a bare Python loop", records, "", lambda: bare_loop(raw)),
    ]
    for run in runs:
        run.once(counts=False)
    for _ in range(ROUNDS):
        for run in runs:
            run.once()
    return [
        "| | records/s | best | processor us a record | goal |",
        "|---|---:|---:|---:|---:|",
        *(run.line() for run in runs),
    ]


def count_lines(spark: SparkSession, top: Path, records: int) -> list[str]:
    """Measure counts, and a read of the last percent of the records; return the lines of the report."""
    path, parquet = top / "counted", top / "counted-parquet"
    write_log(path, records, commands)
    spark.read.format("quire").load(str(path)).write.parquet(str(parquet))

    def quire(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("quire").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(path))

    first, late = records - records // 100, records // 100
    counts = Measured("Parquet: `count()`", records, "", lambda: spark.read.parquet(str(parquet)).count())
    above = Measured(
        "Parquet: `index >= N`, counted",
        late,
        "",
        lambda: spark.read.parquet(str(parquet)).where(f"index >= {first}").count(),
    )
    runs = [
        (counts, counts),
        (Measured("quire: `count()`, schema `index long`", records, "", lambda: quire("index long").count()), counts),
        (Measured("quire: `count()`, all columns", records, "", lambda: quire().count()), counts),
        (above, above),
        (
            Measured(
                "quire: `startingOffsets` N, counted", late, "", lambda: quire(startingOffsets=str(first)).count()
            ),
            above,
        ),
        (Measured("quire: `index >= N`, counted", late, "", lambda: quire().where(f"index >= {first}").count()), above),
    ]
    for run, _ in runs:
        run.once(counts=False)
    for _ in range(ROUNDS):
        for run, _ in runs:
            run.once()
    given = SourceOptions.parse({"path": str(path), "startingOffsets": str(first)}, streaming=False)
    reader, before = LogReader(given, full_schema(headers=False)), _bytes_read()
    found = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    took = _bytes_read() - before
    if found != late:
        raise SystemExit(f"{found} records of {late}")
    with closing(DataDirLog(str(path))) as files:
        size = sum(store.stat().st_size for store in (path / "log").glob("*.store"))
        segments = len(files.stretches(*files.bounds()))
    return [
        f"| {records:,} records | processor s | of Parquet's |",
        "|---|---:|---:|",
        *(f"| {run.name} | {run.processor_s:.2f} | {run.processor_s / base.processor_s:.1f} |" for run, base in runs),
        "",
        f"- a read of the last {late:,} records read {took:,} bytes; the log has {size:,} in {segments} segments",
    ]


def _bytes_read() -> int:
    """The bytes that this process has read, cached ones included. Linux only."""
    return int(Path("/proc/self/io").read_text().split()[1])


def write_steadily(path: str, rate: int, seconds: int) -> None:
    """Append at a rate, in frames of BATCH, with a flush every TICK_S. Runs in a separate process."""
    with writing(Path(path)) as log:
        began, first = time.perf_counter(), log.bounds.highest_index
        written = 0
        while (passed_s := time.perf_counter() - began) < seconds:
            while written < passed_s * rate:
                log.append(raw_values(first + written, BATCH))
                written += BATCH
            log.flush()
            time.sleep(TICK_S)


def stream_lines(spark: SparkSession, top: Path, rate: int, seconds: int) -> list[str]:
    """Measure how a stream keeps up with a writer; return the lines of the report."""
    path = top / "stream"
    write_log(path, BATCH, raw_values)
    source = spark.readStream.format("quire").option("startingOffsets", "earliest").load(str(path))
    sink = source.writeStream.format("noop").option("checkpointLocation", str(top / "checkpoint"))
    query = sink.start()
    _wait_for(query, BATCH)
    writer = multiprocessing.get_context("spawn").Process(target=write_steadily, args=(str(path), rate, seconds))
    writer.start()
    lags: list[int] = []
    while writer.is_alive():
        writer.join(1.0)
        with closing(DataDirLog(str(path))) as files:
            lags.append(files.bounds().highest_index - _reached(query))
    ended = time.perf_counter()
    with closing(DataDirLog(str(path))) as files:
        count = files.bounds().highest_index
    _wait_for(query, count)
    behind = time.perf_counter() - ended
    query.stop()
    early, late = statistics.median(lags[: len(lags) // 2]), statistics.median(lags[len(lags) // 2 :])
    behind_in = f"{early:,.0f} records behind in the first half, {late:,.0f} in the second"
    return [
        f"- a concurrent writer appended {(count - BATCH) / seconds:,.0f} records/s for {seconds} s",
        f"- the stream was {behind_in} (medians; {max(lags):,} at most)",
        f"- it had all {count:,} records {behind:.1f} s after the writer finished",
    ]


def _reached(query: StreamingQuery) -> int:
    """The end of the last completed batch."""
    progress = query.lastProgress
    if progress is None:
        return 0
    [source] = progress["sources"]
    offset = source["endOffset"]
    return int(json.loads(offset)["index"]) if offset else 0


def _wait_for(query: StreamingQuery, index: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while _reached(query) < index:
        if query.exception() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the stream is at {_reached(query)} of {index}: {query.exception()}")
        time.sleep(TICK_S)


def planning_lines(spark: SparkSession, top: Path, segments: int) -> list[str]:
    """Measure how long it takes to plan a read, alone and through Spark; return the lines of the table."""
    path = top / "segments"
    middle, middle_ms = 0, 0
    with writing(path, LogOptions(segment_bytes=1 << 12, index_bytes=1 << 12)) as log:
        while len(log.segments.bases) < segments:
            if len(log.segments.bases) == segments // 2:
                middle, middle_ms = log.tail.index, time.time_ns() // 1_000_000
            log.append([b"x" * (3 << 10)])
    lines: list[str] = []
    for name, options in (
        ("all of it", {}),
        ("from an index in the middle", {"startingOffsets": str(middle)}),
        ("from a time in the middle", {"startingTimestamp": str(middle_ms)}),
    ):
        given = SourceOptions.parse({"path": str(path), **options}, streaming=False)
        began = time.perf_counter()
        parts = LogReader(given, full_schema(headers=False)).partitions()
        planned = time.perf_counter() - began
        began = time.perf_counter()
        count = spark.read.format("quire").options(**options).load(str(path)).rdd.getNumPartitions()
        through = time.perf_counter() - began
        if count != len(parts):
            raise SystemExit(f"{count} partitions, not {len(parts)}")
        lines.append(f"| {name} | {count:,} | {planned:.2f} | {through:.2f} | 2 s |")
    return ["| read | tasks | planned in s | through Spark in s | goal |", "|---|---:|---:|---:|---:|", *lines]


def main() -> None:
    """Measure in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=None, help="parent of the data's directory; default: the system's"
    )
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--counted", type=int, default=COUNTED)
    parser.add_argument("--only", choices=["batch", "count", "stream", "planning"], default=None)
    parser.add_argument("--rate", type=int, default=STREAM_RATE)
    parser.add_argument("--seconds", type=int, default=STREAM_S)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    arguments = parser.parse_args()
    spark = started()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        top = Path(directory)
        parts: dict[str, Callable[[], list[str]]] = {
            "batch": lambda: batch_lines(spark, top, arguments.records),
            "count": lambda: count_lines(spark, top, arguments.counted),
            "stream": lambda: stream_lines(spark, top, arguments.rate, arguments.seconds),
            "planning": lambda: planning_lines(spark, top, arguments.segments),
        }
        for name, lines in parts.items():
            if arguments.only in (None, name):
                print("\n".join(lines()), end="\n\n", flush=True)
    print(f"{os.cpu_count()} processors, {arguments.records:,} records")
    spark.stop()


if __name__ == "__main__":
    main()
