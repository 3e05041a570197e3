"""`spark.read.format("quire")` and `spark.readStream.format("quire")`: what Spark calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from .errors import OptionRefused
from .options import SourceOptions
from .origin import Origin, split
from .reading import StretchPartition, ending_index, open_origin, read_stretch, servers_of, starting_index
from .schema import check_schema, full_schema
from .stream import LogStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_NAME = "quire"


class QuireSource(DataSource):
    """The log of a cluster as a table; docs/pipeline.md has its columns and options."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        return full_schema(headers=SourceOptions.parse(self.options, streaming=False).includeHeaders)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return LogReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_schema(schema)
        return LogStreamReader(SourceOptions.parse(self.options, streaming=True), schema)


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
