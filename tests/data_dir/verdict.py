"""What a node does with a directory: it opens it as a start does, and what it then has is compared with what it had.

Harmless: it refuses, and says why; it starts with all that it acknowledged, promised and is; it starts as a new disk,
which counts for nothing until it is made a voter. Bad: it starts as the same disk with an older promise, or without a
record that it acknowledged, and nothing says so.
"""

import re
from dataclasses import dataclass
from enum import Enum

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.errors import ClusterError
from quire.log import HEADER_BYTES, Directory, FrameCorrupt, LogError
from quire.sm import MachineError

from .history import END, NODE, PROMISED, History, started
from .voters import OPTIONS

_NUMBERS = re.compile(r"\b[0-9a-f]{8}\b|\b[0-9a-f]{32}\b|(?<=at byte )\d+|(?<=disk )[0-9a-f]{32}")


class Kind(Enum):
    """What a node did, the worst last."""

    WHOLE = "starts, whole"
    TOLD_LATER = "starts; reports it when read"
    NEW = "starts as a new member"
    REFUSES = "refuses"
    BAD = "loses in silence"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a node did with a directory, and its words."""

    kind: Kind
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}" if self.text else self.kind.value


SENTENCES = (ClusterError, LogError, MachineError, OSError)
"""The errors that `quire serve` prints as one sentence."""


def verdict(directory: Directory, history: History) -> Verdict:
    """Start n2 on a directory, and judge."""
    try:
        data_dir = DataDir.open_directory(directory, NODE, OPTIONS)
    except SENTENCES as error:
        return Verdict(Kind.REFUSES, _words(error))
    try:
        return _of_opened(data_dir, history)
    finally:
        data_dir.close()


def _of_opened(data_dir: DataDir, history: History) -> Verdict:
    if data_dir.promises.disk_id != history.disk_id:
        return Verdict(Kind.NEW)
    if data_dir.identity is None:
        return Verdict(Kind.BAD, "the same disk begins anew")
    try:
        storage, applier = started(data_dir)
    except SENTENCES as error:
        return Verdict(Kind.REFUSES, _words(error))
    log, wrong = storage.log, []
    if data_dir.promises.promise.epoch < PROMISED.epoch:
        wrong.append(f"promise of epoch {data_dir.promises.promise.epoch}")
    if log.durable_index < END:
        wrong.append(f"durable below {log.durable_index} of {END}")
    lowest, end = log.bounds.lowest_index, min(log.durable_index, END)
    try:
        held, index = b"", lowest
        while index < log.durable_index:
            raw, index = log.read_frames(index, 1 << 20)
            held += raw
        for frame in log.reader.stream(applier.applied_index, end):
            applier.apply(frame)
    except FrameCorrupt as error:
        return Verdict(Kind.BAD, ", ".join(wrong)) if wrong else Verdict(Kind.TOLD_LATER, _words(error))
    except SENTENCES as error:
        return Verdict(Kind.REFUSES, _words(error))
    if not wrong and not _is_part_of(held, history.frames):
        wrong.append("other records")
    if not wrong and applier.applied_index == END and applier.digest != history.digest:
        wrong.append("another state")
    return Verdict(Kind.BAD, ", ".join(wrong)) if wrong else Verdict(Kind.WHOLE)


def _is_part_of(held: bytes, frames: bytes) -> bool:
    """Whether a log's bytes are the end of what was acknowledged, perhaps with more records after it."""
    start = frames.find(held[:HEADER_BYTES]) if held else len(frames)
    return start >= 0 and held.startswith(frames[start:])


def _words(error: Exception) -> str:
    """The first clause of an error, without what differs from run to run."""
    text = re.sub("^data_dir .* cannot be used: ", "", str(error)).partition(";")[0]
    return _NUMBERS.sub("…", text)
