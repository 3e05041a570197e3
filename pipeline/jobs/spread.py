"""Work in pieces: on the executors of a Spark, or, without one, in this process, piece after piece.

A piece is a job of its own, of one task, and as many run at a time as Spark has cores: so each result is there as soon
as it is made, for progress and for what is kept of it, and a piece that fails ends all. What a piece raises is raised
here as it was raised there, with its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from quire.log import LogError
from quire.sm import MachineError

from ..errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Piece = TypeVar("Piece")
Result = TypeVar("Result")

OWN_ERRORS = (PipelineError, LogError, MachineError)


class Outcome(NamedTuple, Generic[Result]):
    """What came of a piece."""

    place: int
    """Of the piece among all."""
    result: Result


class _Raised(NamedTuple):
    """An error on its way from an executor: an exception with values does not go through pickle by itself."""

    kind: type[Exception]
    text: tuple[Any, ...]
    values: dict[str, Any]

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
    """The outcome of `work` for each piece, as they come; one of them alone may be lost when this is given up.

    `work` and the pieces go to executors by pickle.

    Raises:
        What `work` raises, as soon as it is known here; pieces that have begun are left to end.
    """
    if spark is None:
        for place, piece in enumerate(pieces):
            yield Outcome(place, work(piece))
        return
    context = spark.sparkContext
    cores = max(1, context.defaultParallelism)

    def run(piece: Piece) -> Any:
        [result] = context.parallelize([piece], 1).map(lambda each: _guarded(work, each)).collect()
        return result

    waiting = iter(enumerate(pieces))
    running: dict[Future[Any], int] = {}
    with ThreadPoolExecutor(cores, thread_name_prefix="quire-job") as pool:
        try:
            while True:
                # A few more than there are cores, so that none of them waits for the driver; not all: one may fail.
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


def _guarded(work: Callable[[Piece], Result], piece: Piece) -> Result | _Raised:
    try:
        return work(piece)
    except OSError as error:
        return _Raised(type(error), (error.errno, error.strerror, error.filename), {})
    except OWN_ERRORS as error:
        return _Raised(type(error), error.args, dict(error.__dict__))
