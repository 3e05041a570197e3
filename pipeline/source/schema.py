"""The columns of a log, as Spark sees them."""

from __future__ import annotations

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
"""Every column by its name; `docs/pipeline.md` says what each holds."""


class SchemaRefused(PipelineError):
    """A schema that the user gave names a column that there is not, or gives one another type."""

    def __init__(self, field: StructField) -> None:
        known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
        super().__init__(f"there is no column {field.name} {field.dataType.simpleString()}; a log has {known}")
        self.field = field


def full_schema(*, headers: bool) -> StructType:
    """Every column, in order; the headers where they are asked for."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != HEADERS])


def check_schema(schema: StructType) -> None:
    """Refuse a schema that is no choice of the columns.

    Raises:
        SchemaRefused: with the field that does not fit.
    """
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None or kind.simpleString() != field.dataType.simpleString():
            raise SchemaRefused(field)
