"""Where a command's job runs: in this process, or on a Spark that its options name."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from quire.cluster.standard_streams import STDERR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = ("numpy", "pyarrow")
NEEDED_BY_SPARK = ("pyspark", "pandas")
LAST_LINES = 1000
"""Of the stderr of Spark's start, which alone says why a JVM ended."""
LAST_LINES_S = 1.0
"""How long to wait for them: a JVM that did not end may write more."""


class Where(NamedTuple):
    """Where a job runs: on Spark if any of these options is given, else in this process."""

    spark: bool
    on: str
    conf: list[str]

    @property
    def is_spark(self) -> bool:
        """Whether it runs on Spark."""
        return self.spark or bool(self.on) or bool(self.conf)

    @property
    def is_connect(self) -> bool:
        """Whether a server of Spark Connect is named."""
        return self.on.startswith("sc://")

    def needed(self) -> tuple[str, ...]:
        """The packages that every job needs there."""
        return (*NEEDED_BY_SPARK, *NEEDED) if self.is_spark else NEEDED

    def settings(self) -> dict[str, str]:
        """The settings of the session. Raises OptionRefused."""
        from .errors import OptionRefused  # noqa: PLC0415

        # Workers import nothing from the current folder, which may be an archive that somebody handed over.
        found = {"spark.ui.showConsoleProgress": "false", "spark.executorEnv.PYTHONSAFEPATH": "1"}
        for setting in self.conf:
            name, equals, value = setting.partition("=")
            if not equals:
                raise OptionRefused("--conf", f"it takes KEY=VALUE, not {setting}")
            found[name] = value
        if self.on:
            found["spark.remote" if self.is_connect else "spark.master"] = self.on
        return found


@contextmanager
def session_of(job: str, where: Where) -> Generator[SparkSession | None]:
    """A Spark session whose workers run in this interpreter, unless PYSPARK_PYTHON names another; None without Spark.

    Raises:
        OptionRefused: a setting is malformed.
        SparkFailed: Spark does not start, or cannot run the job. Its traces, and its JVM's, are left out.
    """
    if not where.is_spark:
        yield None
        return
    settings = where.settings()  # Refused before Spark is imported.
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from .errors import SparkFailed  # noqa: PLC0415

    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().appName(f"quire spark {job}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    is_own = SparkSession.getActiveSession() is None
    said = deque[str](maxlen=LAST_LINES)
    try:
        with _stderr_into(said):
            session = builder.getOrCreate()
            context = getattr(session, "sparkContext", None)
            if context is not None:  # Spark Connect has none: its server has the log and the interpreter.
                context.setLogLevel("OFF")
                python = context.pythonExec
    except (PySparkException, Py4JError) as error:
        asked = f"--on is {where.on}" if where.on else "it is as configured"
        needs = "pyspark[connect] is installed" if where.is_connect else "Java 17 or newer is in PATH or JAVA_HOME"
        advice = f"{asked}; check that and --conf, and that {needs}"
        raise SparkFailed("does not start", _cause([*str(error).splitlines(), *said]), advice) from None
    try:
        yield session
    except (PySparkException, Py4JError) as error:
        advice = (
            f"its workers run PYSPARK_PYTHON, {python}, which must be an interpreter with quire[spark] on every "
            "executor; without --spark, --on and --conf the job runs in this process"
        )
        raise SparkFailed("cannot run the job", _cause(str(error).splitlines()), advice) from None
    finally:
        if is_own:
            session.stop()


@contextmanager
def _stderr_into(lines: deque[str]) -> Generator[None]:
    """Collect what this process writes to stderr in the block; and what processes started there write, to their end."""
    read, write = os.pipe()

    def collect() -> None:
        with open(read, errors="replace") as said:
            lines.extend(said)

    collecting = Thread(target=collect, daemon=True)
    collecting.start()
    own = os.dup(STDERR)
    os.dup2(write, STDERR)
    os.close(write)
    try:
        yield
    except Exception:
        os.dup2(own, STDERR)
        collecting.join(LAST_LINES_S)
        raise
    finally:
        os.dup2(own, STDERR)
        os.close(own)


def _cause(lines: Sequence[str]) -> str:
    """The last error that the traces name: Java and Python write the first cause last."""
    found = [match[1] for line in lines if (match := re.match(r".*\b(\w+(?:Error|Exception): .+)", line))]
    return (found or [line for line in lines if line.strip()] or [""])[-1].strip()
