"""Errors of a write. The client's errors come in addition: `SessionFenced` (another driver has taken over),
`SessionExpired`, `Unavailable`, `OutcomeUnknown`.

The user's fault: `ColumnsRefused`, `RowsRefused`, `WriteRefused`, `ForeignCluster`. Refused by the machine:
`CommandsRefused`. Interference with the session or the spool: `SessionMoved`, `BatchUnfinished`, `BatchOvertaken`. With
the checkpoint, or a query that is not deterministic: `BatchBehind`, `RowsChanged`. The disk's fault: `SpoolDamaged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import PipelineError


class RowRefused(NamedTuple):
    """A row that is not a command of the machine: where it is, and why it was refused."""

    partition: int
    row: int
    code: str
    text: str

    def __str__(self) -> str:
        return f"partition {self.partition}, row {self.row}: {self.code}: {self.text}"


class ColumnsRefused(PipelineError):
    """The rows do not have exactly one column with commands."""

    def __init__(self, found: str) -> None:
        super().__init__(
            "the rows must have one column: value binary (msgpack), command binary (msgpack) or command string (JSON "
            f"text); these have {found}"
        )
        self.found = found


class WriteRefused(PipelineError):
    """Spark was asked to overwrite, which a log does not support."""

    def __init__(self) -> None:
        super().__init__("a log is only appended to: use mode('append'), of a stream outputMode('append')")


class RowsRefused(PipelineError):
    """Rows that are not commands; nothing of their batch was written."""

    def __init__(self, count: int, rows: Sequence[RowRefused], way_out: str = "") -> None:
        named = "; ".join(map(str, rows))
        more = f"; and {count - len(rows)} more" if count > len(rows) else ""
        super().__init__(
            f"{count} rows are not commands of the cluster's machine, so this attempt writes nothing: {named}{more}"
            f"{way_out}"
        )
        self.count, self.rows = count, tuple(rows)


class CommandsRefused(PipelineError):
    """The machine refused commands at apply. All others of the batch were executed."""

    def __init__(self, batch: int, refused: int, unanswered: int, first: Sequence[Sequence[object]]) -> None:
        named = "; ".join(f"sequence {sequence}: {code}: {text}" for sequence, code, text in first)
        gone = f"; the replies to {unanswered} more are gone, so it may have refused those" if unanswered else ""
        super().__init__(
            f"batch {batch} is written, but the machine refused {refused} of its commands at apply ({named}){gone}; "
            "to continue, set option failOnRefused=false"
        )
        self.batch, self.refused, self.unanswered = batch, refused, unanswered


_RECOVERED = "a cluster that was recovered has another id: compare its state, then begin with a new checkpoint"


class ForeignCluster(PipelineError):
    """The sink's state is of another cluster."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(
            f"the nodes are of cluster {found}, but this checkpoint has written to {expected}; {_RECOVERED}"
        )
        self.found, self.expected = found, expected


class SessionMoved(PipelineError):
    """The session is not at the sequence where the checkpoint left it: it was closed, or another writer used it."""

    def __init__(self, name: str, found: int, expected: str | None) -> None:
        """`expected`: the sequence, or range of sequences, that the checkpoint expects; None: it has sent nothing."""
        super().__init__(
            f"session {name} is at sequence {found}, and the checkpoint at {expected}: the session was closed, or used "
            "by another writer; which commands of the batch were executed cannot be known, so nothing is sent"
            if expected is not None
            else f"session {name} is at sequence {found}, but nothing was sent from this spool: it was used by "
            "another writer, or by a spool or checkpoint that was deleted, whose commands would be sent again; restore "
            "that spool, or start over with a new session and a new spool"
        )
        self.name, self.found, self.expected = name, found, expected


class BatchUnfinished(PipelineError):
    """Another batch may be partly sent, and must be finished first."""

    def __init__(self, unfinished: int, batch: int | None) -> None:
        what = "a write" if batch is None else f"batch {batch}"
        super().__init__(
            f"batch {unfinished} is planned and not finished, so {what} must wait: to finish it, write the same rows "
            f"again with option batchId={unfinished}; with failOnChangedRows=false these may be any rows, which are "
            "dropped, and those that it was planned with are sent. Of a stream Spark numbers the batches, and finishes "
            "them in order: there, an older copy of the spool was restored; restore the one that belongs to the "
            "checkpoint"
        )
        self.unfinished, self.batch = unfinished, batch


_WENT_BACK = (
    "the checkpoint went back (an older copy was restored, or files were removed from it) while the spool was kept; "
    "restore the checkpoint that belongs to this spool, or start over with a new checkpoint, session and spoolLocation "
    "and with startingOffsets after the last row that was executed"
)


class BatchBehind(PipelineError):
    """The batch comes after a later one: the checkpoint went back, and its rows may be others than those written."""

    def __init__(self, batch: int, latest: int, stage: str) -> None:
        """`stage` of the latest batch: planned, or written."""
        super().__init__(
            f"batch {batch} comes, but batch {latest} is already {stage}, so nothing of it was sent: {_WENT_BACK}. If "
            "another driver runs this query, stop one of them. A batch write needs a batchId that is not lower than "
            "the last one's"
        )
        self.batch, self.latest = batch, latest


class RowsChanged(PipelineError):
    """The batch was planned or written before, with other rows."""

    def __init__(self, batch: int, stage: str, commands: int, given: int) -> None:
        """`stage`: planned, or written; `commands`: how many it had then, and `given` now."""
        super().__init__(
            f"batch {batch} comes again with other rows: it was {stage} with {commands} commands, and the {given} "
            f"given now are not the same, so none of these was sent: {_WENT_BACK}. If instead the query is not "
            "deterministic (rand(), uuid()), set option failOnChangedRows=false: it keeps the rows of before and drops "
            "those given now"
        )
        self.batch, self.commands, self.given = batch, commands, given


class BatchOvertaken(PipelineError):
    """Another write without a number finished while this one started; nothing of this one was sent."""

    def __init__(self, done: int) -> None:
        super().__init__(
            f"batch {done} was written by another write to the same spool while this one started; nothing of this one "
            "was sent: write it again, and run one write at a time per spool"
        )
        self.done = done


class SpoolDamaged(PipelineError):
    """A file of a task or of the driver is missing or is not the one that was written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason
