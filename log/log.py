"""The segmented log: what a node appends, ships, and reads again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from .change.append import append_raw, make_room, put_spooled
from .change.expiry import Expirable, expirable, remove_expired
from .change.recovery import OpenRequest, open_state
from .change.reset import follows, remove_log, reset_to
from .change.rewrite import cut_frame, finish_rewrites, rewrite, set_aside
from .change.spool import Spool
from .change.truncation import truncate_at
from .errors import DiskFull, LogClosed, LogError, LogReadOnly, NotFrameBoundary, RecordTooLarge, UnexpectedIndex
from .frames import HEADER_BYTES, Frame, FrameHeader, Kind, Tail, seal_header
from .options import FLUSH_ALWAYS, STORE_HEADER_BYTES, FlushPolicy, LogOptions
from .payload import StoredRecord, encode_records, stored_record
from .segment.reader import Reader
from .segment.survey import names_members
from .segment.value_stream import ValueStream
from .segment.write_segment import Flush
from .state import LogState
from .storage import Directory, Sync


class Bounds(NamedTuple):
    """What a log holds: [lowest_index, highest_index)."""

    lowest_index: int
    highest_index: int


class Log:
    """A log in a data directory: `mark`, and the segments in `log/`.

    One writer: all is called on one thread, but for `Flush.run`, `Sync.run`, `Spool.write`, which block: those in any.
    """

    def __init__(self, directory: Directory, state: LogState, clock: Callable[[], int], locked: bool) -> None:
        """Use `Log.open`."""
        self._directory = directory
        self._state = state
        self._clock = clock
        self._locked = locked
        self._reader = Reader(state)
        self._lookup = self._reader.lookup
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
        if not standalone and options.flush_policy != FLUSH_ALWAYS:
            raise ValueError("a cluster acknowledges what is durable: its flush policy is FLUSH_ALWAYS")
        locked = directory.lock()
        try:
            state = open_state(OpenRequest(directory, options, cluster_id, initial_index, standalone))
            try:
                log = cls(directory, state, clock, locked)
                finish_rewrites(log, state.files)
            except BaseException:
                state.close_files()
                raise
        except BaseException:
            if locked:
                directory.unlock()
            raise
        return log

    @property
    def bounds(self) -> Bounds:
        """First index held, next index to be written."""
        return Bounds(self._state.origin.index, self._state.tail.index)

    @property
    def durable_index(self) -> int:
        """Every record below survives a power loss."""
        return self._state.durable.index

    @property
    def readable_index(self) -> int:
        """Every record below can be read: durable_index, or highest_index where the policy is never to flush."""
        return self._state.readable_index

    @property
    def flush_policy(self) -> FlushPolicy:
        """When its records are to be flushed."""
        return self._state.options.flush_policy

    @property
    def size(self) -> int:
        """Bytes of the frames held."""
        return self._state.read_segments_bytes + self._state.writer.segment.end - STORE_HEADER_BYTES

    @property
    def segment_bases(self) -> Sequence[int]:
        """First index of each segment, ascending; the last one is the write segment's."""
        return self._state.segments.bases

    @property
    def cached_indexes(self) -> Sequence[int]:
        """Base indices of the read segments whose index is in memory, ascending."""
        return self._state.segments.cached_indexes

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
        self._lookup.refuse_outside(index)
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
        if state.failure is not None or state.closed:
            state.refuse_if_unwritable()
        index, last_epoch, timestamp, prev_crc32c = state.tail
        if epoch < last_epoch or count < 1:
            raise ValueError(f"{count} records of epoch {epoch} cannot follow epoch {last_epoch}")
        members = kind == Kind.SYSTEM and names_members(payload)
        now = self._clock()
        if now > timestamp:
            timestamp = now
        length = len(payload)
        header, head = seal_header(
            length, crc32c(payload), index, epoch, timestamp, count, prev_crc32c, session, sequence, kind
        )
        size = HEADER_BYTES + length
        if size > state.frame_limit or size > state.writer.easy_end - state.writer.segment.end:
            make_room(state, size)
        try:
            state.writer.put(header, head, payload)
            state.tail = tuple.__new__(Tail, (index + count, epoch, timestamp, header[0]))
            if epoch != last_epoch or not state.epochs:
                state.epochs.append((epoch, index))
            if members:
                state.members.append(index)
        except BaseException:
            # Whatever breaks in, KeyboardInterrupt too, may leave a frame that the tail does not count.
            with state.failing("writing out"):
                raise
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
        start = state.tail
        try:
            append_raw(state, raw)
        except DiskFull:
            if state.tail != start:
                self.truncate(start.index)
            raise
        return state.tail.index

    def append_stream(
        self,
        chunks: Iterable[bytes],
        threshold: int | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        expected_index: int | None = None,
        epoch: int = 0,
    ) -> int:
        """Append a value that comes in chunks as one blob, however large; return its index.

        Nothing of it is in the log until the last chunk is here: others may append meanwhile, and nothing is left if
        `chunks` raises. Memory is flat. `threshold` limits the frame's bytes in the store, header included; the log's
        own limit holds, too.

        Raises:
            RecordTooLarge: the frame would be above the threshold, which the error names.
            UnexpectedIndex, DiskFull, LogReadOnly: as `append`.
        """
        with self.begin_spool(threshold, metadata=metadata) as spool:
            for chunk in chunks:
                spool.write(chunk)
            return self.append_spool(spool, expected_index=expected_index, epoch=epoch)

    def begin_spool(self, threshold: int | None = None, *, metadata: Mapping[str, str] | None = None) -> Spool:
        """Return a spool for a value whose chunks come one by one, e.g. from a socket; then call `append_spool`.

        Raises:
            RecordTooLarge: not even `metadata` fit.
            LogReadOnly, LogClosed: the log takes nothing.
        """
        state = self._state
        state.refuse_if_unwritable()
        state.spools += 1
        limit = state.frame_limit if threshold is None else min(threshold, state.frame_limit)
        return Spool(state, state.spools, limit, metadata)

    def append_spool(self, spool: Spool, *, expected_index: int | None = None, epoch: int = 0) -> int:
        """Append what was spooled as one blob, buffered as `append` does, and close the spool; return its index.

        Raises:
            LogClosed: the spool was closed, by an error or by hand.
            UnexpectedIndex, RecordTooLarge, DiskFull, LogReadOnly: as `append`; nothing was appended.
        """
        state = self._state
        with spool:
            if spool.closed:
                raise LogClosed
            state.refuse_if_unwritable()
            if expected_index is not None and expected_index != state.tail.index:
                raise UnexpectedIndex(expected_index, state.tail.index)
            if epoch < state.tail.epoch:
                raise ValueError(f"a record of epoch {epoch} cannot follow epoch {state.tail.epoch}")
            return put_spooled(state, spool, epoch, self._clock()).index

    def read(self, index: int) -> StoredRecord:
        """Return the readable record at `index`.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why there is none.
        """
        return stored_record(self._reader.frame(index), index)

    def kind_at(self, index: int) -> int:
        """Return the kind of the frame that holds the readable record at `index`, unread; raises as `read`."""
        return self._reader.header(index).kind

    def read_stream(self, index: int) -> ValueStream:
        """Return the bytes of the blob, or of the record that is bytes, at `index`, in chunks and flat memory.

        Close it. It goes on while the log expires, in any one thread.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why there is none.
            PayloadInvalid: the record is no bytes.
        """
        return self._reader.value_stream(index)

    def read_frame(self, index: int) -> Frame:
        """Return the readable frame that holds `index`; raises as `read`."""
        return self._reader.frame(index)

    def read_frames(
        self, from_index: int, max_bytes: int, *, to_index: int | None = None, unflushed: bool = False
    ) -> tuple[bytes, int]:
        """Return raw whole frames from the boundary `from_index` on, verified, and the index behind them.

        At most `max_bytes`, but at least one frame if there is one; of one segment; never past `to_index`, nor past
        durable_index unless `unflushed`. Nothing and `from_index` where there is none.

        Raises:
            NotFrameBoundary: `from_index` lies inside a frame.
            IndexOutOfBounds, IndexExpired, FrameCorrupt: why there is none.
        """
        return self._reader.frames(from_index, max_bytes, to_index, unflushed)

    def stream(self, from_index: int, to_index: int) -> Iterator[Frame]:
        """Yield the readable frames that hold [from_index, to_index), from segment to segment without a lookup each.

        What expires meanwhile is `IndexExpired`, unless it was read before; where what it gave last is cut off, it ends
        in `ChainBroken` or `IndexOutOfBounds`. It never gives what was cut off before it was asked for.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt: why one is missing; never a silent gap.
        """
        return self._reader.stream(from_index, to_index)

    def stream_unbounded(self, from_index: int | None = None) -> Iterator[Frame]:
        """Yield the readable frames from the one that holds `from_index`, or the lowest, to the end.

        The end is where the log ends when it is reached: what is appended and flushed meanwhile comes, too.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed, FrameCorrupt, ChainBroken: as `stream`.
        """
        return self._reader.stream_unbounded(self._state.origin.index if from_index is None else from_index)

    def bytes_between(self, from_index: int, to_index: int) -> int:
        """Return the frame bytes between two frame boundaries.

        Raises:
            NotFrameBoundary, IndexOutOfBounds, IndexExpired: an index is no boundary in this log.
        """
        return self._lookup.bytes_between(from_index, to_index)

    def boundary_at_or_below(self, index: int) -> int:
        """Return the greatest frame boundary that is not above `index`.

        Raises:
            IndexOutOfBounds, IndexExpired: `index` is below the log.
        """
        return self._lookup.boundary_at_or_below(index)

    def truncate(self, index: int) -> None:
        """Remove every record from `index` on. Blocks; what is left is durable on return.

        `index` is a frame boundary; or, in a standalone log, inside a frame, whose records below it then become one
        frame. highest_index removes nothing.

        Raises:
            NotFrameBoundary: `index` lies inside a frame of a cluster's log; nothing was removed.
            IndexOutOfBounds, IndexExpired: it is not in the log.
            LogReadOnly: the device failed; restart to recover.
            DiskFull: no room to cut a frame in two; its records and all before it are there.
            RecordTooLarge: so are they, for what would stay of the frame is above a limit that was lowered.
        """
        state = self._state
        state.refuse_if_unwritable()
        if index == state.tail.index:
            return
        self._lookup.refuse_outside(index)
        try:
            self._cut(index)
        except NotFrameBoundary as inside:
            if not state.standalone:
                raise
            self._cut_frame(inside)

    def _cut(self, boundary: int) -> None:
        tail, segment, position = self._lookup.place_behind(boundary)
        self._lookup.forget_boundaries()
        truncate_at(self._state, tail, segment, position)

    def _cut_frame(self, inside: NotFrameBoundary) -> None:
        state = self._state
        # What a restart may have to put in the frame's place needs all before it durable.
        self._cut(inside.next_index)
        raw = cut_frame(self._reader.frame(inside.frame_index), inside.index - inside.frame_index)
        if len(raw) > state.frame_limit:
            raise RecordTooLarge(len(raw), state.frame_limit)
        with state.failing("cutting a frame in two"):
            set_aside(state.files, raw, inside.frame_index)
            try:
                rewrite(self, state.files, raw, inside.frame_index)
            except LogError as error:
                # The old frame may be cut already, so nothing must follow before a restart puts the new one there.
                raise self._failed("cutting a frame in two", error) from error

    def remove_expired(
        self, now: int, *, age: int | None = None, max_bytes: int | None = None, floor: int | None = None
    ) -> int:
        """Remove whole read segments, oldest first, that are too old or too much; return how many. Blocks.

        `age`: microseconds from a segment's last frame to `now`. `max_bytes`: the log's `size` after it. `floor`: no
        record from that index on goes. The write segment stays, and the newest read segment until a frame of the write
        segment is durable. Raises LogReadOnly: the device failed; what is still there is known after a restart.
        """
        self._state.refuse_if_unwritable()
        return remove_expired(self._state, now, age, max_bytes, floor)

    def expirable(
        self, now: int, *, age: int | None = None, max_bytes: int | None = None, floor: int | None = None
    ) -> Expirable:
        """What `remove_expired` would remove now."""
        return expirable(self._state, now, age, max_bytes, floor)

    def reset(self, origin: Tail, *, members_index: int | None = None) -> bool:
        """Have a log that goes on from `origin`, the chain's end of a snapshot; return whether it was emptied for that.

        A log that has the frame which ends at `origin`, or begins there, keeps all it holds. Any other is removed and
        begins anew, empty, at `origin.index`; `members_index` is that of the last members record below. Blocks; durable
        on return. The snapshot must be durable before: a crash on the way leaves a part of the old log, or an empty
        one, which the next `reset` removes.

        Raises:
            LogReadOnly: the device failed.
            DiskFull: no room for a segment; the log is read-only until a restart, and then empty.
        """
        state = self._state
        state.refuse_if_unwritable()
        if follows(state, self._lookup, origin):
            return False
        self._lookup.forget_boundaries()
        reset_to(state, origin, members_index)
        return True

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

        Raises LogReadOnly where the mark could not be written.
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
        """Make everything that was appended durable; return when it is. Blocks. Raises LogReadOnly."""
        state = self._state
        state.refuse_if_unwritable()
        if state.durable.index == state.tail.index:
            return
        with state.failing("flushing"):
            self._sync_all()
            state.mark.write(state.next_mark())

    def _sync_all(self) -> None:
        state, writer = self._state, self._state.writer
        # Another thread may have a flush on its way: of two syncs at once, one could take the other's error.
        state.settle_flush()
        writer.write_out()
        writer.store.sync()
        state.set_durable(state.tail, writer.segment, writer.segment.end)

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
                    self._sync_all()
                    # Who has met rot must not call the stop clean: the next open then looks at each frame.
                    state.mark.write_synced(state.next_mark(clean=not state.is_rotten))
        finally:
            state.close_files()
            if self._locked:
                self._directory.unlock()

    def remove(self) -> None:
        """Close the log and remove all its files. Blocks.

        A crash on the way leaves a log that opens, with the first segments that were not removed yet, or an empty one.
        """
        self.close()
        remove_log(self._directory)

    def _failed(self, doing: str, error: Exception) -> LogReadOnly:
        self._state.fail(f"{doing}: {error}")
        return LogReadOnly(self._state.failure or doing)
