"""The jobs on a real Spark, over a long log, and on the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from typer.testing import CliRunner

from quire.log import HEADER_BYTES, FrameCorrupt, LogOptions, pack
from quire.pipeline.cli import app
from quire.pipeline.errors import ClusterUnavailable, OptionRefused
from quire.pipeline.jobs import ArchiveSummary, archive, replay, report, scrub
from quire.pipeline.pieces import Outcome, spread
from quire.pipeline.source.options import SourceOptions
from quire.sm import SESSION_WINDOW, ArithmeticMachine
from tests.pipeline.logs import SECOND, START, Clock, append_and_flush, writing
from tests.pipeline.test_archive import expire, grow
from tests.pipeline.test_replay import Nearly, run_cluster
from tests.pipeline.test_scrub import flip, frames, stores
from tests.processes.cluster import environment

# By hand: PIPELINE_RECORDS=10000000 pytest -s tests/pipeline/test_jobs.py, which `make soak` does.
CI_RECORDS = 300_000
RECORDS = int(os.environ.get("PIPELINE_RECORDS", str(CI_RECORDS)))
BATCH = 100
SEGMENT_BYTES = max(1 << 20, RECORDS)

T = TypeVar("T")


def timed(what: str, spark: SparkSession | None, run: Callable[[], T]) -> T:
    """Run, and tell how long it took on how many cores; pytest shows it with -s."""
    began = time.monotonic()
    result = run()
    cores = 1 if spark is None else spark.sparkContext.defaultParallelism
    sys.stdout.write(f"{what}: {RECORDS:,} records, {cores} cores: {time.monotonic() - began:.1f} s\n")
    return result


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECORDS commands, BATCH a frame, over two days."""
    path, clock = tmp_path_factory.mktemp("long") / "n1", Clock()
    with writing(path, LogOptions(segment_bytes=SEGMENT_BYTES), clock) as log:
        for start in range(0, RECORDS, BATCH):
            clock.now = START + start * 2 * 86_400 * SECOND // RECORDS
            log.append([["add", number] for number in range(start, start + BATCH)])
        log.flush()
    return path


def history(spark: SparkSession, **options: Any) -> DataFrame:
    return spark.read.format("quire").options(**options).schema("index long, value binary").load()


def summed(frame: DataFrame) -> tuple[int, int, int, int]:
    """Count, bounds, and a sum over the bytes that depends on which index has which."""
    weighed = F.sum((F.crc32("value") * (F.col("index") % 1000 + 1)).cast("decimal(38,0)"))
    row = frame.agg(F.count("*"), F.min("index"), F.max("index"), weighed).collect()[0]
    return row[0], row[1], row[2], int(row[3])


def expected_sum(values: Sequence[Any]) -> tuple[int, int, int, int]:
    """The same of records that are known."""
    weighed = sum(crc32(pack(value)) * (index % 1000 + 1) for index, value in enumerate(values))
    return len(values), 0, len(values) - 1, weighed


