"""Tables and views of Spark SQL: what Spark passes of CREATE TABLE, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from quire.pipeline.errors import OptionRefused
from quire.pipeline.source.source import QuireSource
from tests.pipeline.logs import append_and_flush, writing

OF_SPARK = {"owner": "me", "provider": "quire", "external": "true", "comment": "of the orders", "any.property": "x"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with writing(tmp_path / "log") as written:
        append_and_flush(written, [["add", 1], ["add", 2], ["add", 3]])
    return tmp_path / "log"


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with a database of its own, whose tables are gone afterwards."""
    session = spark.newSession()
    session.sql(f"CREATE DATABASE tables LOCATION '{tmp_path / 'tables'}'")
    session.sql("USE tables")
    yield session
    session.sql("DROP DATABASE tables CASCADE")


def created(**options: str) -> StructType:
    """The schema of a table, made as Spark makes it: with properties beside the options."""
    marked = {f"option.{name}": text for name, text in options.items() if name != "path"}
    path = options.get("path")
    place = {} if path is None else {"path": f"file:{path}", "location": f"file:{path}"}
    return QuireSource({**OF_SPARK, **options, **marked, **place}).schema()


def test_a_table_keeps_its_options_for_reads_that_name_no_log(log: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "other") as other:
        append_and_flush(other, [1] * 9)
    schema = created(path=str(log), startingoffsets="1")

    def count(**given: str) -> int:
        reader = QuireSource(given).reader(schema)
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))  # type: ignore[union-attr]

    assert count() == 2
    assert count(endingOffsets="2") == 1
    assert count(startingOffsets="0") == 3
    assert count(path=str(tmp_path / "other")) == 9


def test_a_misspelled_option_of_a_table_is_refused_and_properties_are_not() -> None:
    with pytest.raises(OptionRefused, match="startingofsets: is unknown"):
        created(path="/log", startingofsets="1")
    with pytest.raises(OptionRefused, match="owner: is unknown"):
        QuireSource({"path": "/log", "owner": "me"}).schema()
    assert json.loads(created(bootstrap="n1:7001").fields[0].metadata["quire.options"]) == {"bootstrap": "n1:7001"}


def test_a_read_of_columns_that_are_no_table_s_has_no_options_but_its_own() -> None:
    with pytest.raises(OptionRefused, match="give either path"):
        QuireSource({}).reader(StructType([StructField("value", BinaryType())]))


def test_a_table_of_spark_sql_is_read_by_name(sql: SparkSession, log: Path) -> None:
    sql.sql(f"CREATE TABLE orders USING quire OPTIONS (path '{log}', startingOffsets '1') COMMENT 'some' ")

    assert [row["command"] for row in sql.sql("SELECT command FROM orders ORDER BY index").collect()] == [
        '["add",2]',
        '["add",3]',
    ]
    assert sql.sql("SELECT count(*) AS n FROM orders WITH ('endingOffsets' = '2')").collect()[0]["n"] == 1
    assert sql.readStream.table("orders").isStreaming
    sql.sql(f"CREATE TABLE placed USING quire TBLPROPERTIES ('a.b' = 'c') LOCATION '{log}'")
    assert sql.table("placed").count() == 3
    with pytest.raises(Exception, match="startingofsets"):
        sql.sql(f"CREATE TABLE wrong USING quire OPTIONS (path '{log}', startingOfsets '1')")


@pytest.mark.full
def test_a_view_of_spark_sql_has_all_its_options_for_reads_and_inserts(
    sql: SparkSession, log: Path, tmp_path: Path
) -> None:
    sql.sql(f"CREATE TEMPORARY VIEW seen USING quire OPTIONS (path '{log}', startingOffsets '1')")
    given = f"bootstrap '127.0.0.1:1', session 's', spoolLocation '{tmp_path / 'spool'}', sendTimeoutMs '1'"
    sql.sql(f"CREATE TEMPORARY VIEW sent (command STRING) USING quire OPTIONS ({given})")

    assert sql.table("seen").count() == 2
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):  # The options were taken: there is nobody to send to.
        sql.sql("INSERT INTO sent VALUES ('[\"add\",3]')")
