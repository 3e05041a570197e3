"""Which rows executed, in three steps: tasks group rows into runs, the driver judges the runs, tasks mark the rows.

Whether a record executed depends on all earlier ones of its session, so it cannot be decided row by row. But a run,
rows of a session whose sequences rise by one, is judged as a whole: either the rows below the session's next sequence
are retries and the rest executed, or the whole run comes after a gap. Retries are rare, so there are few runs. A run
ends where the rows have a system record, which may open or close its session, or skip an index. So the order and the
partitions of the rows do not affect the result, only the number of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quire.log import decode_system
from quire.sm import SESSION_LIMITS, Executed, Sessions

from ..errors import MarkingRefused

RUNS = pa.schema(
    [
        ("first_index", pa.int64()),
        ("last_index", pa.int64()),
        ("timestamp", pa.int64()),
        ("session", pa.int64()),
        ("sequence", pa.int64()),
        ("count", pa.int64()),
        ("value", pa.binary()),
    ]
)
"""What tasks make of rows. With a session: a run. With a value: a system record. With neither: rows without a gap."""
RUNS_AT_ONCE = 65_536

Integers = NDArray[np.int64]


class Run(NamedTuple):
    """A line of RUNS. `sequence` is that of the first row, `timestamp` that of the last."""

    first_index: int
    last_index: int
    timestamp: int
    session: int
    sequence: int
    count: int  # type: ignore[assignment]  # Hides tuple.count, which is unused.
    value: bytes | None = None


def runs_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The runs, system records and gapless stretches of the rows of one partition, in no particular order.

    Batches have the columns index, timestamp, session, sequence and value: null if it is no system record's.
    """
    cutter = _Cutter()
    for batch in batches:
        if batch.num_rows:
            cutter.add(batch)
        if len(cutter.done) >= RUNS_AT_ONCE:
            yield _batch(cutter.taken())
    cutter.end()
    yield _batch(cutter.taken())


def _batch(runs: list[Run]) -> pa.RecordBatch:
    columns: Sequence[Sequence[object]] = list(zip(*runs, strict=True)) if runs else [()] * len(RUNS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RUNS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RUNS)


class _Cutter:
    """Cuts the rows of a partition into runs, batch by batch."""

    def __init__(self) -> None:
        self.done: list[Run] = []
        self._open: dict[int, Run] = {}  # By session.
        self._stretch: tuple[int, int] | None = None  # First and last index of the rows since the last gap.

    def taken(self) -> list[Run]:
        """Return the finished lines and forget them."""
        done, self.done = self.done, []
        return done

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows."""
        index, timestamp, session, sequence = map(_integers, batch.columns[:4])
        values = batch.column(4)
        is_system = values.is_valid().to_numpy(zero_copy_only=False)
        begins = is_system.copy()  # The rows that begin with new runs.
        begins[self._add_stretches(index)] = True
        for row in np.flatnonzero(is_system).tolist():
            at = int(index[row])
            self.done.append(Run(at, at, int(timestamp[row]), 0, 0, 1, values[row].as_py()))

        rows = np.flatnonzero((session != 0) & ~is_system)
        part = np.cumsum(begins)[rows]
        order = np.lexsort((rows, session[rows], part))
        rows, part = rows[order], part[order]
        of, number = session[rows], sequence[rows]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (of[1:] != of[:-1]) | (part[1:] != part[:-1])
        is_first[1:] |= (number[1:] != number[:-1] + 1) | (number[1:] == 0) | (number[:-1] == 0)
        bounds = [*np.flatnonzero(is_first).tolist(), len(rows)]
        present = 0
        for start, end in pairwise(bounds):
            first, last = rows[start], rows[end - 1]
            if part[start] != present:
                self._end_runs()
                present = part[start]
            begin, at, when = int(index[first]), int(index[last]), int(timestamp[last])
            self._add_run(Run(begin, at, when, int(of[start]), int(number[start]), end - start))
        if begins.sum() != present:
            self._end_runs()

    def end(self) -> None:
        """Finish: there are no more rows."""
        self._end_runs()
        if self._stretch is not None:
            self.done.append(Run(*self._stretch, 0, 0, 0, 0))

    def _end_runs(self) -> None:
        self.done += self._open.values()
        self._open.clear()

    def _add_run(self, run: Run) -> None:
        before = self._open.get(run.session)
        if before is not None and before.sequence and before.sequence + before.count == run.sequence != 0:
            count = before.count + run.count
            run = run._replace(first_index=before.first_index, sequence=before.sequence, count=count)
        elif before is not None:
            self.done.append(before)
        self._open[run.session] = run

    def _add_stretches(self, index: Integers) -> list[int]:
        """Note the gapless stretches; return the rows that do not follow the previous one."""
        gaps = (np.flatnonzero(np.diff(index) != 1) + 1).tolist()
        follows = self._stretch is not None and self._stretch[1] + 1 == index[0]
        for start, end in pairwise([0, *gaps, len(index)]):
            first, last = int(index[start]), int(index[end - 1])
            if self._stretch is not None and (start or not follows):
                self.done.append(Run(*self._stretch, 0, 0, 0, 0))
            elif self._stretch is not None:
                first = self._stretch[0]
            self._stretch = first, last
        return gaps if follows else [0, *gaps]


def _integers(column: pa.Array) -> Integers:
    integers: Integers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return integers


class Marks(NamedTuple):
    """What is known about the records [from_index, to_index): the runs with records that their session answered."""

    from_index: int
    to_index: int
    session: Integers
    first_index: Integers
    last_index: Integers
    answered_to: NDArray[np.uint64]
    """In this session's run from first_index to last_index, the records up to this sequence did not execute."""

    def executed(self, index: pa.Array, session: pa.Array, sequence: pa.Array) -> pa.Array:
        """Whether each record executed; null outside of the range. Not for system records."""
        at, of, number = _integers(index), _integers(session), _integers(sequence).view(np.uint64)
        known = (at >= self.from_index) & (at < self.to_index)
        executed = np.ones(len(at), bool)
        if len(at) and (near := (self.first_index <= at.max()) & (self.last_index >= at.min())).any():
            run = _latest(self.session[near], self.first_index[near], of, at)
            inside = (run >= 0) & (self.last_index[near][run] >= at)
            executed = ~(inside & (number <= self.answered_to[near][run]))
        buffers = [pa.py_buffer(np.packbits(bits, bitorder="little")) for bits in (known, executed)]
        return pa.BooleanArray.from_buffers(pa.bool_(), len(at), buffers)


