"""Truncation: cutting off the end of a log.

A sealed segment that becomes the write segment is walked first, by its frames' lengths: `Walk` does so in any thread,
and changes nothing. Within the write segment nothing is read: its index, epochs and members records are in memory.
Then the steps, in this order:

1. Lower the mark and sync it: from here on, anything above it may be missing without being rot.
2. Remove whole segments, last to first, the index before the store, so that what is left is always a log.
3. Sync the folder. A segment that a power loss restored later would follow frames that were never before it.
4. Truncate the store that is left, sync it, and preallocate it again; only then append. If a power loss undid that, old
   frames would come back after new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress

from ..errors import FrameCorrupt, FrameInvalid, LogError, NoRoom, ResourcesExhausted
from ..frames import Tail
from ..options import MAX_SEGMENT_BYTES, STORE_HEADER_BYTES, LogOptions
from ..segment.segments import Segment
from ..segment.store import StoreHeader, decode_store_header, store_name
from ..segment.survey import Survey
from ..segment.write_segment import WriteSegment, allocate_most
from ..state import LogState
from ..storage import Storage

_MOST_HELD = 16
"""Open files of segments that are removed, whose room another thread frees."""


class Walk:
    """A walk over the frames that a truncation leaves in a read segment: `run` it in any thread, then truncate."""

    def __init__(self, state: LogState, tail: Tail, segment: Segment, position: int) -> None:
        """The segment's file is open until `run` ends. Raises ResourcesExhausted."""
        self._tail, self._position = tail, position
        self._file = store_name(segment.base_index)
        self._found_in = self._place(state, segment)
        self._interval_bytes = state.options.index_interval_bytes
        first_kept = bisect_left(state.epochs, segment.base_index, key=lambda start: start[1])
        self._epoch_before = state.epochs[first_kept - 1][0] if first_kept else None
        self._store = state.segments.opened(self._file)
        self._found: tuple[StoreHeader, Survey] | None = None
        self._error: OSError | LogError | None = None

    @staticmethod
    def _place(state: LogState, segment: Segment) -> tuple[object, ...]:
        return state.generation, state.origin, segment.base_index

    def run(self) -> None:
        """Block until the walk is done. If it fails, the truncation raises that error before it changes anything."""
        try:
            self._found = self._walk()
        except FrameInvalid as error:
            self._error = FrameCorrupt(self._file, error.position, error.reason)
        except (OSError, LogError) as error:
            self._error = error
        finally:
            self._store.close()

    def _walk(self) -> tuple[StoreHeader, Survey]:
        header = decode_store_header(self._store.read_at(0, STORE_HEADER_BYTES), self._file)
        survey = Survey(header, self._interval_bytes, self._epoch_before)
        survey.glance(self._store, self._position)
        if survey.tail != self._tail:
            reason = f"ends in {survey.tail} where the log is truncated, not in {self._tail}"
            raise FrameCorrupt(self._file, self._position, reason)
        return header, survey

    def is_of(self, state: LogState, tail: Tail, segment: Segment, position: int) -> bool:
        """Whether this is what a truncation there needs, and the log was not truncated, reset or expired since."""
        return (self._tail, self._position, self._found_in) == (tail, position, self._place(state, segment))

    def found(self) -> tuple[StoreHeader, Survey]:
        """Return the segment's header and survey, or raise what stopped the walk."""
        if self._found is None:
            raise ValueError("the walk has not run") if self._error is None else self._error
        return self._found


def begin_walk(state: LogState, tail: Tail, segment: Segment, position: int) -> Walk | None:
    """Return the walk that a truncation at this boundary needs; None if it needs none."""
    return None if segment is state.writer.segment else Walk(state, tail, segment, position)


def truncate_at(state: LogState, tail: Tail, segment: Segment, position: int, walk: Walk | None = None) -> None:
    """Remove everything after `position` of `segment`, a frame boundary where the chain ends in `tail`. Blocks.

    `walk` has run; without one that fits, a walk that is needed is made here.

    Raises:
        ResourcesExhausted, DiskFull: the process can open no more files, or the disk has no room for an overwrite;
            nothing was removed.
        FrameCorrupt: the segment is corrupt; nothing was removed, and the log accepts no more changes.
        LogReadOnly: the device failed; only a restart tells which frames are still there.
    """
    was_written = state.writer.segment is segment
    walked = None
    # Open what the change needs before it begins: for the folder's sync, if segments are removed.
    if not was_written:
        walked = _walked(state, tail, segment, position, walk)
        state.segments.refuse_without_descriptor()
    store = state.writer.store if was_written else state.segments.opened(store_name(segment.base_index))
    with state.failing("truncating") as change:
        state.settle_flush()
        state.settle_expiry()
        state.writer.write_out()
        _lower_mark(state, tail, segment, position)
        state.generation += 1
        # If the device fails from here on, reads must not look for frames that may be gone.
        change.has_begun = True
        state.tail = tail
        state.writer.recent.clear()
        _remove_segments_after(state, segment)
        store.truncate(position)
        store.sync()
        preallocate(store, position, state.options, least=state.spare is not None)
        segment.end = position
        if walked is None:
            _cut_write_segment(state, tail)
        else:
            _take_as_write_segment(state, segment, store, *walked)
        # What is left was synced just now.
        state.set_durable(tail, segment, position)
        state.mark.write(state.next_mark())


