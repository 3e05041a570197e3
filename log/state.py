"""The state of an open log in memory; the operations on it are modules of their own.

Invariants, whenever no operation is in progress:

- segments ascend; each begins where the previous one ends; the last one is the write segment
- lowest_index <= durable.index <= tail.index, and durable.index is a frame boundary in `durable_segment`
- the mark on disk never exceeds `durable`
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from .change.spare import Spare
from .errors import FrameCorrupt, LogClosed, LogError, LogReadOnly, NoRoom
from .frames import Tail
from .options import STORE_HEADER_BYTES, LogOptions
from .segment.mark import Mark, MarkFile
from .segment.removal import Expiry
from .segment.segments import Segment, Segments
from .segment.survey import Survey, Torn
from .segment.write_segment import Flush, WriteSegment
from .storage import Directory, Storage
from .watch import FileWatch


class Bounds(NamedTuple):
    """The records that a log holds: [lowest_index, highest_index)."""

    lowest_index: int
    highest_index: int


class Failing:
    """Makes the log permanently read-only if the device fails in the block: a failed write or sync proves nothing.

    Any other exception, such as KeyboardInterrupt or MemoryError, does the same: how far the block got is unknown.
    May be entered many times, one after the other.
    """

    __slots__ = ("_doing", "_state", "has_begun")

    def __init__(self, state: LogState, doing: str) -> None:
        self._state = state
        self._doing = doing
        self.has_begun = False
        """Whether the block has changed something, so that it can no longer be refused for want of room."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        full = self.has_begun and isinstance(error, NoRoom)
        if error is None or (isinstance(error, LogError) and not full and not isinstance(error, OSError)):
            return  # A LogError is raised before anything changed, or by code that has called `fail` itself.
        state, doing = self._state, self._doing
        if full or isinstance(error, OSError):
            state.fail(f"{doing}: {error}")
            raise LogReadOnly(state.failure or doing) from error
        state.fail(f"{doing}: {error!r}")


