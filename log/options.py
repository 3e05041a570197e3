"""What can be set of a log, with its limits."""

from __future__ import annotations

from dataclasses import dataclass

from .frames import HEADER_BYTES

STORE_HEADER_BYTES = 64
INDEX_MARKER_BYTES = 16
INDEX_ENTRY_BYTES = 16
MAX_SEGMENT_BYTES = 1 << 32
"""A position inside a store is a u32."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Sizes in bytes; each default holds for a node with gigabytes of disk and megabytes of memory to spare."""

    segment_bytes: int = 64 << 20
    """A segment's store is full from here on: large enough for few files, small enough to expire in steps."""
    segment_overflow_bytes: int | None = None
    """How far a last frame may reach beyond `segment_bytes`; None: half of it."""
    index_bytes: int = 1 << 20
    """A segment is full, too, once its index file is: 65,535 entries."""
    index_interval_bytes: int = 4096
    """Store bytes from one index entry to the next; 0: every frame has one."""
    max_frame_bytes: int = 8 << 20
    """The largest frame, header included."""
    write_buffer_bytes: int = 256 << 10
    """Appended frames wait in memory up to here before they are written to the file in one piece."""
    open_segments: int = 64
    """How many read segments keep their files open."""

    def __post_init__(self) -> None:
        if self.segment_bytes < STORE_HEADER_BYTES + HEADER_BYTES + 1 or self.overflow_bytes < 0:
            raise ValueError(f"segment_bytes {self.segment_bytes} cannot hold a frame")
        if self.segment_bytes + self.overflow_bytes >= MAX_SEGMENT_BYTES:
            raise ValueError("segment_bytes and segment_overflow_bytes reach 4 GiB: positions are u32")
        if self.index_bytes < INDEX_MARKER_BYTES + INDEX_ENTRY_BYTES:
            raise ValueError(f"index_bytes {self.index_bytes} cannot hold an entry")
        if self.index_interval_bytes < 0 or self.write_buffer_bytes < 0 or self.open_segments < 1:
            raise ValueError("index_interval_bytes, write_buffer_bytes or open_segments is too small")

    @property
    def overflow_bytes(self) -> int:
        """`segment_overflow_bytes`, or half a segment."""
        return self.segment_bytes // 2 if self.segment_overflow_bytes is None else self.segment_overflow_bytes

    @property
    def store_limit(self) -> int:
        """Store bytes, header included, that no segment ever exceeds."""
        return self.segment_bytes + self.overflow_bytes

    @property
    def frame_limit(self) -> int:
        """Bytes of the largest frame that can be appended to a fresh segment."""
        return min(self.max_frame_bytes, self.store_limit - STORE_HEADER_BYTES)
