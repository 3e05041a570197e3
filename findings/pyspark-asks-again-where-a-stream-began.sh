#!/usr/bin/env bash
# pyspark 4.3.0: a streaming query that failed in its first batch asks its Python source again where it began.
#
# One would guess: the documentation of `DataSourceStreamReader.initialOffset` says "If Spark is restarting an existing
# query, it will restart from the check-pointed offset rather than the initial one". So once the first batch is in the
# checkpoint, the source's answer to `initialOffset` is no longer asked for, and the batch reads what it read before.
#
# What happens: the checkpoint holds only where a batch ends. After a failure in the first batch, the restarted query
# calls `initialOffset` again and reads from that answer to the end that is in the checkpoint. If the source answers
# with where its oldest record is now (Kafka's "earliest"), and the oldest records have expired in between, the rows
# between both answers are in no batch, and nothing reports it: below, the second run reads 5 rows of 10. What helps:
# the source puts where it began into the end offset of its first batch, and reads from there.
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
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

FOLDER = sys.argv[1]
os.environ["PYSPARK_PYTHON"] = sys.executable


def oldest():
    with open(f"{FOLDER}/oldest") as file:
        return int(file.read())


def has_expired(row):
    with open(f"{FOLDER}/oldest", "w") as file:
        file.write(str(row))


class Reader(DataSourceStreamReader):
    def initialOffset(self):
        return {"row": oldest()}

    def latestOffset(self, start, limit):
        return {"row": 10}

    def partitions(self, start, end):
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition):
        return ((row,) for row in range(*partition.value))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "row long"

    def streamReader(self, schema):
        return Reader()


def batch_of_a_run(fails):
    """The number and the rows of the first batch that a query with this checkpoint gives to its sink."""
    seen = []

    def sink(frame, number):
        seen.append((number, [row.row for row in frame.collect()]))
        if fails:
            raise RuntimeError("the sink is full")

    query = spark.readStream.format("numbers").load().writeStream.foreachBatch(sink)
    query = query.option("checkpointLocation", f"{FOLDER}/checkpoint").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception:
        if not fails:
            raise
    return seen[0]


spark = SparkSession.Builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Numbers)
has_expired(0)
print("before the restart:", *batch_of_a_run(fails=True))
has_expired(5)
print("after the restart:", *batch_of_a_run(fails=False))
spark.stop()
PYTHON

seen=$("$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>"$folder/log") || { tail -20 "$folder/log"; exit 1; }
printf '%s\n' "$seen"
[ "$seen" = "before the restart: 0 [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
after the restart: 0 [5, 6, 7, 8, 9]" ]
