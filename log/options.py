"""The options of a log, with their limits, and its clock."""

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
MAX_RESERVE_BYTES = 64 << 10
MAX_SEGMENT_BYTES = 1 << 32
"""Positions in a store are u32."""
LARGEST_STORE_BYTES = MAX_SEGMENT_BYTES - 1 - MAX_RESERVE_BYTES
"""The maximum of `segment_bytes` plus the last frame beyond it."""
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux, the clock that includes suspensions; elsewhere (macOS) CLOCK_MONOTONIC does."""


def wall_clock() -> int:
    """Microseconds since the Unix epoch: the time of frames' timestamps."""
    return time.time_ns() // 1_000


def time_since_boot() -> int:
    """Microseconds since the machine booted, a clock that is never set. Time during which it was suspended counts.

    It is used for everything that must not outlive a suspension: whether a leader is heard, votes, reads, ages.
    """
    return time.clock_gettime_ns(BOOT_CLOCK) // 1_000


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When appended records are flushed without a request. A cluster's log must use FLUSH_ALWAYS.

    The next flush begins when `records` wait or the oldest is `interval_ms` old, whichever comes first.
    """

    records: int | None
    """Flush when this many records wait; None: their number does not matter."""
    interval_ms: int | None
    """Flush when the oldest waiting record is this old; None: its age does not matter."""

    def __post_init__(self) -> None:
        if (self.records is not None and self.records < 1) or (self.interval_ms is not None and self.interval_ms < 1):
            raise ValueError(f"a flush policy of {self.records} records or {self.interval_ms} ms must be at least 1")

    @property
    def never(self) -> bool:
        """Whether nothing is flushed without a request. Records are then readable before they are durable."""
        return self.records is None and self.interval_ms is None


FLUSH_ALWAYS = FlushPolicy(1, None)
"""Flush every record at once; those that arrive during a flush share the next one."""
FLUSH_NEVER = FlushPolicy(None, None)
"""Leave it to the operating system. Records are readable at once; a rotation, stop or request makes them durable."""


class IndexCachePolicy(Enum):
    """Which indexes of read segments stay in memory when there are more than `cached_indexes`."""

    LRU = "lru"
    """The most recently used ones. A read loads the index that it needs."""
    LFU = "lfu"
    """The most frequently used ones. A read loads the index that it needs."""
    NEWEST = "newest"
    """Those of the most recently sealed segments. Reads load nothing, so a scan of old records evicts no recent one."""


def open_segments_of(files: int) -> int:
    """How many read segments keep files open in a process that may open `files` files; negative: any number."""
    return MAX_OPEN_SEGMENTS if files < 0 else max(1, min(MAX_OPEN_SEGMENTS, files // 32))


def _open_segments() -> int:
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return open_segments_of(soft_limit)


def overflow_of(segment_bytes: int, largest_frame: int) -> int:
    """How far the last frame of a segment may reach beyond `segment_bytes`, so that any frame fits a segment.

    Half a segment, or what 4 GiB leave, or a frame of the largest size.
    """
    return max(min(segment_bytes // 2, LARGEST_STORE_BYTES - segment_bytes), largest_frame)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Sizes in bytes. The defaults suit a node with gigabytes of free disk and megabytes of free memory."""

    segment_bytes: int = 64 << 20
    """Size at which a store is full: large enough for few files, small enough to expire in steps."""
    segment_overflow_bytes: int | None = None
    """How far the last frame may reach beyond `segment_bytes`; None: half of `segment_bytes`, or what 4 GiB leave."""
    index_bytes: int | None = None
    """Size of an index file at which its segment is full as well; None: 1 MiB (65,535 entries), or what a segment of
    `segment_bytes` needs if that is more."""
    index_interval_bytes: int = 4096
    """Bytes of the store between two index entries, at least; 0: each frame has an entry."""
    reserve_bytes: int | None = None
    """Room kept on disk for reserved frames, so that a full disk does not refuse them; None: 64 KiB, or 1/16 of
    `segment_bytes` if that is less. A standalone log keeps none."""
    max_frame_bytes: int = 8 << 20
    """The largest frame, header included."""
    write_buffer_bytes: int = 256 << 10
    """Appended frames are buffered up to this size, then written to the file in one piece."""
    open_segments: int = field(default_factory=_open_segments)
    """How many read segments keep files open, two each at most: 1,024, or 1/32 of the process's limit."""
    cached_indexes: int | None = 64
    """How many read segments keep their index in memory, 16 bytes for each entry; None: all, from opening on.

    0: none, each read searches the index file. The write segment's index is always in memory."""
    index_cache_policy: IndexCachePolicy = IndexCachePolicy.LRU
    """Which of them stay; without effect if `cached_indexes` is None or 0."""
    flush_policy: FlushPolicy = FLUSH_ALWAYS
    """Records are readable once it has flushed them."""

    def __post_init__(self) -> None:
        if self.segment_bytes < STORE_HEADER_BYTES + HEADER_BYTES + 1 or self.overflow_bytes < 0:
            raise ValueError(f"segment_bytes {self.segment_bytes} cannot hold a frame")
        if self.reserve < 0:
            raise ValueError(f"reserve_bytes {self.reserve_bytes} is less than 0")
        if self.store_limit + self.reserve >= MAX_SEGMENT_BYTES:
            raise ValueError("segment_bytes, segment_overflow_bytes and reserve_bytes reach 4 GiB: positions are u32")
        if self.index_bytes is not None and self.index_bytes < INDEX_MARKER_BYTES + INDEX_ENTRY_BYTES:
            raise ValueError(f"index_bytes {self.index_bytes} cannot hold an entry")
        if self.index_interval_bytes < 0 or self.write_buffer_bytes < 0 or self.open_segments < 1:
            raise ValueError("index_interval_bytes, write_buffer_bytes or open_segments is too small")
        if self.cached_indexes is not None and self.cached_indexes < 0:
            raise ValueError(f"{self.cached_indexes} cached indexes: it must be at least 0")

    @property
    def overflow_bytes(self) -> int:
        """`segment_overflow_bytes`, or its default."""
        if self.segment_overflow_bytes is not None:
            return self.segment_overflow_bytes
        return overflow_of(self.segment_bytes, 0)

    @property
    def index_limit(self) -> int:
        """`index_bytes`, or its default."""
        if self.index_bytes is not None:
            return self.index_bytes
        entries = self.segment_bytes // self.index_interval_bytes + 2 if self.index_interval_bytes else 0
        return max(1 << 20, INDEX_MARKER_BYTES + INDEX_ENTRY_BYTES * entries)

    @property
    def reserve(self) -> int:
        """`reserve_bytes`, or its default."""
        if self.reserve_bytes is None:
            return min(MAX_RESERVE_BYTES, self.segment_bytes // 16)
        return self.reserve_bytes

    @property
    def store_limit(self) -> int:
        """Largest size of a store, header included; reserved frames alone may go beyond it, into the reserve."""
        return self.segment_bytes + self.overflow_bytes

    @property
    def frame_limit(self) -> int:
        """Largest frame that an empty segment takes, header included."""
        return min(self.max_frame_bytes, self.store_limit - STORE_HEADER_BYTES)
