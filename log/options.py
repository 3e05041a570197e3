"""What can be set of a log, with its limits."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from enum import Enum

from .frames import HEADER_BYTES

STORE_HEADER_BYTES = 64
INDEX_MARKER_BYTES = 16
INDEX_ENTRY_BYTES = 16
MAX_OPEN_SEGMENTS = 1024
MAX_SEGMENT_BYTES = 1 << 32
"""A position inside a store is a u32."""


def wall_clock() -> int:
    """Microseconds since the Unix epoch: the time of frames' timestamps."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When appended records are made durable without being asked for it; other than ALWAYS for standalone logs only.

    Of `records` and `interval_ms`, whichever is reached first after the last flush begins the next one.
    """

    records: int | None
    """Flush when this many records wait; None: never by their number."""
    interval_ms: int | None
    """Flush when the oldest waiting record is this old; None: never by age."""

    def __post_init__(self) -> None:
        if (self.records is not None and self.records < 1) or (self.interval_ms is not None and self.interval_ms < 1):
            raise ValueError(f"a flush policy of {self.records} records or {self.interval_ms} ms cannot be")

    @property
    def never(self) -> bool:
        """Whether nothing is flushed unasked, so that nothing waits for it to be readable either."""
        return self.records is None and self.interval_ms is None


FLUSH_ALWAYS = FlushPolicy(1, None)
"""Every record is flushed at once; those that arrive meanwhile share the next flush."""
FLUSH_NEVER = FlushPolicy(None, None)
"""The operating system decides; records are readable at once, and only rotation, stop and request make them durable."""


class IndexCachePolicy(Enum):
    """Which indexes of read segments stay in memory when there are more than `cached_indexes`."""

    LRU = "lru"
    """Those used last. A read loads the index that it needs."""
    LFU = "lfu"
    """Those used most often. A read loads the index that it needs."""
    NEWEST = "newest"
    """Those of the segments sealed last. Reads load nothing, so a scan of old records pushes no recent index out."""


def _open_segments() -> int:
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_SEGMENTS if soft_limit < 0 else max(1, min(MAX_OPEN_SEGMENTS, soft_limit // 4))


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
    open_segments: int = field(default_factory=_open_segments)
    """How many read segments keep their files open, at most two each: 1,024, or a quarter of the process's limit."""
    cached_indexes: int | None = 64
    """How many read segments keep their index in memory, 16 bytes for each entry; None: all, from opening on.

    0: none, each read searches the index file. The write segment's index is always in memory."""
    index_cache_policy: IndexCachePolicy = IndexCachePolicy.LRU
    """Which of them stay; without effect if `cached_indexes` is None or 0."""
    flush_policy: FlushPolicy = FLUSH_ALWAYS
    """What has not been flushed by it is not readable."""

    def __post_init__(self) -> None:
        if self.segment_bytes < STORE_HEADER_BYTES + HEADER_BYTES + 1 or self.overflow_bytes < 0:
            raise ValueError(f"segment_bytes {self.segment_bytes} cannot hold a frame")
        if self.segment_bytes + self.overflow_bytes >= MAX_SEGMENT_BYTES:
            raise ValueError("segment_bytes and segment_overflow_bytes reach 4 GiB: positions are u32")
        if self.index_bytes < INDEX_MARKER_BYTES + INDEX_ENTRY_BYTES:
            raise ValueError(f"index_bytes {self.index_bytes} cannot hold an entry")
        if self.index_interval_bytes < 0 or self.write_buffer_bytes < 0 or self.open_segments < 1:
            raise ValueError("index_interval_bytes, write_buffer_bytes or open_segments is too small")
        if self.cached_indexes is not None and self.cached_indexes < 0:
            raise ValueError(f"{self.cached_indexes} indexes cannot be cached")

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
