"""What a walk over the frames of one node's log finds wrong, and what it keeps to compare nodes with each other.

Frames form a chain, so two logs with the same crc32c at one boundary are equal below it, down to where the chain
starts. Logs that diverge never converge again, but their frames may end at other indices from then on. So a walk keeps
the first boundary at or after every BOUNDARY_RECORDS-th index and after the end of each log, wherever that boundary is:
it is the same on every node, or the logs have diverged. The memory needed does not depend on the size of the frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from quire.log import ChainBroken, FrameHeader, Tail, follow

BOUNDARY_RECORDS = 10_000

FindingKind = Literal["corrupt", "chain", "index", "unreadable", "differs", "gap"]


class Finding(NamedTuple):
    """One fault, or a recorded gap.

    - `corrupt`: bytes of a store or an archive are not those that were written.
    - `chain`: a frame is intact but does not follow the previous one.
    - `index`: an index file does not match its store; the node rebuilds it when it needs it.
    - `unreadable`: a node did not return these records.
    - `differs`: the nodes' logs verify, but their frames differ at this record.
    - `gap`: an archive records that it never had these records; that is no damage.
    """

    node: str
    """A data_dir or archive by its path, a node by its address."""
    kind: FindingKind
    reason: str
    file: str = ""
    segment: int | None = None
    position: int | None = None
    """Byte in the file: of a single flipped bit if that is the fault, otherwise of the frame."""
    from_index: int | None = None
    """The records [from_index, to_index) are affected."""
    to_index: int | None = None

    def sentence(self) -> str:
        """The finding as one line of text."""
        place = "" if self.position is None else f" at byte {self.position}"
        where = f"{self.node}: {self.file}{place}: " if self.file else f"{self.node}: "
        records = "" if self.from_index is None else f"; records [{self.from_index}, {self.to_index})"
        return f"{self.kind}: {where}{self.reason}{records}"


class Boundary(NamedTuple):
    """The end of a frame, and the frame's crc32c."""

    next_index: int
    crc32c: int


@dataclass(slots=True)
class WalkedPiece:
    """What was seen of one piece of a node's log."""

    node: str
    ends: tuple[int, ...] = ()
    """Where each of the compared logs ends, or has a gap; the boundaries there are kept, too."""
    before: Tail | None = None
    """The chain's end before the first frame. Epoch and timestamp are 0 if only the crc is known."""
    tail: Tail | None = None
    is_cut: bool = False
    """Whether the walk stopped before the end of the piece; a finding says why."""
    frames: int = 0
    records: int = 0
    log_bytes: int = 0
    boundaries: dict[int, Boundary] = field(default_factory=dict[int, Boundary])
    """By index: the end of the frame that holds the record before the index."""
    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, header: FrameHeader) -> str | None:
        """Count the next frame; return what is wrong with its position in the chain, if anything."""
        broken = None
        if self.tail is None:
            self.before = Tail(header.index, 0, 0, header.prev_crc32c)
        else:
            try:
                follow(self.tail, header)
            except ChainBroken as error:
                broken = str(error)
        self.tail = header.tail
        self.frames += 1
        self.records += header.count
        self.log_bytes += header.size
        first = (header.index // BOUNDARY_RECORDS + 1) * BOUNDARY_RECORDS
        ends = (end for end in self.ends if header.index < end <= header.next_index)
        for index in (*range(first, header.next_index + 1, BOUNDARY_RECORDS), *ends):
            self.boundaries[index] = Boundary(header.next_index, header.crc32c)
        return broken
