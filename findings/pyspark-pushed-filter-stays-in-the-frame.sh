#!/usr/bin/env bash
# pyspark 4.3.0: a filter that a Python data source accepted narrows later queries of the same DataFrame, too.
#
# One would guess: `DataSourceReader.pushFilters` is called for each query with that query's filters, as the
# documentation says of it ("called once during query planning"), so a reader may plan fewer partitions. If it returns
# every filter as not handled, Spark applies them again, and nothing can go wrong.
#
# What happens: with `spark.sql.python.filterPushdown.enabled`, Spark keeps the partitions that were planned for the first
# query with a filter, and each later query of the same DataFrame reads those. A query without a filter gets the rows of
# the other query's filter, without an error; below, `count()` says 100 before, and 50 after, another query has run.
# Nothing in the reader shows which query it serves. So a reader that narrows its partitions loses rows; a fresh `load()`
# for each query does not.
set -euo pipefail

command -v java >/dev/null || { echo "Spark needs Java 17 or newer"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1

cat >"$folder/seen.py" <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThanOrEqual, InputPartition

os.environ["PYSPARK_PYTHON"] = sys.executable


class Reader(DataSourceReader):
    first = 0

    def pushFilters(self, filters):
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self.first = each.value
        return filters  # Spark applies them again.

    def partitions(self):
        return [InputPartition(self.first)]

    def read(self, partition):
        return ((row,) for row in range(partition.value, 100))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "row long"

    def reader(self, schema):
        return Reader()


spark = (
    SparkSession.Builder()
    .master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Numbers)
print("a frame of its own:", spark.read.format("numbers").load().count())
frame = spark.read.format("numbers").load()
print("with a filter:", frame.where("row >= 50").count())
print("the same frame without it:", frame.count())
spark.stop()
PYTHON

seen=$("$folder/venv/bin/python" "$folder/seen.py" 2>"$folder/log") || { tail -20 "$folder/log"; exit 1; }
printf '%s\n' "$seen"
[ "$seen" = "a frame of its own: 100
with a filter: 50
the same frame without it: 50" ]
