"""Telling a Spark session of the source, where it does not find it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .source import QuireSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("quire")` known to a session. (Spark finds `pyspark_quire` in its own interpreter without it.)"""
    spark.dataSource.register(QuireSource)
