"""What a walk over frames has seen: enough to compare nodes with each other, however long the log is.

Frames form a chain, so two logs that have one crc32c at one boundary are equal below it, up to where the chain begins.
Logs that have parted never come together again, but their frames may end elsewhere from then on. So a walk keeps the
boundary behind the last record below every BORDER_RECORDS-th index, and below the end of each log, wherever that
boundary is: it is the same on every node, or the logs have parted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.log import ChainBroken, FrameHeader, Tail
from quire.log.frames import follow

from .finding import Finding

BORDER_RECORDS = 10_000


class Boundary(NamedTuple):
    """Where a frame ends, and its crc32c."""

    next_index: int
    crc32c: int


@dataclass(slots=True)
class Walked:
    """One piece of a node's log, gone over."""

    node: str
    ends: tuple[int, ...] = ()
    """The indices where logs end that this one is compared with; their boundaries are kept, too."""
    before: Tail | None = None
    """The chain's end before the first frame; of epoch and timestamp 0 where only the crc is known."""
    tail: Tail | None = None
    is_cut: bool = False
    """Whether it ends before its piece does; a finding says why."""
    frames: int = 0
    records: int = 0
    log_bytes: int = 0
    boundaries: dict[int, Boundary] = field(default_factory=dict[int, Boundary])
    """By index, of the frame that holds the record before it."""
    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, header: FrameHeader) -> str | None:
        """Take the next frame; what is wrong with its place in the chain, if anything is."""
        broken = None
        if self.tail is None:
            self.before = Tail(header.index, 0, 0, header.prev_crc32c)
        else:
            try:
                follow(self.tail, header)
            except ChainBroken as error:
                broken = str(error)
        self.tail = Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)
        self.frames += 1
        self.records += header.count
        self.log_bytes += header.size
        first = (header.index // BORDER_RECORDS + 1) * BORDER_RECORDS
        ends = (end for end in self.ends if header.index < end <= header.next_index)
        for index in (*range(first, header.next_index + 1, BORDER_RECORDS), *ends):
            self.boundaries[index] = Boundary(header.next_index, header.crc32c)
        return broken
