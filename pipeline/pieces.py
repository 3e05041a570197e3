"""Shared by all jobs: splitting the log into pieces at frame boundaries, and running them on Spark or in this process.

With a Spark session, each piece is a Spark job of one task, and about as many run at a time as Spark has cores. So a
result is available as soon as its piece is done, which progress and partial results need, and the first piece that
fails ends the job. An error in a task is raised here as the task raised it, with its values.

A piece travels in the function of a `mapInArrow` over one row, and its result in a binary column, both pickled: a
session of Spark Connect has no `sparkContext`, but it has this.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import pyarrow as pa

from quire.log import LogError
from quire.sm import MachineError

from .errors import OptionRefused, PipelineError
from .origin.origin import Origin
from .source.options import SourceOptions, parse_path
from .source.reading import LogPartition, held_stretches, partitions_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARALLEL_ROWS = 1 << 16
"""Spark splits a range of so many rows into a partition for each core; no cluster has more of them."""

Piece = TypeVar("Piece")
Result = TypeVar("Result")

OWN_ERRORS = (PipelineError, LogError, MachineError)

Progress = Callable[[int, int], None]
"""Called with (done, total), in records."""


def no_progress(_done: int, _total: int) -> None:
    """The default of a job's `progress`: report nothing."""


def refuse_ranges(options: SourceOptions) -> None:
    """Raise OptionRefused if the options select a part of the log: a job covers all of it."""
    for name in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
        if getattr(options, name) != getattr(SourceOptions(), name):
            raise OptionRefused(name, "this job covers the whole log; leave it out")


def absolute(options: SourceOptions) -> SourceOptions:
    """The same options with absolute paths: tasks have another working directory. Raises OptionRefused for a URL."""
    path = None if options.path is None else absolute_path(options.path, "path")
    archive = None if options.archive is None else absolute_path(options.archive, "archive")
    return replace(options, path=path, archive=archive)


def absolute_path(path: str, name: str) -> str:
    """A folder's absolute path; `name` is that of the argument. Raises OptionRefused: it is a URL, or empty."""
    return os.path.abspath(parse_path(path, name))


def whole_frames(origin: Origin, options: SourceOptions, from_index: int, to_index: int) -> list[LogPartition]:
    """The records between two frame boundaries as partitions of whole frames.

    A partition is a segment of a data_dir, some files of an archive, or at most 64 MiB of a cluster's log.

    Raises:
        ClusterUnavailable, RecordsLost: from the origin.
    """
    return partitions_of(origin, origin.cluster_id(), held_stretches(options, origin, from_index, to_index))


class Outcome(NamedTuple, Generic[Result]):
    """The result of one piece."""

    place: int
    """The piece's number in the list of pieces."""
    result: Result


class _Raised(NamedTuple):
    """An error on its way from an executor: pickle does not restore an exception that takes values."""

    kind: type[Exception]
    text: tuple[object, ...]
    values: dict[str, object]

    def error(self) -> Exception:
        if issubclass(self.kind, OSError):
            return self.kind(*self.text)
        error = self.kind.__new__(self.kind)
        error.args = self.text
        error.__dict__.update(self.values)
        return error


def spread(
    spark: SparkSession | None, work: Callable[[Piece], Result], pieces: Sequence[Piece]
) -> Iterator[Outcome[Result]]:
    """Run `work` on each piece; yield outcomes as they finish, not in order.

    `work` and the pieces are pickled to executors. Without Spark, the pieces run here, one after another. If the caller
    stops iterating, pieces that have started still finish; their outcomes are lost.

    Raises:
        The errors of `work`, as soon as they arrive here.
    """
    if spark is None:
        for place, piece in enumerate(pieces):
            yield Outcome(place, work(piece))
        return
    cores = len(spark.range(PARALLEL_ROWS).mapInArrow(_ready, "result binary").collect())

    def run(piece: Piece) -> Result | _Raised:
        [row] = spark.range(0, 1, 1, 1).mapInArrow(partial(_guarded, work, piece), "result binary").collect()
        result: Result | _Raised = pickle.loads(row.result)  # noqa: S301  # The task has just pickled it.
        return result

    waiting = iter(enumerate(pieces))
    running: dict[Future[Result | _Raised], int] = {}
    with ThreadPoolExecutor(cores, thread_name_prefix="quire-job") as pool:
        try:
            while True:
                # More than there are cores, so that no core waits for the driver; not all, since one may fail.
                for place, piece in waiting:
                    running[pool.submit(run, piece)] = place
                    if len(running) >= 2 * cores:
                        break
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    place, result = running.pop(future), future.result()
                    if isinstance(result, _Raised):
                        raise result.error()
                    yield Outcome(place, result)
        finally:
            for future in running:
                future.cancel()


def _ready(_rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each partition. Spark imports this module to run it: a worker without quire ends the job here."""
    yield _one_row(b"")


def _guarded(
    work: Callable[[Piece], Result], piece: Piece, _rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    result: Result | _Raised
    try:
        result = work(piece)
    except OSError as error:
        result = _Raised(type(error), (error.errno, error.strerror, error.filename), {})
    except OWN_ERRORS as error:
        result = _Raised(type(error), error.args, dict(error.__dict__))
    yield _one_row(pickle.dumps(result))


def _one_row(result: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([result], pa.binary())], ["result"])