@pytest.mark.full
def test_archive_and_log_are_one_gapless_history_after_expiry_twice(
    spark: SparkSession, long_log: Path, tmp_path: Path
) -> None:
    log, path = Path(shutil.copytree(long_log, tmp_path / "log")), tmp_path / "archive"
    options = SourceOptions(path=str(log))
    values: list[Any] = [["add", number] for number in range(RECORDS)]

    first = timed("archive", spark, lambda: archive(options, str(path), spark=spark))
    assert (first.from_index, first.to_index) == (0, RECORDS)
    assert expire(log, RECORDS // 2) > RECORDS // 4
    read = history(spark, path=log, archive=path)
    assert timed("archive and log", spark, lambda: summed(read)) == expected_sum(values)

    grow(log, RECORDS, 500)
    second = archive(options, str(path), spark=spark)
    assert (second.from_index, second.to_index) == (RECORDS, RECORDS + 500)
    assert expire(log, RECORDS) > RECORDS // 2
    grow(log, RECORDS + 500, 20)
    values += range(RECORDS, RECORDS + 520)
    assert summed(history(spark, path=log, archive=path)) == expected_sum(values)


@pytest.mark.full
def test_scrub_finds_a_flipped_bit_at_its_exact_place_in_a_long_log(
    spark: SparkSession, long_log: Path, tmp_path: Path
) -> None:
    node = Path(shutil.copytree(long_log, tmp_path / "n2"))
    store = stores(node)[1]
    position, index, size = frames(store)[17]
    flip(store, position + size - 9, 6)

    summary = timed("scrub", spark, lambda: scrub([str(node), str(long_log)], spark=spark))
    if RECORDS > CI_RECORDS:
        timed("scrub", None, lambda: scrub([str(node), str(long_log)]))

    [finding] = summary.findings
    assert (finding.node, finding.file, finding.position) == (str(node), f"log/{store.name}", position + size - 9)
    assert (finding.from_index, finding.to_index) == (index, index + BATCH)
    assert "bit 6 of this byte was flipped" in finding.reason
    assert [told.records for told in summary.nodes.values()] == [RECORDS, RECORDS]


def test_replay_finds_a_planted_wrong_result_at_its_exact_index_in_a_long_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    machine, stretches = Nearly(42), 8
    machine.wrong_at = RECORDS * 2 // 3 + 7
    run_cluster(
        tmp_path / "n1",
        machine,
        records=RECORDS,
        batch=BATCH,
        sessions=2 + 2 * RECORDS // stretches // SESSION_WINDOW,
        snapshots=stretches - 1,
        segment_bytes=SEGMENT_BYTES,
    )
    options = SourceOptions(path=str(tmp_path / "n1"))

    summary = timed("replay", spark, lambda: replay(options, spark=spark))
    if RECORDS > CI_RECORDS:
        timed("replay", None, lambda: replay(options))

    assert summary.difference is not None
    assert summary.difference.first_index == machine.wrong_at
    assert (summary.stretches, summary.checked) == (stretches, stretches - 2)


def test_what_a_task_finds_is_raised_with_its_values(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "n1"
    grow(log, 0, 50)
    position, index, _ = frames(stores(log)[0])[3]
    flip(stores(log)[0], position + HEADER_BYTES, 0)

    with pytest.raises(FrameCorrupt) as raised:
        archive(SourceOptions(path=str(log)), str(tmp_path / "archive"), spark=spark)
    assert raised.value.position == position
    with pytest.raises(FileNotFoundError) as missing:
        list(spread(spark, os.listdir, [str(tmp_path / "nothing")]))
    assert missing.value.filename == str(tmp_path / "nothing")
    assert index == 3


# The command line


def quire_spark(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `quire spark`, in this process and its Spark."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_command_line_goes_on_archiving_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path, pauses = tmp_path / "log", tmp_path / "archive", []
    with writing(log) as writer:
        append_and_flush(writer, [1], [2])

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:
                append_and_flush(writer, [3])
            elif len(pauses) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("quire.pipeline.cli.sleep", pause)
        monkeypatch.setattr("quire.pipeline.cli.queue_standard_streams", lambda: None)  # Of the tests' process.
        code, said, _ = quire_spark("archive", path, "--path", log, "--every", 60, "--json")

    assert (code, pauses) == (0, [60, 60, 60])
    ranges = [(one["from_index"], one["to_index"]) for one in map(json.loads, said.splitlines())]
    assert ranges == [(0, 2), (2, 3)]  # The second pause brought nothing.


def test_the_command_line_goes_on_after_an_outage_says_its_lag_and_ends_at_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path, pauses = tmp_path / "log", tmp_path / "archive", []
    outages = [ClusterUnavailable("its members", 60, {"n1:7001": "connection refused"})]

    def unreachable_once(*arguments: Any, **named: Any) -> ArchiveSummary:
        if outages:
            raise outages.pop()
        return archive(*arguments, **named)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            stop: Any = signal.getsignal(signal.SIGTERM)
            stop(signal.SIGTERM, None)

    with writing(log) as writer:
        append_and_flush(writer, [1], [2])
        monkeypatch.setattr("quire.pipeline.jobs.archive", unreachable_once)
        monkeypatch.setattr("quire.pipeline.cli.sleep", pause)
        monkeypatch.setattr("quire.pipeline.cli.queue_standard_streams", lambda: None)  # Of the tests' process.
        code, said, complained = quire_spark("archive", path, "--path", log, "--every", 60, "--json")

    assert (code, json.loads(said)["records"], len(pauses)) == (0, 2, 2)
    outage, reached = complained.splitlines()
    assert outage.startswith(
        "quire: no node returned its members within 60 s (n1:7001: connection refused); no run has "
    )
    assert reached.startswith("quire: the log is reachable again: 2 records were archived, after ")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("url", ["s3://bucket/x", "file:///tmp/x"])
def test_a_job_refuses_a_url_and_makes_no_folder_of_that_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    with writing(log) as writer:
        append_and_flush(writer, [1])
    options = SourceOptions(path=str(log))

    for job in (
        lambda: archive(options, url),
        lambda: report(options, url),
        lambda: scrub([url]),
        lambda: replay(SourceOptions(path=url)),
        lambda: archive(SourceOptions(path=str(log), archive=url), "archive"),
    ):
        with pytest.raises(OptionRefused, match="is a URL; "):
            job()
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.full
@pytest.mark.usefixtures("spark")
def test_the_command_line_archives_and_scrubs(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "archive"
    with writing(log) as writer:
        append_and_flush(writer, *[[number] for number in range(100)])

    code, said, _ = quire_spark("archive", path, "--path", log, "--spark")
    assert (code, said.splitlines()[0]) == (0, "100 records, [0, 100), in 4 new files")
    code, said, _ = quire_spark("archive", path, "--path", log, "--json")
    assert (code, json.loads(said)["records"]) == (0, 0)
    code, said, _ = quire_spark("scrub", "--path", log, "--path", path, "--spark")
    assert code == 0
    assert said.splitlines()[-1].startswith("whole, and the same on each; ")

    flip(stores(log)[0], 64 + 64, 0)
    code, said, _ = quire_spark("scrub", "--path", log, "--json")
    assert code == 1
    [finding] = json.loads(said)["findings"]
    assert (finding["position"], finding["from_index"]) == (128, 0)


@pytest.mark.full
@pytest.mark.usefixtures("spark")  # Spark starts here, so not beside others.
def test_the_command_line_s_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    with writing(tmp_path / "n1") as writer:
        append_and_flush(writer, [1])
    (tmp_path / "json.py").write_text("from pathlib import Path; Path('imported').touch()")

    command = [sys.executable, "-P", "-m", "quire.cluster.cli.main", "spark", "scrub", "--path", "n1", "--on", "local"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=False, timeout=120)

    assert not (tmp_path / "imported").exists()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["archive", "nowhere"], 2, "give either path, a node's data_dir, or bootstrap"),
        (["archive", "{tmp}/archive", "--path", "{tmp}"], 1, "holds no log of quire"),
        (["scrub"], 2, "name data_dirs and archives"),
        (
            ["archive", "s3://bucket/x", "--path", "{tmp}"],
            2,
            "'s3://bucket/x' is a URL; quire reads and writes folders",
        ),
        (["archive", "file:///x", "--path", "{tmp}"], 2, "give the path without it: /x"),
        (["report", "gs://bucket/x", "--path", "{tmp}"], 2, "option folder: 'gs://bucket/x' is a URL"),
        (["scrub", "--path", "s3://bucket/x"], 2, "option path: 's3://bucket/x' is a URL"),
        (["replay", "--path", "{tmp}", "--archive", "s3://bucket/x"], 2, "option archive: 's3://bucket/x' is a URL"),
        (["scrub", "--bootstrap", "nowhere"], 2, "must be HOST:PORT"),
        (["scrub", "--path", "{tmp}", "--conf", "nothing"], 2, "takes KEY=VALUE"),
    ],
)
def test_what_goes_wrong_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    found, said, complained = quire_spark(*[argument.format(tmp=tmp_path) for argument in arguments])

    assert (found, said) == (code, "")
    assert complained.count("\n") == 1
    assert says in complained


# Each starts a Spark of its own, so not beside others.


def spark_of_its_own(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire.cluster.cli.main", "spark", *map(str, arguments)]
    own = environment() | {"SPARK_LOCAL_IP": "127.0.0.1"} | variables
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter with Spark alone, which Spark itself puts on its path."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.usefixtures("spark")
def test_an_address_of_no_spark_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    with writing(tmp_path / "n1") as log:
        append_and_flush(log, [1])

    ended = spark_of_its_own("scrub", "--path", tmp_path / "n1", "--on", "nonsense://x")

    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    assert "Spark does not start (SparkException: Master must " in ended.stderr
    assert "--on is nonsense://x; check that" in ended.stderr


@pytest.mark.full
@pytest.mark.usefixtures("spark")
def test_a_spark_that_does_not_answer_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    with writing(tmp_path / "n1") as log:
        append_and_flush(log, [1])

    ended = spark_of_its_own("scrub", "--path", tmp_path / "n1", "--on", "spark://127.0.0.1:1")

    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    assert "--on is spark://127.0.0.1:1; check that" in ended.stderr


@pytest.mark.parametrize("lacks", ["itself", pytest.param("quire", marks=pytest.mark.full)])
@pytest.mark.usefixtures("spark")
def test_a_wrong_interpreter_of_the_workers_is_one_sentence_that_names_it(
    tmp_path: Path, bare_python: str, lacks: str
) -> None:
    with writing(tmp_path / "n1") as log:
        append_and_flush(log, [1])
    python = bare_python if lacks == "quire" else "/nonexistent"

    ended = spark_of_its_own("scrub", "--path", tmp_path / "n1", "--on", "local[1]", PYSPARK_PYTHON=python)

    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    why = "ModuleNotFoundError: No module named" if lacks == "quire" else "No such file or directory"
    assert f"{why}" in ended.stderr
    assert f"its workers run PYSPARK_PYTHON, {python}, which must be" in ended.stderr


CONNECTED = """
import os, sys
from pyspark.sql import SparkSession
from quire.cluster.cli.main import main
from quire.pipeline.jobs import archive, replay, report, scrub
from quire.pipeline.pieces import spread
from quire.pipeline.source.options import SourceOptions

log, folder = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.Builder().remote("local[2]").getOrCreate()
assert not hasattr(spark, "sparkContext")
options = SourceOptions(path=log)
print(archive(options, folder + "/archive", spark=spark).records)
print(scrub([log, folder + "/archive"], spark=spark).verdict)
print(replay(options, spark=spark).checked)
print(report(options, folder + "/report", spark=spark).records)
print(sorted(spread(spark, len, [b"", b"1", b"22", b"333", b"4444", b"55555", b"666666"])))
try:
    list(spread(spark, os.listdir, [folder + "/nothing"]))
except FileNotFoundError as error:
    print(error.filename == folder + "/nothing")
sys.argv = ["quire", "spark", "scrub", "--path", log, "--on", "sc://localhost"]
try:
    main()
finally:
    spark.stop()  # Its server, too, which would keep this process's pipes open.
"""


@pytest.mark.usefixtures("spark")
@pytest.mark.full
def test_every_job_runs_on_spark_connect(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(), records=100)

    command = [sys.executable, "-c", CONNECTED, str(tmp_path / "n1"), str(tmp_path)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=400)

    assert ended.returncode == 0, ended.stderr
    *said, walked, verdict = ended.stdout.splitlines()
    outcomes = [Outcome(size, size) for size in range(7)]
    assert said == ["100", "whole, and the same on each", "4", "100", str(outcomes), "True"]
    assert "100 records" in walked
    assert verdict.startswith("whole; ")
