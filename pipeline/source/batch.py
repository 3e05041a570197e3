"""The batch read: the driver plans the tasks, and each of them reads a stretch of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..errors import OptionRefused
from ..origin.origin import Origin, split
from .options import SourceOptions
from .reading import StretchPartition, ending_index, open_origin, read_stretch, servers_of, starting_index

if TYPE_CHECKING:
    import pyarrow as pa


class LogReader(DataSourceReader):
    """Plans the tasks of a batch read, and, as another object in another process, reads one."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """A list; each partition's records lie in one segment."""
        with closing(open_origin(self._options)) as origin:
            return self._planned(origin)

    def _planned(self, origin: Origin) -> Sequence[InputPartition]:
        options = self._options
        cluster_id, bounds = origin.cluster_id(), origin.bounds()
        start = starting_index(options, origin, bounds)
        end = ending_index(options, origin, bounds)
        if end > bounds.highest_index:
            raise OptionRefused("endingOffsets", f"index {end} lies beyond the log's end, {bounds.highest_index}")
        stretches = split(origin.stretches(start, end), options.minPartitions)
        servers = servers_of(origin)
        return [StretchPartition(stretch, cluster_id, servers, turn) for turn, stretch in enumerate(stretches)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; of none where nothing was to be read, for Spark makes an empty list one None."""
        if isinstance(partition, StretchPartition):
            yield from read_stretch(self._options, self._schema, partition)
