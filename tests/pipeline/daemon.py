"""Spark's daemon, which forks a Python worker for every plan and task, with what they import already imported.

It saves each of them seconds on a busy machine, and the tests minutes. What a worker does is the same.
"""

import sys
from importlib import import_module

WRITING = ("pyspark.worker", "sink", "write")
"""What runs the sink: part of the names of Spark's modules whose workers a daemon forks."""

if __name__ == "__main__":
    if any(name in sys.argv[-1] for name in WRITING):
        import_module("quire.pipeline.sink.sink")
    from pyspark.daemon import manager

    manager()
