"""`spark.read.format("quire")` and `spark.readStream.format("quire")`: what Spark calls.

Light to import, for each new session of Spark does so in a worker, whether it reads a log or not: numpy and pyarrow
come with the readers.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ..sink.options import SinkOptions
from .options import SourceOptions
from .schema import check_schema, full_schema

SOURCE_NAME = "quire"


class QuireSource(DataSource):
    """The log of a cluster as a table; docs/pipeline.md has its columns and options."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        return full_schema(headers=SourceOptions.parse(self.options, streaming=False).includeHeaders)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch import LogReader  # noqa: PLC0415

        check_schema(schema)
        return LogReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from .stream import LogStreamReader  # noqa: PLC0415

        check_schema(schema)
        return LogStreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ..sink.sink import LogWriter  # noqa: PLC0415 - it brings the client, which no reader needs

        return LogWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ..sink.sink import LogStreamWriter  # noqa: PLC0415

        return LogStreamWriter(SinkOptions.parse(self.options, streaming=True), schema, overwrite=overwrite)
