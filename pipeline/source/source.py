"""The data source that Spark calls for `format("quire")`, and the columns of a log.

This module must stay light to import: each new Spark session imports it in a worker, whether it reads a log or not.
numpy and pyarrow are imported with the readers.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..errors import PipelineError
from ..sink.options import SinkOptions
from .options import SourceOptions

HEADERS = "headers"

COLUMNS: dict[str, DataType] = {
    "index": LongType(),
    "epoch": LongType(),
    "timestamp": TimestampType(),
    "kind": StringType(),
    "session": LongType(),
    "sequence": LongType(),
    "value": BinaryType(),
    "command": StringType(),
    HEADERS: MapType(StringType(), StringType()),
    "segment": LongType(),
}
"""Every column by name; `docs/pipeline.md` says what each holds."""


class SchemaRefused(PipelineError):
    """The user's schema has no column, names an unknown one, or gives a column another type."""

    def __init__(self, field: StructField | None) -> None:
        known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
        reason = "a schema has at least one column"
        if field is not None:
            reason = f"there is no column {field.name} {field.dataType.simpleString()}"
        super().__init__(f"{reason}; a log has {known}")
        self.field = field


def full_schema(*, headers: bool) -> StructType:
    """Every column, in order; `headers` includes the column of headers."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != HEADERS])


def check_schema(schema: StructType) -> None:
    """Check that a schema selects from the columns.

    Raises:
        SchemaRefused: a field does not match any column, or there is none: a batch without columns has no rows.
    """
    if not schema.fields:
        raise SchemaRefused(None)
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None or kind.simpleString() != field.dataType.simpleString():
            raise SchemaRefused(field)


SOURCE_NAME = "quire"


class QuireSource(DataSource):
    """The log of a cluster as a table; `docs/pipeline.md` has its columns and options."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        return full_schema(headers=SourceOptions.parse(self.options, streaming=False).includeHeaders)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .readers import LogReader  # noqa: PLC0415

        check_schema(schema)
        return LogReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from .readers import LogStreamReader  # noqa: PLC0415

        check_schema(schema)
        return LogStreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ..sink.sink import LogWriter  # noqa: PLC0415 - it brings the client, which no reader needs

        return LogWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ..sink.sink import LogStreamWriter  # noqa: PLC0415

        return LogStreamWriter(SinkOptions.parse(self.options, streaming=True), schema, overwrite=overwrite)
