"""The errors of `quire.pipeline`. Corrupt bytes of a log raise the errors of `quire.log`, such as `FrameCorrupt`, which
names file and position.

The user's fault: `OptionRefused`, `AccessRefused`, `NoLog`, `ForeignLog`, `WorkersLackQuire`, `MarkingRefused`,
`SparkFailed`. Records that are gone: `RecordsLost`, `CheckpointAhead`, `LogRewritten`. The cluster's fault:
`ClusterUnavailable`. The archive's: `ArchiveGap`, `ArchiveDamaged`, `ArchiveDiverges`, `FrameCut`, `HoldRefused`. A
replay cannot start: `GroundMissing`, `GenesisMissing`, `MachineDiffers`.
"""

from __future__ import annotations

from quire import QuireError


class PipelineError(QuireError):
    """The base class of the errors of `quire.pipeline`."""


class OptionRefused(PipelineError):
    """An option is unknown, malformed, missing, or contradicts another."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option, self.reason = option, reason


class AccessRefused(PipelineError):
    """The file of a token, or of a cluster's CA, cannot be used on a host. The text never holds the token."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"on {host}: {reason}")
        self.host, self.reason = host, reason


class NoLog(PipelineError):
    """There is no readable log at the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} holds no log of quire: {reason}")
        self.path, self.reason = path, reason


class ForeignLog(PipelineError):
    """The log is of another cluster than expected, or of another history of it."""

    def __init__(self, origin: str, found: str, expected: str) -> None:
        super().__init__(
            f"{origin} is of cluster {found}, not of {expected}, which was read before; a cluster that was recovered "
            "has another id, and its records may differ: read it with a new checkpoint, or into a new archive"
        )
        self.origin, self.found, self.expected = origin, found, expected


class WorkersLackQuire(PipelineError):
    """The Python of Spark's workers cannot import quire or one of its dependencies."""

    def __init__(self, python: str, reason: str) -> None:
        super().__init__(
            f"Spark's workers run {python}, which cannot import quire: {reason}; before starting Spark, set "
            "PYSPARK_PYTHON to an interpreter that has quire[spark], such as this program's own (sys.executable)"
        )
        self.python, self.reason = python, reason


class SparkFailed(PipelineError):
    """Spark does not start, or cannot run a command's job."""

    def __init__(self, what: str, reason: str, advice: str) -> None:
        super().__init__(f"Spark {what} ({reason}); {advice}")
        self.what, self.reason, self.advice = what, reason, advice


class MarkingRefused(PipelineError):
    """Retries cannot be marked in these rows."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"retries cannot be marked in these rows: {reason}")
        self.reason = reason


class RecordsLost(PipelineError):
    """Records [from_index, to_index) are no longer in the log."""

    def __init__(self, origin: str, from_index: int, to_index: int, reason: str) -> None:
        self.origin, self.from_index, self.to_index, self.reason = origin, from_index, to_index, reason
        super().__init__(f"{self.loss}; to skip them, set option failOnDataLoss=false")

    @property
    def loss(self) -> str:
        """What is lost, without the advice, which is for reads: the commands have no such option."""
        return f"records [{self.from_index}, {self.to_index}) of {self.origin} are lost: {self.reason}"


class CheckpointAhead(PipelineError):
    """A stream's checkpoint is past the end of the log, so this is not the log that the stream has read."""

    def __init__(self, origin: str, index: int, highest_index: int) -> None:
        super().__init__(
            f"the stream is at index {index}, but the log of {origin} ends at {highest_index}: it has lost records "
            "that were read, like a log restored from a backup, or the nodes that answer are far behind; new records "
            "up to that index would be skipped, so a log that has become shorter needs a new checkpoint"
        )
        self.origin, self.index, self.highest_index = origin, index, highest_index


class LogRewritten(PipelineError):
    """The log has other records before a stream's checkpoint than those that the stream has read."""

    def __init__(self, origin: str, index: int, found: int, expected: int) -> None:
        super().__init__(
            f"the stream is at index {index}, and the record before it that was read is in a frame with crc32c "
            f"{expected:08x}, but in the log of {origin} in one with {found:08x}: the log went back, like one restored "
            "from a copy of its disks, and has grown again; continuing would skip its new records before that index: "
            "read it with a new checkpoint, and compare what was written from the records that it lost"
        )
        self.origin, self.index, self.found, self.expected = origin, index, found, expected


