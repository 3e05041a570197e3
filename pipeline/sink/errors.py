"""What can go wrong between Spark's rows and the cluster, with its values. The client's own errors stand beside them:
`SessionFenced` (another driver has taken over), `SessionExpired`, `Unavailable`, `OutcomeUnknown`.

The user's fault: `ColumnsRefused`, `RowsRefused`, `WriteRefused`, `ForeignCluster`. The machine's word:
`CommandsRefused`. Somebody's hand in what is the sink's: `SessionMoved`, `BatchUnfinished`, `BatchOvertaken`. The
disk's: `SpoolDamaged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import PipelineError


class RowRefused(NamedTuple):
    """A row that is no command of the machine: where it stands, and why it is not."""

    partition: int
    row: int
    code: str
    text: str

    def __str__(self) -> str:
        return f"partition {self.partition}, row {self.row}: {self.code}: {self.text}"


class ColumnsRefused(PipelineError):
    """The rows have not exactly the one column that holds their commands."""

    def __init__(self, found: str) -> None:
        super().__init__(
            "the rows must have one column: value binary (msgpack), command binary (msgpack) or command string (JSON "
            f"text); these have {found}"
        )
        self.found = found


class WriteRefused(PipelineError):
    """Spark was asked to replace what stands there already, which a log cannot."""

    def __init__(self) -> None:
        super().__init__("a log is only appended to: use mode('append'), of a stream outputMode('append')")


class RowsRefused(PipelineError):
    """Rows that are no commands; nothing of their batch was written."""

    def __init__(self, count: int, rows: Sequence[RowRefused]) -> None:
        told = "; ".join(map(str, rows))
        more = f"; and {count - len(rows)} more" if count > len(rows) else ""
        super().__init__(
            f"{count} rows are no commands of the cluster's machine, and nothing was written: {told}{more}"
        )
        self.count, self.rows = count, tuple(rows)


class CommandsRefused(PipelineError):
    """The machine refused commands when it applied them. All others of their batch were executed."""

    def __init__(self, batch: int, refused: int, unanswered: int, first: Sequence[Sequence[object]]) -> None:
        told = "; ".join(f"sequence {sequence}: {code}: {text}" for sequence, code, text in first)
        gone = f"; the replies of {unanswered} more are gone, and so whether they were" if unanswered else ""
        super().__init__(
            f"batch {batch} is written, but the machine refused {refused} of its commands when it applied them ({told})"
            f"{gone}; option failOnRefused=false goes on"
        )
        self.batch, self.refused, self.unanswered = batch, refused, unanswered


class ForeignCluster(PipelineError):
    """The checkpoint's commands went to another cluster."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"the nodes are of cluster {found}; what this checkpoint wrote went to {expected}")
        self.found, self.expected = found, expected


class SessionMoved(PipelineError):
    """The session does not stand where the checkpoint left it: it was closed, or somebody else has written under it."""

    def __init__(self, name: str, found: int, expected: str | None) -> None:
        """`expected`: the sequence, or sequences, of the checkpoint; None: it has sent nothing yet."""
        super().__init__(
            f"session {name} stands at sequence {found}, and the checkpoint at {expected}: the session was closed, or "
            "used by another; what of the batch was executed cannot be known, so nothing is sent"
            if expected is not None
            else f"session {name} stands at sequence {found}, and nothing was sent from this spool: it was used by "
            "another, or from a spool or checkpoint that is gone, and what was sent then would be sent again; bring "
            "that spool back, or begin anew with a new session and another spool"
        )
        self.name, self.found, self.expected = name, found, expected


class BatchUnfinished(PipelineError):
    """Another batch is partly sent, and must be ended before."""

    def __init__(self, unfinished: int, batch: int | None) -> None:
        what = "a write" if batch is None else f"batch {batch}"
        super().__init__(
            f"batch {unfinished} is planned and not ended, so {what} must wait: write with option "
            f"batchId={unfinished} to end it; what it sends was kept, whatever rows it is given"
        )
        self.unfinished, self.batch = unfinished, batch


class BatchOvertaken(PipelineError):
    """Another write without a number was done while this one began; nothing of this one was sent."""

    def __init__(self, done: int) -> None:
        super().__init__(
            f"batch {done} was written by another write to the same spool while this one began; nothing of this one "
            "was sent: write it again, and to one spool one write at a time"
        )
        self.done = done


class SpoolDamaged(PipelineError):
    """What a task or the driver wrote down is not there, or not as it was written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason
