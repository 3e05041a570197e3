"""A driver of Spark in a process of its own, to be killed: streams a log to files, batch after batch.

python -m tests.pipeline.driver LOG FOLDER RECORDS_A_BATCH
"""

import sys

from pyspark.sql import SparkSession

from tests.pipeline.sessions import local_session


def stream(spark: SparkSession, log: str, folder: str, records_a_batch: str) -> None:
    """Read all that the log holds at the moment, each batch to a checkpointed file sink."""
    source = spark.readStream.format("quire").option("startingOffsets", "earliest")
    query = (
        source.option("maxOffsetsPerTrigger", records_a_batch)
        .load(log)
        .select("index", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()


if __name__ == "__main__":
    stream(local_session("pyspark.daemon"), *sys.argv[1:4])
