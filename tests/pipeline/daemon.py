"""Spark's daemon, which forks a Python worker for every plan and task, with what they import already imported.

It saves each of them seconds on a busy machine, and the tests minutes. What a worker does is the same.
"""

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
