#!/usr/bin/env bash
# pyspark 4.3.0: the OPTIONS of a catalog's table reach a Python data source when the table is created, and never again.
#
# One would guess: after `CREATE TABLE t USING numbers OPTIONS (first '5')`, a query of `t` makes the source with the
# option `first`, as `spark.read.format("numbers").option("first", 5)` and a temporary view do, and as a table of a
# source in Java does.
#
# What happens: CREATE TABLE makes the source with the options, mixed with Spark's own names such as `owner` and
# `provider`, so a source that refuses unknown options refuses the statement. A later SELECT makes it with no options at
# all, only with the table's schema, so a source with defaults reads something else without an error. What reaches the
# source at every use is a temporary view's options, and the metadata of the table's columns.
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
from pyspark.sql.datasource import DataSource, DataSourceReader

FOLDER = sys.argv[1]
os.environ["PYSPARK_PYTHON"] = sys.executable


class Reader(DataSourceReader):
    def __init__(self, first):
        self.first = first

    def read(self, partition):
        return ((row,) for row in range(self.first, 10))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        with open(f"{FOLDER}/named", "w") as file:
            file.write(" ".join(sorted(name for name in self.options if not name.startswith("option."))))
        return "row long"

    def reader(self, schema):
        return Reader(int(self.options.get("first", 0)))


spark = (
    SparkSession.Builder()
    .master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", f"{FOLDER}/warehouse")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Numbers)
spark.sql("CREATE TABLE numbers USING numbers OPTIONS (first '5')")
with open(f"{FOLDER}/named") as file:
    names = file.read().split()
print("at CREATE TABLE:", *(name for name in ("first", "owner", "provider") if name in names))
print("rows of the table:", spark.table("numbers").count())
spark.sql("CREATE TEMPORARY VIEW some USING numbers OPTIONS (first '5')")
print("rows of the view:", spark.table("some").count())
spark.stop()
PYTHON

seen=$(cd "$folder" && "$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>"$folder/log") || { tail -20 "$folder/log"; exit 1; }
printf '%s\n' "$seen"
[ "$seen" = "at CREATE TABLE: first owner provider
rows of the table: 10
rows of the view: 5" ]
