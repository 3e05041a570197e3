"""What Spark looks for: of each `pyspark_*` package on its path, it registers the `DefaultSource`."""

from quire.pipeline.source.source import QuireSource as DefaultSource

__all__ = ["DefaultSource"]
