"""The data source that Spark calls for `format("quire")`, and the columns of a log.

This module must stay light to import: each new Spark session imports it in a worker, whether it reads a log or not.
numpy and pyarrow are imported with the readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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
from .options import SourceOptions, path_of_file_url

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


def table_options(given: Mapping[str, str]) -> Mapping[str, str]:
    """The user's options of CREATE TABLE; `given` itself if Spark is not creating a table.

    Spark adds the table's properties (`owner`, `provider`, `comment`, any of TBLPROPERTIES), and repeats each option as
    `option.NAME`, except the path, which becomes a URL in `location`.
    """
    if "provider" not in given:
        return given
    options = {name.removeprefix(MARK): text for name, text in given.items() if name.startswith(MARK)}
    if "location" in given:
        options["path"] = path_of_file_url(given["location"]) or given["location"]
    return options


def keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table with its options in the first column's metadata.

    Spark gives a Python source the options of CREATE TABLE only while it creates the table. Of what it keeps in the
    catalog, a read gets the schema alone.
    """
    first, *others = schema.fields
    metadata = {TABLE_OPTIONS: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def kept_options(schema: StructType, given: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a read: those of the table, if it is a table's and names no log, and over them the given ones.

    A DataFrame's schema keeps its metadata, so a read that names a log takes nothing from it.
    """
    kept = [field.metadata[TABLE_OPTIONS] for field in schema.fields if TABLE_OPTIONS in field.metadata]
    if not kept or {"path", "bootstrap"} & {name.lower() for name in given}:
        return given
    return {**json.loads(kept[0]), **given}


SOURCE_NAME = "quire"
MARK = "option."
TABLE_OPTIONS = "quire.options"


class QuireSource(DataSource):
    """The log of a cluster as a table; `docs/pipeline.md` has its columns and options."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        given = table_options(self.options)
        schema = full_schema(headers=SourceOptions.parse(given, streaming=False).includeHeaders)
        return schema if given is self.options else keeping(schema, given)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .readers import LogReader  # noqa: PLC0415

        check_schema(schema)
        return LogReader(SourceOptions.parse(kept_options(schema, self.options), streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from .readers import LogStreamReader  # noqa: PLC0415

        check_schema(schema)
        return LogStreamReader(SourceOptions.parse(kept_options(schema, self.options), streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ..sink.sink import LogWriter  # noqa: PLC0415 - it brings the client, which no reader needs

        return LogWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ..sink.sink import LogStreamWriter  # noqa: PLC0415

        return LogStreamWriter(SinkOptions.parse(self.options, streaming=True), schema, overwrite=overwrite)
