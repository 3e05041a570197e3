"""What can go wrong between Spark and a log, with its values. (What is wrong with the bytes themselves is said by
`quire.log`: `FrameCorrupt` names file and position.)

The user's fault: `OptionRefused`, `NoLog`, `ForeignLog`, `WorkersLackQuire`. Time's: `RecordsLost`, `CheckpointAhead`.
The cluster's: `ClusterUnavailable`. An archive's: `ArchiveGap`, `ArchiveDamaged`, `ArchiveDiverges`.
"""

from __future__ import annotations


class PipelineError(Exception):
    """The root of what `quire.pipeline` raises on purpose."""


class OptionRefused(PipelineError):
    """An option of the source cannot be what it is."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option, self.reason = option, reason


class NoLog(PipelineError):
    """There is no log to be read at the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} holds no log of quire: {reason}")
        self.path, self.reason = path, reason


class ForeignLog(PipelineError):
    """The log is another cluster's than the one that was read before."""

    def __init__(self, origin: str, found: str, expected: str) -> None:
        super().__init__(f"{origin} is of cluster {found}, not of {expected}, which was read before")
        self.origin, self.found, self.expected = origin, found, expected


class WorkersLackQuire(PipelineError):
    """The Python that Spark's workers run cannot import quire, or what it needs."""

    def __init__(self, python: str, reason: str) -> None:
        super().__init__(
            f"Spark's workers run {python}, which cannot import quire: {reason}; before Spark starts, have "
            "PYSPARK_PYTHON name an interpreter with quire[spark], such as the one of this program (sys.executable)"
        )
        self.python, self.reason = python, reason


class RecordsLost(PipelineError):
    """Records [from_index, to_index) were in the log, or should be, and are there no more."""

    def __init__(self, origin: str, from_index: int, to_index: int, reason: str) -> None:
        super().__init__(
            f"records [{from_index}, {to_index}) of {origin} are lost: {reason}; "
            "option failOnDataLoss=false goes on behind them"
        )
        self.origin, self.from_index, self.to_index, self.reason = origin, from_index, to_index, reason


class CheckpointAhead(PipelineError):
    """A stream has read up to an index that the log has not come to: it is not the log that was read."""

    def __init__(self, origin: str, index: int, highest_index: int) -> None:
        super().__init__(
            f"the stream stands at index {index}, and the log of {origin} ends at {highest_index}: it has lost records "
            "that were read, as one restored from a backup has, or the nodes that answer are far behind; what comes up "
            "to that index would be passed over, so a log that is shorter needs a new checkpoint"
        )
        self.origin, self.index, self.highest_index = origin, index, highest_index


class BatchTooLarge(PipelineError):
    """A value, or the values of one frame, are larger than a batch of Arrow can be."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes of values in one frame are above the limit of {limit} bytes")
        self.size, self.limit = size, limit


class ClusterUnavailable(PipelineError):
    """No node of the cluster gave what was asked for, in time."""

    def __init__(self, what: str, timeout_s: float, reasons: dict[str, str]) -> None:
        told = "; ".join(f"{server}: {reason}" for server, reason in reasons.items()) or "no server is named"
        super().__init__(f"no node gave {what} within {timeout_s:g} s ({told})")
        self.what, self.timeout_s, self.reasons = what, timeout_s, reasons


class ArchiveGap(PipelineError):
    """Records [from_index, to_index) are neither in the archive nor behind it, though later ones are."""

    def __init__(self, path: str, from_index: int, to_index: int) -> None:
        super().__init__(
            f"the archive {path} has a gap: records [{from_index}, {to_index}) are in none of its files, "
            "nor in what is read beside it"
        )
        self.path, self.from_index, self.to_index = path, from_index, to_index


class ArchiveDamaged(PipelineError):
    """A file of an archive is missing or not what was written; records [from_index, to_index) cannot be read."""

    def __init__(
        self, path: str, file: str, reason: str, from_index: int | None = None, to_index: int | None = None
    ) -> None:
        lost = "" if from_index is None else f"; records [{from_index}, {to_index}) cannot be read"
        super().__init__(f"{path}/{file} is damaged: {reason}{lost}")
        self.path, self.file, self.reason, self.from_index, self.to_index = path, file, reason, from_index, to_index


class ArchiveDiverges(PipelineError):
    """The log does not go on where the archive ends: one of them is not this history."""

    def __init__(self, origin: str, index: int, found: int, expected: int) -> None:
        super().__init__(
            f"{origin} does not follow the archive at index {index}: its frame there follows one of crc32c "
            f"{found:08x}, the archive ends with {expected:08x}"
        )
        self.origin, self.index, self.found, self.expected = origin, index, found, expected


class GroundMissing(PipelineError):
    """The log's beginning has expired, and no snapshot stands where a replay of the rest could begin."""

    def __init__(self, path: str, lowest_index: int, highest_index: int, snapshots: list[int]) -> None:
        held = f"its snapshots stand at {', '.join(map(str, snapshots))}" if snapshots else "it has no snapshot"
        super().__init__(
            f"{path} holds records [{lowest_index}, {highest_index}), and {held}: none in that range, so a replay has "
            "nothing to begin from; replay from an archive that reaches back to 0, or to a snapshot"
        )
        self.path, self.lowest_index, self.highest_index, self.snapshots = path, lowest_index, highest_index, snapshots


class GenesisMissing(PipelineError):
    """There is no genesis: which machine the log is of, and what it began from, is not known."""

    def __init__(self, path: str, lowest_index: int) -> None:
        super().__init__(f"{path} begins at index {lowest_index} and has no genesis file: it is no cluster's log")
        self.path, self.lowest_index = path, lowest_index


class MachineDiffers(PipelineError):
    """The machine at hand is not the one that the cluster runs, or another version of it."""

    def __init__(self, found: tuple[str, int], expected: tuple[str, int]) -> None:
        ours, theirs = (" version ".join(map(str, machine)) for machine in (found, expected))
        super().__init__(f"the log is of machine {theirs}, and this is {ours}; name the cluster's with --machine")
        self.found, self.expected = found, expected