class LogState:
    """The state that the parts of a log share. Only the writer's thread uses it."""

    def __init__(
        self,
        directory: Directory,
        files: Directory,
        options: LogOptions,
        *,
        cluster_id: bytes,
        standalone: bool,
        origin: Tail,
        segments: Segments,
        mark: MarkFile,
        writer: WriteSegment,
    ) -> None:
        self.files = files
        self.options = options
        self.cluster_id = cluster_id
        self.standalone = standalone
        self.origin = origin
        self.segments = segments
        self.mark = mark
        self.writer = writer
        self.tail = origin
        self.durable = origin
        self.durable_segment: Segment = writer.segment
        self.durable_position = STORE_HEADER_BYTES
        self.epochs: list[tuple[int, int]] = []
        self.members: list[int] = []
        self.generation = 0
        """Number of truncations and resets; a flush of an earlier generation proves nothing."""
        self.torn: Torn | None = None
        """What was cut off at open."""
        self.flush: Flush | None = None
        self.retired: list[Storage] = []
        """Files that are no longer used, but that a flush in progress may still sync."""
        self.expiry: Expiry | None = None
        """The removal of a segment's files that is in progress."""
        room = options.segment_bytes + options.reserve
        self.spare = Spare(files, room) if writer.store.wrote_zeros else None
        """The next segment's store; None where it is allocated at once."""
        self.refused_bytes = 0
        """Size of the largest frame that found no room, until a probe finds room for it; 0 if there is none."""
        self.failure: str | None = None
        self.rot = ""
        """The first rot that a read found. No stop is then marked as clean, so the next open checks every frame."""
        self.closed = False
        self.watch = FileWatch(directory, files, segments, self._lost)
        self.frame_limit = options.frame_limit
        self.writing_out = Failing(self, "writing out")
        self.writing_mark = Failing(self, "writing the mark")
        self._reads_unflushed = options.flush_policy.never

    @property
    def size(self) -> int:
        """Bytes of the frames held."""
        segments = self.segments
        return segments.bytes_between(0, len(segments) - 1) + segments.last.end - STORE_HEADER_BYTES

    @property
    def readable_index(self) -> int:
        """Every record below may be read: it is durable, or the policy is never to flush."""
        return self.tail[0] if self._reads_unflushed else self.durable[0]

    def refuse_if_unwritable(self) -> None:
        """Raise the error if the log cannot be written to."""
        if self.closed:
            raise LogClosed
        if self.failure is not None:
            raise LogReadOnly(self.failure)

    def failing(self, doing: str) -> Failing:
        """What makes the log permanently read-only if the device fails in the block."""
        return Failing(self, doing)

    def fail(self, reason: str) -> None:
        """Make the log permanently read-only; the first reason is kept."""
        if self.failure is None:
            self.failure = reason

    def _lost(self, reason: str) -> None:
        """The files are not in place: the open ones may be recovered, so buffered frames are written to them first."""
        if self.failure is None:
            with suppress(OSError, NoRoom):  # The log fails in any case, for the reason that matters more.
                self.writer.write_out()
        self.fail(reason)

    def corrupt(self, file: str, position: int, reason: str) -> FrameCorrupt:
        """Return the error for rotten bytes, and note that this log has rot."""
        error = FrameCorrupt(file, position, reason)
        self.rot = self.rot or str(error)
        return error

    def set_durable(self, tail: Tail, segment: Segment, position: int) -> None:
        """Note how far the log is durable."""
        self.durable, self.durable_segment, self.durable_position = tail, segment, position
        if segment is self.writer.segment:
            self.writer.proven = position

    def next_mark(self, *, clean: bool = False) -> Mark:
        """Return the mark that says what is durable now."""
        durable = self.durable
        commit_index = durable.index if self.standalone else min(self.mark.commit_index, durable.index)
        return Mark(
            0,
            durable.index,
            self.durable_segment.base_index,
            self.durable_position,
            durable.epoch,
            commit_index,
            durable.crc32c,
            clean,
        )

    def prepare_spare(self) -> None:
        """Begin to allocate the next segment's store in another thread, once half of this one is full."""
        spare, elsewhere = self.spare, self.segments.elsewhere
        if spare is None or spare.has_begun or elsewhere is None:
            return
        if 2 * self.writer.segment.end > self.options.segment_bytes:
            spare.has_begun = True
            elsewhere(lambda: spare.prepare(elsewhere))

    def settle_flush(self) -> None:
        """Finish a flush in progress here, so that no two syncs of one file run at once."""
        if self.flush is not None:
            self.flush.run()

    def settle_expiry(self) -> None:
        """Finish a removal in progress here: the next change must not overlap with it."""
        if self.expiry is not None:
            self.expiry.run()

    def sync_all(self) -> None:
        """Write out and sync the write segment, and note that all is durable."""
        # Another thread may run a flush: of two syncs at once, only one may get the device's error.
        self.settle_flush()
        self.writer.write_out()
        self.writer.store.sync()
        self.set_durable(self.tail, self.writer.segment, self.writer.segment.end)

    def retire(self, storage: Storage) -> None:
        """Close a file; if a flush is in progress, when that has ended."""
        if self.flush is None:
            storage.close()
        else:
            self.retired.append(storage)

    def close_retired(self) -> None:
        """Close the files that waited for the flush to end."""
        for storage in self.retired:
            storage.close()
        self.retired.clear()

    def close_files(self) -> None:
        """Close every file; the one that a flush in progress syncs is closed when that has ended."""
        self.closed = True
        if self.spare is not None:
            self.spare.close()
        self.retire(self.writer.store)
        self.segments.close()
        self.mark.close()
        self.watch.close()

    def take_write_segment(self, writer: WriteSegment, survey: Survey) -> None:
        """Make `writer` the write segment and take tail, epochs and members records from its survey."""
        self.writer = writer
        self.tail = survey.tail
        self.epochs += survey.epochs
        below = writer.header.members_index
        self.members = ([] if below is None else [below]) + survey.members
