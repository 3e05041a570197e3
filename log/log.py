"""The segmented log: its interface, and the synchronous path of an append and of a flush.

Each change of several steps is a module of `change/`. `log/DESIGN.md` has the formats, the invariants and the crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from crc32c import crc32c

from .change.append import CheckMembers, Room, any_members, append_raw, make_room, taken_back
from .change.expiry import LogExpiry
from .change.recovery import OpenRequest, open_state
from .change.reset import remove_log, reset_to
from .change.rewrite import finish_rewrites, split_last_frame
from .change.spool import Spools
from .change.truncation import Walk, begin_walk, truncate_at
from .errors import (
    FrameCorrupt,
    LogError,
    LogRotten,
    NoRoom,
    NotFrameBoundary,
    ResourcesExhausted,
    UnexpectedIndex,
    Unreadable,
)
from .files import Sync
from .frames import HEADER_BYTES, FrameHeader, Kind, Tail, seal_header
from .options import LogOptions
from .payload import StoredRecord, encode_records, stored_record
from .segment.reader import Reader
from .segment.survey import names_members
from .segment.write_segment import Flush
from .state import Bounds, LogState
from .storage import Directory


class Log:
    """A log in a data directory: the file `mark`, and the segments in `log/`.

    Call all methods on one thread. `Flush.run`, `Sync.run` and `Spool.write` block, and may run in any thread.
    """

    def __init__(self, directory: Directory, state: LogState, clock: Callable[[], int], locked: bool) -> None:
        """Use `Log.open`."""
        self._directory = directory
        self._state = state
        self._clock = clock
        self._locked = locked
        self.flush_policy = state.options.flush_policy
        """When its records are flushed without a request."""
        self.segments = state.segments
        """Where each segment begins, and which indexes are in memory."""
        self.reader = Reader(state)
        """Reads of a frame, of a value's bytes, and streams of frames."""
        self.lookup = self.reader.lookup
        """Where frames begin."""
        self.spools = Spools(state, clock)
        """Appends of values that arrive in chunks."""
        self.room = Room(state)
        """Room on disk for further frames."""
        self.expiry = LogExpiry(state, self.reader)
        """Which of the oldest segments are due, and their removal."""
        self.mark = state.mark
        """Its `latest` was written, its `synced` survives a power loss. A cluster sets its `commit_index`."""
        self.mark_sync = MarkSync(state)
        """Syncs of the mark, once a second."""
        self.mark_commit_index = state.mark.commit_index
        """The commit_index in the mark when the log was opened."""
        self.watch = state.watch  # Its `look` and `judge` are to be called once a second.
        self.torn = state.torn
        """The bytes after the last whole frame that opening cut off, which were never acknowledged; None if none."""
        self.on_truncated: Callable[[int], None] = lambda _: None
        """Called with the index that the log was truncated at, after each truncation."""

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
        """Open the log in a data directory, or create one that begins at `initial_index`. Blocks.

        Everything in the returned log is durable. `clock` returns microseconds since the Unix epoch. A standalone log's
        commit_index is its durable_index. Locks the directory unless the caller has done so.

        Raises:
            LogRotten: durable bytes are not those that were written.
            LogLocked, ForeignStore, UnknownVersion: another process uses it, or another cluster or program wrote it.
            DiskFull: there is no room for a first segment.
        """
        if standalone:
            options = replace(options, reserve_bytes=0)
        request = OpenRequest(directory, options, cluster_id, initial_index, standalone)
        locked = directory.lock()
        try:
            state = open_state(request)
            try:
                log = cls(directory, state, clock, locked)
                finish_rewrites(log, state.files)
            except BaseException:
                state.close_files()
                raise
        except BaseException as error:
            if locked:
                directory.unlock()
            if isinstance(error, (FrameCorrupt, Unreadable)):
                raise LogRotten(error.file, error.position, error.reason) from error
            raise
        return log

    @property
    def bounds(self) -> Bounds:
        """Lowest index held, and the next index to be written."""
        return Bounds(self._state.origin.index, self._state.tail.index)

    @property
    def durable_index(self) -> int:
        """Every record below survives a power loss."""
        return self._state.durable.index

    @property
    def readable_index(self) -> int:
        """Every record below can be read: durable_index, or highest_index if the policy is never to flush."""
        return self._state.readable_index

    @property
    def size(self) -> int:
        """Bytes of the frames held."""
        return self._state.size

    @property
    def tail(self) -> Tail:
        """The end of the chain: next index, and epoch, timestamp and crc32c of the last frame (0 if there was none)."""
        return self._state.tail

    @property
    def durable_tail(self) -> Tail:
        """The end of the durable chain."""
        return self._state.durable

    @property
    def origin(self) -> Tail:
        """The end of the chain before `bounds.lowest_index`; zeros if that is the log's first frame."""
        return self._state.origin

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, first index held) of the epochs in the log, ascending."""
        return self._state.epochs

    @property
    def members_index(self) -> int | None:
        """Index of the last record that names the members, even if it is below the log; None if there never was one."""
        return self._state.members[-1] if self._state.members else None

    @property
    def failure(self) -> str | None:
        """Why the log is read-only; None if it is not."""
        return self._state.failure

    def append(
        self,
        records: Sequence[object],
        *,
        expected_index: int | None = None,
        epoch: int = 0,
        session: int = 0,
        sequence: int = 0,
    ) -> int:
        """Buffer values and `Record`s as one frame after the tail; return the index of the first.

        Not durable on return: call `flush`, or await `GroupFlusher.flushed(highest_index)`.

        Raises:
            UnexpectedIndex: `expected_index` is not the next index.
            PayloadInvalid: a value cannot be stored.
            RecordTooLarge, DiskFull: as `append_payload`; nothing was appended.
            LogReadOnly: an earlier write or sync failed; restart to recover.
        """
        if expected_index is not None and expected_index != self._state.tail.index:
            raise UnexpectedIndex(expected_index, self._state.tail.index)
        payload = encode_records(records)
        return self.append_payload(
            payload, count=len(records), kind=Kind.RECORDS, epoch=epoch, session=session, sequence=sequence
        ).index

    def append_payload(
        self,
        payload: bytes,
        *,
        count: int,
        kind: int,
        epoch: int,
        session: int = 0,
        sequence: int = 0,
        timestamp: int | None = None,
        reserved: bool = False,
    ) -> FrameHeader:
        """Buffer one frame with an encoded payload.

        Its timestamp is `timestamp`, or the log's clock if there is none; or the last frame's if that is later. On a
        full disk a `reserved` frame uses the reserve, which other frames do not.

        Raises:
            RecordTooLarge: it fits in no segment, or exceeds `max_frame_bytes`; nothing was appended.
            DiskFull: there is no room; nothing was appended, and the log stays usable.
            LogReadOnly: an earlier write or sync failed; restart to recover.
            PayloadInvalid: it is of kind `system` but not a system record.
        """
        state = self._state
        if state.failure is not None or state.closed:
            state.refuse_if_unwritable()
        index, last_epoch, stamp, prev_crc32c = state.tail
        if epoch < last_epoch or count < 1:
            raise ValueError(f"{count} records of epoch {epoch} cannot follow epoch {last_epoch}")
        members = kind == Kind.SYSTEM and names_members(payload)
        now = self._clock() if timestamp is None else timestamp
        if now > stamp:
            stamp = now
        length = len(payload)
        header, head = seal_header(
            length, crc32c(payload), index, epoch, stamp, count, prev_crc32c, session, sequence, kind
        )
        size = HEADER_BYTES + length
        if size > state.frame_limit or size > state.writer.free_end - state.writer.segment.end:
            make_room(state, size, reserved=reserved)
        try:
            state.writer.put(header, head, payload)
            state.tail = tuple.__new__(Tail, (index + count, epoch, stamp, header[0]))
            if epoch != last_epoch or not state.epochs:
                state.epochs.append((epoch, index))
            if members:
                state.members.append(index)
        except BaseException:
            # Any exception here, KeyboardInterrupt included, may leave a frame that the tail does not count.
            with state.writing_out:
                raise
        return header

    def append_frames(self, raw: bytes | bytearray | memoryview, check_members: CheckMembers = any_members) -> int:
        """Buffer a peer's frames unchanged; return highest_index. Those of kind `system` are `reserved`.

        All or none; but without a descriptor or room to remove some again, whole frames up to highest_index stay.
        `check_members` gets the payload and index of each members record; it may raise PayloadInvalid.

        Raises:
            FrameInvalid, UnknownVersion: the bytes are not whole frames of a known version.
            ChainBroken: index, chain, epoch or timestamp do not follow the tail.
            PayloadInvalid: a `system` frame holds no system record, or one that `check_members` refuses.
            RecordTooLarge, DiskFull, LogReadOnly: as `append_payload`.
        """
        state = self._state
        state.refuse_if_unwritable()
        start = state.tail.index
        try:
            append_raw(state, raw, check_members)
        except NoRoom:
            if taken_back(self.truncate, start):
                raise
        return state.tail.index

    def read(self, index: int) -> StoredRecord:
        """Return the readable record at `index`.

        Raises:
            IndexOutOfBounds, IndexExpired, NotYetFlushed: the record cannot be read.
            FrameCorrupt: its bytes are not those that were written.
        """
        return stored_record(self.reader.frame(index), index)

    def read_frames(
        self, from_index: int, max_bytes: int, *, to_index: int | None = None, unflushed: bool = False
    ) -> tuple[bytes, int]:
        """Return whole frames from the boundary `from_index` on as raw bytes, verified, and the index after them.

        They are of one segment and end at or before `to_index`, and at or before readable_index unless `unflushed`.
        They have at most `max_bytes`; but if there is a frame, one at least. If there is none: b"" and `from_index`.

        Raises:
            NotFrameBoundary: `from_index` lies inside a frame.
            IndexOutOfBounds, IndexExpired, FrameCorrupt: the log does not hold the frames, or they are corrupt.
        """
        return self.reader.frames(from_index, max_bytes, to_index, unflushed)

    def begin_truncation(self, index: int) -> Walk | None:
        """Return the walk that `truncate` to a boundary needs, None if none; `run` it in any thread. Raises as that."""
        self._state.refuse_if_unwritable()
        if index == self._state.tail.index:
            return None
        self.lookup.refuse_outside(index)
        return begin_walk(self._state, *self.lookup.end_before(index))

    def truncate(self, index: int, walk: Walk | None = None) -> None:
        """Remove every record from `index` on. Blocks; the records that stay are durable on return.

        `index` is a frame boundary; in a standalone log it may lie inside a frame, which is then split. highest_index
        removes nothing.

        Raises:
            NotFrameBoundary: `index` lies inside a frame of a cluster's log; nothing was removed.
            IndexOutOfBounds, IndexExpired: it is not in the log.
            LogReadOnly: the device failed; restart to recover.
            DiskFull, RecordTooLarge: the frame cannot be split; it and all records before it are still there.
        """
        state = self._state
        state.refuse_if_unwritable()
        if index == state.tail.index:
            return
        try:
            self.truncate_at_boundary(index, walk)
        except NotFrameBoundary as inside:
            if not state.standalone:
                raise
            # A restart may have to replace the frame: everything before it must be durable.
            self.truncate_at_boundary(inside.next_index)
            try:
                frame = self.reader.frame(inside.frame_index)
                split_last_frame(self, state, frame, inside.index - inside.frame_index)
            except LogError:
                self.on_truncated(inside.next_index)
                raise
        self.on_truncated(index)

    def truncate_at_boundary(self, boundary: int, walk: Walk | None = None) -> None:
        """Truncate at a frame boundary as a step of a longer change: without calling `on_truncated`."""
        if boundary != self._state.tail.index:
            self.lookup.refuse_outside(boundary)
        tail, segment, position = self.lookup.end_before(boundary)
        self.lookup.forget_boundaries()
        truncate_at(self._state, tail, segment, position, walk)

    def reset(self, origin: Tail, *, members_index: int | None = None) -> bool:
        """Make the log continue from `origin`, the end of a snapshot's chain; return whether it was emptied for that.

        A log that follows it (`Lookup.follows`) is not changed. Any other is emptied and begins at `origin.index`;
        `members_index` is the index of the last members record below. Blocks; durable on return. The snapshot must
        already be durable: a crash leaves the old log or an empty one, for the next `reset`.

        Raises:
            LogReadOnly: the device failed.
            DiskFull: there is no room for the beginning of a segment; the log is unchanged.
        """
        state = self._state
        state.refuse_if_unwritable()
        if self.lookup.follows(origin):
            return False
        self.lookup.forget_boundaries()
        reset_to(state, origin, members_index)
        return True

    def begin_flush(self) -> Flush | None:
        """Write buffered frames to the file; return a flush of them, None if all is durable or a flush is in progress.

        Call `run` of it in any thread, then `end_flush`.

        Raises:
            LogReadOnly: the device failed, now or earlier.
            DiskFull: it has no room for an overwrite. The frames wait in memory, and no others are appended.
        """
        state = self._state
        state.refuse_if_unwritable()
        if state.flush is not None or state.durable.index == state.tail.index:
            return None
        with state.writing_out:
            state.writer.write_out()
        if state.spare is not None:
            state.prepare_spare()
        segment = state.writer.segment
        state.flush = Flush(state.writer.store, state.tail, segment, segment.end, state.generation)
        return state.flush

    def end_flush(self, flush: Flush, error: OSError | None = None) -> None:
        """Note how a flush ended: the frames it covers are durable, or the log is now read-only.

        Raises LogReadOnly if the mark could not be written.
        """
        state = self._state
        if flush is not state.flush:
            raise ValueError("this flush has ended before, or is of another log")
        state.flush = None
        state.close_retired()
        if error is not None:
            state.fail(f"flushing: {error}")
        if state.failure is not None or state.closed:
            return
        # A truncation since it began may have replaced what it covered; a rotation may have proven more.
        if flush.generation == state.generation and flush.tail.index > state.durable.index:
            state.set_durable(flush.tail, flush.segment, flush.position)
            with state.writing_mark:
                state.mark.write(state.next_mark())

    def flush(self) -> None:
        """Make every appended record durable. Blocks. Raises LogReadOnly, DiskFull as `begin_flush`."""
        state = self._state
        state.refuse_if_unwritable()
        if state.durable.index == state.tail.index:
            return
        with state.failing("flushing"):
            state.sync_all()
            state.mark.write(state.next_mark())

    def close(self) -> None:
        """Flush, mark a clean stop, close the files, unlock the directory. Blocks. After a failure it writes nothing.

        Raises:
            LogReadOnly: the device failed during this call.
            DiskFull: an overwrite found no room: what was not durable is lost, and the next open checks every frame.
        """
        state = self._state
        if state.closed:
            return
        try:
            if state.failure is None:
                with state.failing("closing"):
                    with suppress(ResourcesExhausted):  # The next open finds the segment, or finds it gone.
                        state.settle_expiry()
                    state.sync_all()
                    # After rot was found, the next open must check every frame.
                    state.mark.write_synced(state.next_mark(clean=not state.rot))
        finally:
            state.close_files()
            if self._locked:
                self._directory.unlock()

    def remove(self) -> None:
        """Close the log and remove all its files. Blocks; a crash leaves a log that opens, whole or empty."""
        self.close()
        remove_log(self._directory)


class MarkSync:
    """Makes the mark of one log durable; `begin` is to be called once a second."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def begin(self) -> Sync | None:
        """Return a sync of the mark; None if it has not moved or a sync is in progress.

        Call `run` of the sync in any thread, then `end`.

        Raises:
            LogReadOnly: the device failed, now or earlier.
        """
        state = self._state
        state.refuse_if_unwritable()
        with state.writing_mark:
            mark, latest = state.next_mark(), state.mark.latest
            if latest is None or mark != latest._replace(generation=0):
                state.mark.write(mark)
        return state.mark.begin_sync()

    def end(self, sync: Sync, error: OSError | None = None) -> None:
        """Note how a sync of the mark ended."""
        state = self._state
        if error is not None:
            state.fail(f"syncing the mark: {error}")
        elif not state.closed:
            with state.writing_mark:
                state.mark.end_sync(sync)
