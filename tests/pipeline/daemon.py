"""Spark's daemon, which forks the Python workers for plans and tasks, with the modules that they need already imported.

That saves each worker seconds on a busy machine, and the tests minutes. What a worker does is the same.
"""

import sys
from importlib import import_module

WORKERS = ("pyspark.worker", "sink", "write")
"""Parts of the names of Spark's modules whose workers read partitions, or write them."""

if __name__ == "__main__":
    if any(name in sys.argv[-1] for name in WORKERS):
        import_module("quire.pipeline.source.readers")
        import_module("quire.pipeline.sink.sink")
    from pyspark.daemon import manager

    manager()
