"""A driver of Spark in a process of its own, to be killed: streams a log's records to a cluster, batch after batch.

python -m tests.pipeline.sink_driver LOG FOLDER SERVERS RECORDS_A_BATCH
"""

import sys

from pyspark.sql import SparkSession

from tests.pipeline.sessions import local_session


def stream(spark: SparkSession, log: str, folder: str, servers: str, records_a_batch: str) -> None:
    """Send all that the log holds at the moment as commands, each batch from several tasks."""
    source = spark.readStream.format("quire").option("startingOffsets", "earliest").option("minPartitions", 3)
    query = (
        source.option("maxOffsetsPerTrigger", records_a_batch)
        .load(log)
        .select("value")
        .writeStream.format("quire")
        .option("bootstrap", servers)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    stream(local_session("pyspark.daemon", "local[2,8]"), *sys.argv[1:5])
