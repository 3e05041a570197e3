"""The stream: Spark asks how far the log has come, cuts batches to the limits, and keeps what it has done in a
checkpoint. Restarted, it goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..errors import CheckpointAhead, ForeignLog
from ..origin.origin import Bounds, Origin, split
from .offsets import Offset
from .options import SourceOptions
from .reading import (
    StretchPartition,
    ending_index,
    held_index,
    open_origin,
    read_stretch,
    servers_of,
    starting_index,
)

if TYPE_CHECKING:
    import pyarrow as pa


LOOK_AGAIN_S = 0.05
"""At a log that has not come to where the stream stands."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream, in one process for as long as it runs, and, in others, reads their parts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._origin: Origin | None = None
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins."""
        origin = self._opened()
        index = starting_index(self._options, origin, origin.bounds())
        return Offset(origin.cluster_id(), index).to_document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options limit a batch to. (Of two limits Spark carries one; the other is looked up here.)"""
        options = self._options
        if options.maxOffsetsPerTrigger is not None:
            return ReadMaxRows(options.maxOffsetsPerTrigger)
        if options.maxBytesPerTrigger is not None:
            return ReadMaxBytes(options.maxBytesPerTrigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch that begins at `start` is to end.

        Raises:
            ForeignLog, OffsetInvalid: the checkpoint is of another log.
            RecordsLost: what comes next has expired.
            CheckpointAhead: the log ends before `start`.
        """
        origin, offset = self._checked(start)
        bounds = self._bounds_past(origin, offset.index)
        start_index = held_index(self._options, origin, bounds, offset.index, bounds.highest_index)
        end = max(offset.index, self._end(origin, bounds))
        return Offset(offset.cluster, self._limited(origin, start_index, end, limit)).to_document()

    def _end(self, origin: Origin, bounds: Bounds) -> int:
        """How far the stream may go at this moment."""
        end = bounds.highest_index if self._target is None else min(bounds.highest_index, self._target)
        return min(end, ending_index(self._options, origin, bounds))

    def _limited(self, origin: Origin, start: int, end: int, limit: ReadLimit) -> int:
        max_bytes = None if isinstance(limit, ReadAllAvailable) else self._options.maxBytesPerTrigger
        if isinstance(limit, ReadMaxRows):
            end = min(end, start + limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_bytes is not None and start < end:
            end = origin.index_behind(start, end, max_bytes)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the log has come, whatever the limits are: for the query's progress."""
        origin = self._opened()
        return Offset(origin.cluster_id(), origin.bounds().highest_index).to_document()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how far the log has come: this query reads no farther."""
        self._target = self._opened().bounds().highest_index

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch's parts."""
        origin, offset = self._checked(start)
        to_index = Offset.from_document(end).index
        from_index = held_index(self._options, origin, self._bounds_past(origin, to_index), offset.index, to_index)
        stretches = split(origin.stretches(from_index, to_index), self._options.minPartitions)
        servers = servers_of(origin)
        return [StretchPartition(stretch, offset.cluster, servers, turn) for turn, stretch in enumerate(stretches)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        if isinstance(partition, StretchPartition):
            yield from read_stretch(self._options, self._schema, partition)

    def stop(self) -> None:
        """Hang up: the query has ended."""
        if self._origin is not None:
            self._origin.close()

    def _opened(self) -> Origin:
        if self._origin is None:
            self._origin = open_origin(self._options)
        return self._origin

    def _bounds_past(self, origin: Origin, index: int) -> Bounds:
        """The log's bounds, once it has come to an index that the stream has seen.

        What one node has shown another may learn only a moment later that it is committed, where the first one died.
        """
        deadline = time.monotonic() + self._options.fetchTimeoutMs / 1000
        while (bounds := origin.bounds()).highest_index < index:
            if time.monotonic() > deadline:
                raise CheckpointAhead(origin.name, index, bounds.highest_index)
            time.sleep(LOOK_AGAIN_S)
        return bounds

    def _checked(self, start: dict[str, Any]) -> tuple[Origin, Offset]:
        """The log, which must be the one that the stream has read so far."""
        origin, offset = self._opened(), Offset.from_document(start)
        found = origin.cluster_id()
        if found != offset.cluster:
            raise ForeignLog(origin.name, found, offset.cluster)
        return origin, offset