class BatchTooLarge(PipelineError):
    """A value, or the values of one frame, exceed the size of an Arrow batch."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes of values in one frame exceed the limit of {limit} bytes")
        self.size, self.limit = size, limit


class ClusterUnavailable(PipelineError):
    """No node of the cluster returned the requested data in time."""

    def __init__(self, what: str, timeout_s: float, reasons: dict[str, str]) -> None:
        each = "; ".join(f"{server}: {reason}" for server, reason in reasons.items()) or "no server is named"
        super().__init__(f"no node returned {what} within {timeout_s:g} s ({each})")
        self.what, self.timeout_s, self.reasons = what, timeout_s, reasons


class ArchiveGap(PipelineError):
    """Records [from_index, to_index) are neither in the archive nor in the log after it, but later ones are."""

    def __init__(self, path: str, from_index: int, to_index: int, advice: str = "") -> None:
        super().__init__(
            f"the archive {path} has a gap: records [{from_index}, {to_index}) are in none of its files, "
            f"nor in the log that is read with it{advice}"
        )
        self.path, self.from_index, self.to_index = path, from_index, to_index


class HoldRefused(PipelineError):
    """The cluster does not let an archiver hold its log by this cursor, or no longer does."""

    def __init__(self, cursor: str, reason: str, advice: str) -> None:
        super().__init__(
            f"the log cannot be held by the cursor {cursor}: {reason}; {advice}, or archive without a hold "
            "(--hold-bytes 0, and no --cursor)"
        )
        self.cursor, self.reason = cursor, reason


class ArchiveDamaged(PipelineError):
    """A file of an archive is missing or damaged; records [from_index, to_index) cannot be read."""

    def __init__(
        self, path: str, file: str, reason: str, from_index: int | None = None, to_index: int | None = None
    ) -> None:
        lost = "" if from_index is None else f"; records [{from_index}, {to_index}) cannot be read"
        super().__init__(f"{path}/{file} is damaged: {reason}{lost}")
        self.path, self.file, self.reason, self.from_index, self.to_index = path, file, reason, from_index, to_index


class ArchiveDiverges(PipelineError):
    """The log does not continue where the archive ends: they are different histories."""

    def __init__(self, origin: str, index: int, found: int, expected: int) -> None:
        super().__init__(
            f"{origin} does not follow the archive at index {index}: its frame there follows one with crc32c "
            f"{found:08x}, but the archive ends with {expected:08x}"
        )
        self.origin, self.index, self.found, self.expected = origin, index, found, expected


class FrameCut(PipelineError):
    """The frames of a piece of the log do not begin and end where the piece does, so a file of it would be damaged."""

    def __init__(self, origin: str, from_index: int, to_index: int, found: tuple[int, int]) -> None:
        super().__init__(
            f"records [{from_index}, {to_index}) of {origin} cannot be archived: they are in frames with records "
            f"[{found[0]}, {found[1]}), although a frame was said to begin and to end there"
        )
        self.origin, self.from_index, self.to_index, self.found = origin, from_index, to_index, found


class GroundMissing(PipelineError):
    """The start of the log has expired, and there is no snapshot from which the rest could be replayed."""

    def __init__(
        self, path: str, lowest_index: int, highest_index: int, snapshots: list[int], reason: str = ""
    ) -> None:
        held = f"its snapshots are at {', '.join(map(str, snapshots))}" if snapshots else "it has no snapshot"
        super().__init__(
            f"{path} holds records [{lowest_index}, {highest_index}), and {held}: none in that range, so a replay has "
            f"nothing to start from{reason}; replay from an archive that reaches back to 0 or to a snapshot"
        )
        self.path, self.lowest_index, self.highest_index, self.snapshots = path, lowest_index, highest_index, snapshots


class GenesisMissing(PipelineError):
    """There is no genesis record, so the log's machine and its initial value are unknown."""

    def __init__(self, path: str, lowest_index: int) -> None:
        super().__init__(f"{path} starts at index {lowest_index} and has no genesis file: it is not a cluster's log")
        self.path, self.lowest_index = path, lowest_index


class MachineDiffers(PipelineError):
    """The machine is not the one that the cluster runs, or is another version of it."""

    def __init__(self, found: tuple[str, int], expected: tuple[str, int]) -> None:
        ours, theirs = (" version ".join(map(str, machine)) for machine in (found, expected))
        super().__init__(f"the log is of machine {theirs}, but this is {ours}; name the cluster's with --machine")
        self.found, self.expected = found, expected
