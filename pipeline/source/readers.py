"""The batch and the streaming reader: what Spark calls on the driver to plan a read, and in tasks to run it.

Spark keeps a stream's offsets in the query's checkpoint; a restarted query continues from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quire.log.packing import Skimmer

from ..errors import CheckpointAhead, ClusterUnavailable, ForeignLog, LogRewritten, OptionRefused, RecordsLost
from ..origin.columns import HEADER_COLUMNS, batches_of
from ..origin.origin import Bounds, Origin
from ..origin.rows import Rows
from .offsets import Offset, OffsetInvalid
from .options import SourceOptions
from .reading import (
    LogPartition,
    ending_index,
    held_index,
    held_stretches,
    open_origin,
    origin_of,
    partitions_of,
    starting_index,
)

if TYPE_CHECKING:
    import pyarrow as pa

LOG_POLL_S = 0.05
"""The interval between two checks of a log that ends before the stream's offset."""

_journal = logging.getLogger(__name__)


class LogReader(DataSourceReader):
    """A batch read. Spark plans with one instance and reads each partition with a copy in another process."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the read. The records of each lie in one segment."""
        with closing(open_origin(self._options)) as origin:
            return self._planned(origin)

    def _planned(self, origin: Origin) -> Sequence[InputPartition]:
        options = self._options
        cluster_id, bounds = origin.cluster_id(), origin.bounds()
        start = starting_index(options, origin, bounds)
        end = ending_index(options, origin, bounds)
        if end > bounds.highest_index:
            raise OptionRefused("endingOffsets", f"index {end} is past the end of the log, {bounds.highest_index}")
        planned = partitions_of(origin, cluster_id, held_stretches(options, origin, start, end, options.minPartitions))
        return [InputPartition(each) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Spark replaces an empty list of partitions with one of None, which has no rows."""
        if partition.value is not None:
            yield from read_partition(self._options, self._schema, partition.value)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. One instance plans all batches of a query; copies in other processes read the partitions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._origin: Origin | None = None
        self._target: int | None = None
        self._planned_to: int | None = None

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts: the place that the options name, which is not looked up yet.

        Spark calls this twice in the first batch, and again when it repeats that batch.
        """
        return Offset(self._opened().cluster_id(), None).to_document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a batch. Spark carries only one; `_limited` applies the other."""
        options = self._options
        if options.maxOffsetsPerTrigger is not None:
            return ReadMaxRows(options.maxOffsetsPerTrigger)
        if options.maxBytesPerTrigger is not None:
            return ReadMaxBytes(options.maxBytesPerTrigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The end of the batch that starts at `start`; the end of a query's first batch holds where it began.

        Raises:
            ForeignLog, OffsetInvalid: the checkpoint is of another log.
            RecordsLost: the next records have expired.
            CheckpointAhead: the log ends before `start`.
            ClusterUnavailable: no node has what the trigger AvailableNow is to read.
            OptionRefused: the query would begin at a place that is not there; see `starting_index`.
        """
        origin, offset = self._checked(start)
        from_index, began = offset.index, None
        if from_index is None:
            from_index = began = starting_index(self._options, origin, origin.bounds())
        bounds = self._bounds_to_read(origin, from_index)
        start_index = held_index(self._options, origin, bounds, from_index, bounds.highest_index)
        end = self._limited(origin, start_index, max(from_index, self._end(origin, bounds)), limit)
        self._planned_to = end
        if end == offset.index:
            return start  # Spark compares the text: there is no batch if it is the same, `began` included.
        crc = _crc32c_before(origin, end) if end > start_index else None
        return Offset(offset.cluster, end, began, crc).to_document()

    def _end(self, origin: Origin, bounds: Bounds) -> int:
        """How far the stream may read now."""
        end = bounds.highest_index if self._target is None else min(bounds.highest_index, self._target)
        return min(end, ending_index(self._options, origin, bounds))

    def _limited(self, origin: Origin, start: int, end: int, limit: ReadLimit) -> int:
        max_bytes = None if isinstance(limit, ReadAllAvailable) else self._options.maxBytesPerTrigger
        if isinstance(limit, ReadMaxRows):
            end = min(end, start + limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_bytes is not None and start < end:
            try:
                end = origin.index_within_bytes(start, end, max_bytes)
            except RecordsLost as lost:
                if self._options.failOnDataLoss:
                    raise
                end = lost.to_index  # The batch's task skips them.
        return end

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802
        """The end of the log, regardless of limits, the records up to there that are in no batch yet, and a name.

        Spark shows this in the query's progress and keeps it nowhere. A Python source can show nothing elsewhere: the
        description is an object's address, and there are no metrics.
        """
        origin = self._opened()
        end = origin.bounds(quick=True).highest_index
        shown: dict[str, object] = {"source": self._options.sourceName or origin.name}
        if self._planned_to is not None:
            shown["lag_records"] = max(0, end - self._planned_to)
        return Offset(origin.cluster_id(), end).to_document() | shown

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the log as the end of this query."""
        self._target = self._opened().bounds().highest_index

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """The tasks of one batch, which may have been planned and logged long ago.

        Raises:
            ForeignLog, OffsetInvalid: the checkpoint is of another log.
            RecordsLost: records of the batch have expired.
            CheckpointAhead: the log ends before `end`.
            OptionRefused: an earlier version planned it as a query's first, and the options say that it begins later.
        """
        # Of the first batch only the end is in the checkpoint, so it is the end that must be of this log.
        _, offset = self._checked(start)
        origin, until = self._checked(end)
        to_index = until.index
        if to_index is None:
            raise OffsetInvalid(end)
        from_index = until.began if offset.index is None else offset.index
        if from_index is None:
            from_index = self._begun_earlier(origin, to_index)
        bounds = self._bounds_past(origin, from_index, to_index)
        from_index = held_index(self._options, origin, bounds, from_index, to_index)
        stretches = held_stretches(self._options, origin, from_index, to_index, self._options.minPartitions)
        planned = partitions_of(origin, offset.cluster, stretches)
        if planned and from_index == offset.index:  # Otherwise the next records after the last one read have expired.
            planned[0] = planned[0]._replace(follows=offset.crc32c)
        return [InputPartition(each) for each in planned]

    def _begun_earlier(self, origin: Origin, to_index: int) -> int:
        """Where a first batch begins that an earlier version planned: where the options say, as it would have.

        Raises:
            OptionRefused: that is not before the batch's end, so its records would be skipped.
        """
        index = starting_index(self._options, origin, origin.bounds())
        is_named = index == self._options.startingOffsets
        if index > to_index or (index == to_index and not is_named):
            reason = (
                f"the first batch in the checkpoint, of an earlier version, ends at index {to_index}, and where it "
                f"began is not kept; it would begin at index {index} now, and its records would be skipped: "
                'set startingOffsets={"index": n} to where it began, until it is done'
            )
            raise OptionRefused("startingOffsets", reason)
        _journal.warning(
            "the checkpoint is of an earlier version and does not hold where its first batch began; "
            "it begins at index %d, where the options say",
            index,
        )
        return index

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        if partition.value is not None:
            yield from read_partition(self._options, self._schema, partition.value)

    def stop(self) -> None:
        """Close the log: the query has ended."""
        if self._origin is not None:
            self._origin.close()

    def _opened(self) -> Origin:
        if self._origin is None:
            self._origin = open_origin(self._options)
        return self._origin

    def _bounds_to_read(self, origin: Origin, from_index: int) -> Bounds:
        """The log's bounds, once they include what the trigger AvailableNow is to read: Spark takes a batch that ends
        where it starts for the end of the query.
        """
        wanted = from_index if self._target is None else self._target
        if isinstance(self._options.endingOffsets, int):
            wanted = min(wanted, self._options.endingOffsets)
        try:
            return self._bounds_past(origin, from_index, max(from_index, wanted))
        except CheckpointAhead as ahead:
            if ahead.highest_index < from_index:
                raise
            reasons = {origin.name: f"its log ends at {ahead.highest_index}"}
            what = f"the records up to index {wanted}, where this query ends,"
            raise ClusterUnavailable(what, self._options.fetchTimeoutMs / 1000, reasons) from None

    def _bounds_past(self, origin: Origin, from_index: int, index: int) -> Bounds:
        """The log's bounds, once they include an index that the stream has already seen.

        If the node that served the index has died, another may learn only a moment later that it is committed. No
        trigger waits for a node that is slow, unless all others end before `index`, or `from_index` has expired there.
        """
        deadline = time.monotonic() + self._options.fetchTimeoutMs / 1000
        bounds = origin.bounds(quick=True)
        while bounds.highest_index < index:
            if time.monotonic() > deadline:
                raise CheckpointAhead(origin.name, index, bounds.highest_index)
            time.sleep(LOG_POLL_S)
            bounds = origin.bounds()
        return bounds if bounds.lowest_index <= from_index else origin.bounds()

    def _checked(self, start: dict[str, object]) -> tuple[Origin, Offset]:
        """The log and the offset, after checking that the offset is of this log."""
        origin, offset = self._opened(), Offset.from_document(start)
        found = origin.cluster_id()
        if found != offset.cluster:
            raise ForeignLog(origin.name, found, offset.cluster)
        return origin, offset


def _crc32c_before(origin: Origin, index: int) -> int | None:
    try:
        return origin.crc32c_before(index)
    except RecordsLost:
        return None  # It has expired since the bounds were read; `partitions` reports that.


def read_partition(options: SourceOptions, schema: StructType, partition: LogPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task's partition as Arrow batches.

    Raises:
        RecordsLost: some have expired since the read was planned, or their segment is missing; failOnDataLoss is true.
        LogRewritten: the stretch follows another record than the last one that the stream has read.
        FrameCorrupt, ForeignLog, ClusterUnavailable: from the origin.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    needs_payloads = not HEADER_COLUMNS.issuperset(arrow_schema.names)
    left, unchecked = partition.stretch, partition.follows
    while left.from_index < left.to_index:
        try:
            with closing(origin_of(options, partition)) as origin:
                for rows in origin.rows(left, Skimmer() if needs_payloads else None):
                    if unchecked is not None:
                        _check_follows(origin.name, rows, left.from_index, unchecked)
                        unchecked = None
                    yield from batches_of(rows, arrow_schema, left.segment)
            return
        except RecordsLost as error:
            if options.failOnDataLoss:
                raise
            _journal.warning("%s", error)
            left, unchecked = left._replace(from_index=error.to_index), None


def _check_follows(origin: str, rows: Rows, index: int, expected: int) -> None:
    """Check that the record before `index` is in the frame with this crc32c, by the first rows, without a request."""
    frame = next(header for header, _ in rows.frames if header.next_index > index)
    found = frame.prev_crc32c if frame.index == index else frame.crc32c
    if found != expected:
        raise LogRewritten(origin, index, found, expected)
