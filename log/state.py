"""What a log knows of itself in memory; the operations on it stand in modules of their own.

Invariants, at every point where no operation is under way:

- segments ascend; each begins where the one before ends; the last one is the write segment
- lowest_index <= durable.index <= tail.index, and durable.index is a frame boundary in `durable_segment`
- the mark on disk never says more than `durable`
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from .errors import LogClosed, LogError, LogReadOnly
from .frames import Tail
from .options import STORE_HEADER_BYTES, LogOptions
from .segment.mark import Mark, MarkFile
from .segment.segments import Segment, Segments
from .segment.survey import Survey
from .segment.write_segment import Flush, WriteSegment
from .storage import Directory, Storage


class LogState:
    """The shared state of a log's parts; only the writer's thread touches it."""

    def __init__(
        self,
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
        self.read_segments_bytes = 0
        self.commit_index = 0
        self.generation = 0
        """Counts truncations: a flush of an earlier generation proves nothing."""
        self.flush: Flush | None = None
        self.retired: list[Storage] = []
        """Files that are no longer used, but that a flush on its way may still sync."""
        self.failure: str | None = None
        self.is_rotten = False
        """Whether a read found bytes that are not what was written: then no stop is called a clean one."""
        self.closed = False
        self.spools = 0
        """How many spools were begun: each has a file name of its own."""
        self.frame_limit = options.frame_limit
        self._reads_unflushed = options.flush_policy.never

    @property
    def readable_index(self) -> int:
        """Every record below may be read: it is durable, or nobody asked for that."""
        return self.tail[0] if self._reads_unflushed else self.durable[0]

    def refuse_if_unwritable(self) -> None:
        """Raise what keeps the log from being written to, if anything does."""
        if self.closed:
            raise LogClosed
        if self.failure is not None:
            raise LogReadOnly(self.failure)

    @contextmanager
    def failing(self, doing: str) -> Generator[None]:
        """Turn the log read-only for ever if the device fails in the block: a failed write or sync proves nothing.

        So does what breaks in anywhere, KeyboardInterrupt or MemoryError: how far the block came is not known.
        """
        try:
            yield
        except LogError:
            # Refused where nothing had changed; where something had, whoever raised it says so.
            raise
        except OSError as error:
            self.fail(f"{doing}: {error}")
            raise LogReadOnly(self.failure or doing) from error
        except BaseException as error:
            self.fail(f"{doing}: {error!r}")
            raise

    def fail(self, reason: str) -> None:
        """Turn the log read-only for ever; the first reason stays."""
        if self.failure is None:
            self.failure = reason

    def set_durable(self, tail: Tail, segment: Segment, position: int) -> None:
        """Take note of how far the log is durable."""
        self.durable, self.durable_segment, self.durable_position = tail, segment, position

    def next_mark(self, *, clean: bool = False) -> Mark:
        """Return the mark that tells what is durable now."""
        durable = self.durable
        commit_index = durable.index if self.standalone else min(self.commit_index, durable.index)
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

    def settle_flush(self) -> None:
        """Run a flush that is on its way to its end, so that no two syncs meet on one file."""
        if self.flush is not None:
            self.flush.run()

    def retire(self, storage: Storage) -> None:
        """Close a file, later if a flush is on its way."""
        if self.flush is None:
            storage.close()
        else:
            self.retired.append(storage)

    def close_retired(self) -> None:
        """Close what waited for the flush to end."""
        for storage in self.retired:
            storage.close()
        self.retired.clear()

    def close_files(self) -> None:
        """Close every file; one that a flush on its way syncs is closed at that flush's end."""
        self.closed = True
        self.retire(self.writer.store)
        self.segments.close()
        self.mark.close()

    def take_write_segment(self, writer: WriteSegment, survey: Survey) -> None:
        """Make `writer`, surveyed to its end, the write segment: its tail is the log's, its epochs and members join."""
        self.writer = writer
        self.tail = survey.tail
        self.epochs += survey.epochs
        below = writer.header.members_index
        self.members = ([] if below is None else [below]) + survey.members