def _lower_mark(state: LogState, tail: Tail, segment: Segment, position: int) -> None:
    """Lower the mark, durably, to this boundary or less. Raises NoRoom; nothing was changed."""
    before = state.durable, state.durable_segment, state.durable_position
    if state.durable.index >= tail.index:
        state.set_durable(tail, segment, position)
    try:
        state.mark.write_synced(state.next_mark())
    except NoRoom:
        state.set_durable(*before)
        raise


def _remove_segments_after(state: LogState, segment: Segment) -> None:
    if state.segments.last is segment:
        return
    state.retire(state.writer.store)
    remove_segments(state, state.segments.place_of(segment.base_index) + 1)
    # It was a read segment until now; from here on, its file is the write segment's.
    state.segments.forget(segment)


def remove_segments(state: LogState, kept: int) -> None:
    """Remove the segments after the first `kept`, last to first, and sync the folder.

    The room of some is freed `elsewhere`: they are open while their names go.
    """
    held: list[Storage] = []
    try:
        _remove_names(state, kept, held)
        state.files.sync()
    finally:
        for file in held:
            file.close() if state.segments.elsewhere is None else state.segments.elsewhere(file.close)


def _remove_names(state: LogState, kept: int, held: list[Storage]) -> None:
    """Remove the files; append open ones to `held`, but leave a descriptor for the sync of the folder."""
    spare = None if state.segments.elsewhere is None else _open_last(state)
    try:
        while len(state.segments) > kept:
            if spare is not None and len(held) < _MOST_HELD and (file := _open_last(state)) is not None:
                held.append(file)
            state.segments.remove_last()
    finally:
        if spare is not None:
            spare.close()


def _open_last(state: LogState) -> Storage | None:
    with suppress(ResourcesExhausted):
        return state.files.open(store_name(state.segments.last.base_index))
    return None


def preallocate(store: Storage, end: int, options: LogOptions, *, least: bool = False) -> None:
    """Preallocate a write segment whose frames end at `end`; at `least`, or without room for it, the reserve alone."""
    needed, wished = room_of(end, options)
    try:
        allocate_most(store, needed if least else wished, needed)
    except NoRoom:
        # A truncation or an open needs no room. The next append asks again, and raises if there is still none.
        return


def room_of(end: int, options: LogOptions) -> tuple[int, int]:
    """Return the size that a write segment whose frames end at `end` needs at least, and its usual one.

    Reserved frames may have taken the reserve already. A frame above 4 GiB could not be found: positions are u32.
    """
    needed = max(end, min(end + options.reserve, MAX_SEGMENT_BYTES - 1))
    return needed, max(needed, options.segment_bytes + options.reserve)


def _cut_write_segment(state: LogState, tail: Tail) -> None:
    old = state.writer
    old.index.truncate(tail.index - old.segment.base_index)
    state.writer = WriteSegment(old.segment, old.header, old.store, old.index, state.options)
    del state.epochs[bisect_left(state.epochs, tail.index, key=lambda start: start[1]) :]
    state.members = [index for index in state.members if index < tail.index]


def _walked(
    state: LogState, tail: Tail, segment: Segment, position: int, walk: Walk | None
) -> tuple[StoreHeader, Survey]:
    if walk is None or not walk.is_of(state, tail, segment, position):
        walk = Walk(state, tail, segment, position)
        walk.run()
    with state.failing("truncating"):
        try:
            return walk.found()
        except ResourcesExhausted:
            raise
        except LogError as error:
            state.fail(str(error))
            raise


def _take_as_write_segment(
    state: LogState, segment: Segment, store: Storage, header: StoreHeader, survey: Survey
) -> None:
    del state.epochs[bisect_left(state.epochs, segment.base_index, key=lambda start: start[1]) :]
    state.take_write_segment(WriteSegment(segment, header, store, survey.index, state.options), survey)