def _latest(session: Integers, first_index: Integers, of: Integers, at: Integers) -> Integers:
    """For each record, of session `of` and at index `at`, the last run of its session that begins there or before.

    -1: there is none.
    """
    sessions, positions = np.concatenate((session, of)), np.concatenate((first_index, at))
    is_row = np.arange(len(sessions)) >= len(session)
    # By session, then by index, a run before the row where it begins.
    order = np.lexsort((is_row, positions, sessions))
    latest = np.maximum.accumulate(np.where(is_row[order], -1, np.arange(len(order))))
    run = order[np.maximum(latest, 0)]
    found = np.where((latest >= 0) & (sessions[run] == sessions[order]), run, -1)
    by_row = np.empty_like(found)
    by_row[order] = found
    return by_row[len(session) :]


def marks_of(runs: pa.Table) -> Marks:
    """Judge the runs of all rows, in the order of the log, as the applier judges its frames.

    Raises:
        MarkingRefused: rows are missing or duplicated.
        PayloadInvalid: a system record cannot be read.
    """
    is_stretch = (_integers(runs["session"]) == 0) & (_integers(runs["count"]) == 0)
    from_index, to_index = _range(*(_integers(runs[name])[is_stretch] for name in ("first_index", "last_index")))
    runs = runs.filter(pa.array(~is_stretch))
    runs = runs.take(np.argsort(_integers(runs["last_index"])))
    reader: Executed | None = None
    answered: list[tuple[int, int, int, int]] = []
    for batch in runs.to_batches():
        for run in map(Run, *(column.to_pylist() for column in batch.columns)):
            fields = None if run.value is None else decode_system(run.value)
            if reader is None:
                reader = Executed(_sessions(fields if run.last_index == 0 else None), from_index)
            if fields is not None:
                reader.take_system(run.last_index, run.timestamp, fields)
            else:
                sequence = run.sequence % 2**64
                count = reader.answered(run.first_index, run.timestamp, run.session, sequence, run.count)
                if count:
                    answered.append((run.session, run.first_index, run.last_index, sequence + count - 1))
    columns = list(zip(*answered, strict=True)) if answered else [()] * 4
    session, first, last = (np.array(column, np.int64) for column in columns[:3])
    return Marks(from_index, to_index, session, first, last, np.array(columns[3], np.uint64))


def _sessions(genesis: Mapping[str, object] | None) -> Sessions:
    """An empty table with the limits in the log's first record, if that was read."""
    found = None if genesis is None else genesis.get("limits")
    limits = found if isinstance(found, dict) else {}
    return Sessions(**{name: limits[name] for name in SESSION_LIMITS if name in limits})


def _range(first: Integers, last: Integers) -> tuple[int, int]:
    """The range of the rows, from their gapless stretches. Raises MarkingRefused: it has a gap, or an index twice."""
    first, last = np.sort(first), np.sort(last)
    if not len(first):
        return 0, 0
    if len(wrong := np.flatnonzero(last[:-1] + 1 != first[1:])):
        before, after = int(last[wrong[0]]), int(first[wrong[0] + 1])
        raise MarkingRefused(f"the row after index {before} has index {after}: mark all rows of a read, then select")
    return int(first[0]), int(last[-1]) + 1
