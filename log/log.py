"""The segmented log: what a node appends, ships, and reads again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .errors import DiskFull, LogReadOnly, RecordTooLarge, UnexpectedIndex
from .flush import Flush, Sync
from .frames import HEADER_BYTES, Frame, FrameHeader, Kind, Tail, follow, seal_header, walk_headers
from .options import STORE_HEADER_BYTES, LogOptions
from .payload import StoredRecord, encode_records, stored_record
from .reader import Reader
from .recovery import OpenRequest, open_state
from .removal import remove_log
from .rotation import rotate
from .state import LogState
from .storage import Directory
from .survey import names_members
from .truncation import truncate_at


class Bounds(NamedTuple):
    """What a log holds: [lowest_index, highest_index)."""

    lowest_index: int
    highest_index: int


class Log:
    """A log in a data directory: `mark`, and the segments in `log/`.

    One writer: everything is called on one thread, but for `Flush.run` and `Sync.run`, which block and may run in any.
    """

    def __init__(self, directory: Directory, state: LogState, clock: Callable[[], int], locked: bool) -> None:
        """Use `Log.open`."""
        self._directory = directory
        self._state = state
        self._clock = clock
        self._locked = locked
        self._reader = Reader(state)
        self._frame_limit = state.options.frame_limit
        self._mark_commit_index = state.commit_index

    @classmethod
    def open(
        cls,
        directory: Directory,
        options: LogOptions,
        *,
        cluster_id: bytes,
        initial_index: int = 0,
        clock: Callable[[], int],
        standalone: bool,
    ) -> Log:
        """Open the log in a data directory, or make one that begins at `initial_index`. Blocks.

        All that the returned log holds is durable. `clock` tells microseconds since the Unix epoch. A standalone log's
        commit_index is its durable_index. Takes the directory's lock unless the caller has it.

        Raises:
            LogRotten: bytes that were durable are not what was written.
            LogLocked, ForeignStore, UnknownVersion: it is not this process's, cluster's, program's to open.
            DiskFull: no room for a first segment.
        """
        if len(cluster_id) != 16 or not 0 <= initial_index < 1 << 63:
            raise ValueError(f"a cluster_id of {len(cluster_id)} bytes or initial_index {initial_index} cannot be")
        locked = directory.lock()
        try:
            state = open_state(OpenRequest(directory, options, cluster_id, initial_index, standalone))
        except BaseException:
            if locked:
                directory.unlock()
            raise
        return cls(directory, state, clock, locked)

    @property
    def bounds(self) -> Bounds:
        """First index held, next index to be written."""
        return Bounds(self._state.origin.index, self._state.tail.index)

    @property
    def durable_index(self) -> int:
        """Every record below survives a power loss."""
        return self._state.durable.index

    @property
    def size(self) -> int:
        """Bytes of the frames held."""
        return self._state.read_segments_bytes + self._state.writer.segment.end - STORE_HEADER_BYTES

    @property
    def segment_bases(self) -> Sequence[int]:
        """First index of each segment, ascending; the last one is the write segment's."""
        return self._state.segments.bases

    @property
    def tail(self) -> Tail:
        """The end of the chain: next index, and epoch, timestamp, crc32c of the last frame (zeros if none ever was)."""
        return self._state.tail

    @property
    def durable_tail(self) -> Tail:
        """The end of the durable chain."""
        return self._state.durable

    @property
    def origin(self) -> Tail:
        """The chain's end before `bounds.lowest_index`; zeros at the log's first frame."""
        return self._state.origin

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, first index) of the epochs in the log, ascending."""
        return self._state.epochs

    @property
    def members_index(self) -> int | None:
        """Index of the last `members` or `genesis` record, even if it is below the log; None if there never was one."""
        return self._state.members[-1] if self._state.members else None

    @property
    def mark_commit_index(self) -> int:
        """What the mark said of commit_index when the log was opened."""
        return self._mark_commit_index

    @property
    def failure(self) -> str | None:
        """Why the log is read-only, None if it is not."""
        return self._state.failure

    def epoch_at(self, index: int) -> int:
        """Return the epoch of the record at `index`.

        Raises:
            IndexOutOfBounds, IndexExpired: the log does not hold it.
        """
        self._reader.refuse_outside(index)
        epochs = self._state.epochs
        return epochs[bisect_right(epochs, index, key=lambda start: start[1]) - 1][0]

    def append(
        self,
        records: Sequence[Any],
        *,
        expected_index: int | None = None,
        epoch: int = 0,
        session: int = 0,
        sequence: int = 0,
    ) -> int:
        """Buffer values and `Record`s as one frame after the tail; return the index of the first.

        Not durable on return: flush, or await `GroupFlusher.flushed(index)`.

        Raises:
            UnexpectedIndex: `expected_index` is not the next one.
            PayloadInvalid: a value that cannot be stored.
            RecordTooLarge, DiskFull: as `append_payload`; nothing was appended.
            LogReadOnly: an earlier write or flush failed; restart to recover.
        """
        if expected_index is not None and expected_index != self._state.tail.index:
            raise UnexpectedIndex(expected_index, self._state.tail.index)
        payload = encode_records(records)
        return self.append_payload(
            payload, count=len(records), kind=Kind.RECORDS, epoch=epoch, session=session, sequence=sequence
        ).index

    def append_payload(
        self, payload: bytes, *, count: int, kind: int, epoch: int, session: int = 0, sequence: int = 0
    ) -> FrameHeader:
        """Buffer one frame of ready payload bytes; its timestamp is now, or the last frame's if that is later.

        Raises:
            RecordTooLarge: it fits in no segment, or is above `max_frame_bytes`; nothing was appended.
            DiskFull: no room; nothing was appended, and the log goes on.
            LogReadOnly: an earlier write or flush failed; restart to recover.
            PayloadInvalid: of kind `system` and no system record.
        """
        state = self._state
        state.refuse_if_unwritable()
        index, last_epoch, timestamp, prev_crc32c = state.tail
        if epoch < last_epoch or count < 1:
            raise ValueError(f"{count} records of epoch {epoch} cannot follow epoch {last_epoch}")
        members = kind == Kind.SYSTEM and names_members(payload)
        now = self._clock()
        if now > timestamp:
            timestamp = now
        header, head = seal_header(payload, index, epoch, timestamp, count, prev_crc32c, session, sequence, kind)
        self._make_room(HEADER_BYTES + len(payload))
        try:
            state.writer.put(header, head, payload)
        except OSError as error:
            raise self._failed("writing out", error) from error
        state.tail = Tail(index + count, epoch, timestamp, header[0])
        if epoch != last_epoch or not state.epochs:
            state.epochs.append((epoch, index))
        if members:
            state.members.append(index)
        return header

    def append_frames(self, raw: bytes | bytearray | memoryview) -> int:
        """Buffer a peer's whole frames as they are; return highest_index. All of them, or none.

        Raises:
            FrameInvalid, UnknownVersion: bytes that are no frame.
            ChainBroken: index, chain, epoch or timestamp do not follow.
            PayloadInvalid: a `system` frame without a system record.
            RecordTooLarge, DiskFull, LogReadOnly: as `append_payload`.
        """
        state = self._state
        state.refuse_if_unwritable()
        view = memoryview(raw)
        start, headers, members = state.tail, [], []
        tail = start
        for offset, header in walk_headers(view):
            tail = follow(tail, header)
            if header.size > self._frame_limit:
                raise RecordTooLarge(header.size, self._frame_limit)
            if header.kind == Kind.SYSTEM and names_members(view[offset + HEADER_BYTES : offset + header.size]):
                members.append(header.index)
            headers.append((offset, header))
        try:
            self._put_frames(view, headers, members)
        except OSError as error:
            raise self._failed("writing out", error) from error
        except DiskFull:
            if state.tail != start:
                self.truncate(start.index)
            raise
        return state.tail.index

    def _put_frames(self, view: memoryview, headers: list[tuple[int, FrameHeader]], members: list[int]) -> None:
        """Buffer verified frames, in one piece for each segment."""
        state = self._state
        waiting = iter([*members, -1])
        next_members = next(waiting)
        place = 0
        while place < len(headers):
            self._make_room(headers[place][1].size)
            writer = state.writer
            base = headers[place][0] - writer.segment.end
            first = place
            while place < len(headers):
                offset, header = headers[place]
                position = offset - base
                if place != first and not writer.takes_at(position, header.size):
                    break
                if position >= writer.index.next_position:
                    writer.index.add(header.crc32c, header.index, header.length, position)
                if not state.epochs or header.epoch != state.epochs[-1][0]:
                    state.epochs.append((header.epoch, header.index))
                if header.index == next_members:
                    state.members.append(header.index)
                    next_members = next(waiting)
                place += 1
            last_offset, last = headers[place - 1]
            writer.put_piece(view[headers[first][0] : last_offset + last.size], headers[first][1].index)
            state.tail = Tail(last.next_index, last.epoch, last.timestamp, last.crc32c)

    def read(self, index: int) -> StoredRecord:
        """Return the durable record at `index`.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why there is none.
        """
        return stored_record(self._reader.frame(index), index)

    def read_frame(self, index: int) -> Frame:
        """Return the durable frame that holds `index`.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why there is none.
        """
        return self._reader.frame(index)

    def read_frames(
        self, from_index: int, max_bytes: int, *, to_index: int | None = None, unflushed: bool = False
    ) -> tuple[bytes, int]:
        """Return raw whole frames from the border `from_index` on, verified, and the index behind them.

        At most `max_bytes`, but at least one frame if there is one; of one segment; never past `to_index`, nor past
        durable_index unless `unflushed`. Nothing and `from_index` where there is none.

        Raises:
            NotFrameBorder: `from_index` lies inside a frame.
            IndexOutOfBounds, IndexExpired, FrameCorrupt: why there is none.
        """
        return self._reader.frames(from_index, max_bytes, to_index, unflushed)

    def stream(self, from_index: int, to_index: int) -> Iterator[Frame]:
        """Yield the durable frames that hold [from_index, to_index), from segment to segment.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why one is missing; never a silent gap.
        """
        return self._reader.stream(from_index, to_index)

    def bytes_between(self, from_index: int, to_index: int) -> int:
        """Return the frame bytes between two frame borders.

        Raises:
            NotFrameBorder, IndexOutOfBounds, IndexExpired: an index is no border in this log.
        """
        return self._reader.bytes_between(from_index, to_index)

    def border_at_or_below(self, index: int) -> int:
        """Return the greatest frame border that is not above `index`.

        Raises:
            IndexOutOfBounds, IndexExpired: `index` is below the log.
        """
        return self._reader.border_at_or_below(index)

    def truncate(self, index: int) -> None:
        """Remove every record from `index`, a frame border, on. Blocks; what is left is durable on return.

        Raises:
            NotFrameBorder: `index` lies inside a frame; nothing was removed.
            IndexOutOfBounds, IndexExpired: it is not in the log.
            LogReadOnly: the device failed; restart to recover.
        """
        state = self._state
        state.refuse_if_unwritable()
        if index == state.tail.index:
            return
        self._reader.refuse_outside(index)
        tail, segment, position = self._reader.place_behind(index)
        self._reader.forget_borders()
        truncate_at(state, tail, segment, position)

    def begin_flush(self) -> Flush | None:
        """Write out what is buffered and return a flush that covers it; None if nothing waits or one is on its way.

        Run it in any thread, then call `end_flush`.

        Raises:
            LogReadOnly: the device failed, now or earlier.
        """
        state = self._state
        state.refuse_if_unwritable()
        if state.flush is not None or state.durable.index == state.tail.index:
            return None
        with state.failing("writing out"):
            state.writer.write_out()
        segment = state.writer.segment
        state.flush = Flush(state.writer.store, state.tail, segment, segment.end, state.generation)
        return state.flush

    def end_flush(self, flush: Flush, error: OSError | None = None) -> None:
        """Take note of how a flush ended: what it covered is durable, or the log is read-only for ever.

        Raises:
            LogReadOnly: the mark could not be written.
        """
        state = self._state
        if flush is not state.flush:
            raise ValueError("this flush was ended before, or is another log's")
        state.flush = None
        state.close_retired()
        if error is not None:
            state.fail(f"flushing: {error}")
        if state.failure is not None or state.closed:
            return
        # A truncation since it began may have replaced what it covered; a rotation may have proven more.
        if flush.generation == state.generation and flush.tail.index > state.durable.index:
            state.set_durable(flush.tail, flush.segment, flush.position)
            with state.failing("writing the mark"):
                state.mark.write(state.next_mark())

    def flush(self) -> None:
        """Make everything that was appended durable; return when it is. Blocks.

        Raises:
            LogReadOnly: the device failed.
        """
        state = self._state
        if state.flush is not None:
            raise ValueError("a flush is on its way in another thread: end it first")
        flush = self.begin_flush()
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            self.end_flush(flush, error)
            raise LogReadOnly(state.failure or "") from error
        self.end_flush(flush)

    def set_commit_index(self, index: int) -> None:
        """Tell the log what is committed, for the mark; it writes no more than what is durable."""
        self._state.commit_index = index

    def begin_mark_sync(self) -> Sync | None:
        """Return a sync of the mark; None if it has not moved or one is on its way. To be called once a second.

        Run it in any thread, then call `end_mark_sync`.
        """
        state = self._state
        state.refuse_if_unwritable()
        with state.failing("writing the mark"):
            mark, latest = state.next_mark(), state.mark.latest
            if latest is None or mark != latest._replace(generation=0):
                state.mark.write(mark)
        return state.mark.begin_sync()

    def end_mark_sync(self, sync: Sync, error: OSError | None = None) -> None:
        """Take note of how a sync of the mark ended."""
        if error is not None:
            self._state.fail(f"syncing the mark: {error}")
        elif not self._state.closed:
            with self._state.failing("writing the mark"):
                self._state.mark.end_sync(sync)

    def close(self) -> None:
        """Flush, say in the mark that the log stopped cleanly, and give the files and the lock back. Blocks.

        After a failure nothing is written: the next open recovers.

        Raises:
            LogReadOnly: the device failed now.
        """
        state = self._state
        if state.closed:
            return
        try:
            if state.failure is None:
                with state.failing("closing"):
                    self._stop_cleanly()
        finally:
            state.closed = True
            state.retire(state.writer.store)
            state.segments.close()
            state.mark.close()
            if self._locked:
                self._directory.unlock()

    def _stop_cleanly(self) -> None:
        state, writer = self._state, self._state.writer
        state.settle_flush()
        writer.write_out()
        writer.store.sync()
        state.set_durable(state.tail, writer.segment, writer.segment.end)
        state.mark.write_synced(state.next_mark(clean=True))

    def remove(self) -> None:
        """Close the log and remove all its files. Blocks.

        A crash on the way leaves a log that opens, with the first segments that were not removed yet, or an empty one.
        """
        self.close()
        remove_log(self._directory)

    def _make_room(self, size: int) -> None:
        """Have a write segment that takes a frame of `size` bytes, and room for it on disk."""
        state = self._state
        if size > self._frame_limit:
            raise RecordTooLarge(size, self._frame_limit)
        if state.writer.is_full(size):
            rotate(state)
        state.writer.reserve(size)

    def _failed(self, doing: str, error: OSError) -> LogReadOnly:
        self._state.fail(f"{doing}: {error}")
        return LogReadOnly(self._state.failure or doing)
