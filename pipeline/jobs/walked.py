"""What a walk over frames has seen: enough to compare nodes with each other, however long the log is.

Frames form a chain, so two logs that have one crc32c at one border are equal below it, up to where the chain begins. A
walk keeps the crc at one border of every BORDER_RECORDS records, the same ones on every node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.log import ChainBroken, FrameHeader, Tail
from quire.log.frames import follow

from .finding import Finding

BORDER_RECORDS = 10_000


@dataclass(slots=True)
class Walked:
    """One piece of a node's log, gone over."""

    node: str
    shared_end: int = 0
    """One more border whose crc is kept."""
    before: Tail | None = None
    """The chain's end before the first frame; of epoch and timestamp 0 where only the crc is known."""
    tail: Tail | None = None
    is_cut: bool = False
    """Whether it ends before its piece does; a finding says why."""
    frames: int = 0
    records: int = 0
    log_bytes: int = 0
    borders: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(index, crc32c of the frame that ends there)."""
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
        if (
            header.index // BORDER_RECORDS != header.next_index // BORDER_RECORDS
            or header.next_index == self.shared_end
        ):
            self.borders.append((header.next_index, header.crc32c))
        return broken
