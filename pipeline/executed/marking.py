"""`mark_executed`: a column that distinguishes a log's commands from their retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MarkingRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEEDED = ("index", "timestamp", "kind", "session", "sequence", "value")
EXECUTED = "executed"


def mark_executed(frame: DataFrame) -> DataFrame:
    """The rows of a batch read with a column `executed`: false if the session answered the record, such as a retry.

    It is null for system records and for rows added to the log since. The frame needs the columns NEEDED, and all rows
    from its first to its last: mark first, then select. This call reads it once, in parallel; tasks group the rows into
    runs and the driver judges these, so the rows are read again when the result is evaluated.

    Only the rows are considered. If they begin above index 0, a record that may have executed counts as executed,
    although it may be a retry of an earlier row, or of a session that was no longer open. A session that was evicted
    because the replies of all sessions took too many bytes counts as open.

    Raises:
        MarkingRefused: it is a stream, a column is missing, or rows are missing or duplicated.
    """
    # The command line imports this where there is no PySpark.
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from .runs import RUNS, marks_of, runs_of  # noqa: PLC0415

    if frame.isStreaming:
        raise MarkingRefused("they are a stream's, and each batch would have to know all earlier ones")
    if missing := [name for name in NEEDED if name not in frame.columns]:
        raise MarkingRefused(f"they lack {', '.join(missing)}")
    is_system = F.col("kind") == "system"
    system_value = F.when(is_system, F.col("value")).alias("value")
    rows = frame.select("index", "timestamp", "session", "sequence", system_value)
    marks = marks_of(rows.mapInArrow(runs_of, from_arrow_schema(RUNS)).toArrow())
    # Spark warns about type hints on the function, which its stubs demand.
    executed = arrow_udf("boolean")(marks.executed)  # type: ignore[call-overload]
    return frame.withColumn(EXECUTED, F.when(~is_system, executed("index", "session", "sequence")))
