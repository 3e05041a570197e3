"""Truncation: cutting off the end of a log.

The steps, in this order:

1. Lower the mark and sync it: from here on, what lies above it may be missing without being rot.
2. Remove whole segments, last to first, the index before the store, so that what is left is always a log.
3. Sync the folder. A segment that a power loss restored later would follow frames that were never before it.
4. Cut the store that is left, sync it, and preallocate it again; only then append. If a power loss undid the cut, old
   frames would come back after new ones.

Within the write segment nothing is read again: its index, epochs and members records are in memory. Another segment
that becomes the write segment is walked by its frames' lengths.
"""

from __future__ import annotations

from bisect import bisect_left

from ..errors import DiskFull, FrameCorrupt, FrameInvalid
from ..frames import Tail
from ..options import MAX_SEGMENT_BYTES, STORE_HEADER_BYTES, LogOptions
from ..segment.segments import Segment
from ..segment.store import decode_store_header, store_name
from ..segment.survey import Survey
from ..segment.write_segment import WriteSegment, allocate_most
from ..state import LogState
from ..storage import Storage


def truncate_at(state: LogState, tail: Tail, segment: Segment, position: int) -> None:
    """Cut everything after `position` of `segment`, a frame boundary where the chain ends in `tail`. Blocks.

    Raises:
        ResourcesExhausted: the process can open no more files; nothing was removed.
        LogReadOnly: the device failed; only a restart tells which frames are still there.
    """
    was_written = state.writer.segment is segment
    # What the change opens is opened before it begins: the folder's sync, if segments go.
    if not was_written:
        state.segments.refuse_without_descriptor()
    store = state.writer.store if was_written else state.segments.opened(store_name(segment.base_index))
    with state.failing("truncating"):
        state.settle_flush()
        state.settle_expiry()
        state.writer.write_out()
        state.generation += 1
        if state.durable.index >= tail.index:
            state.set_durable(tail, segment, position)
        state.mark.write_synced(state.next_mark())
        # If the device fails from here on, reads must not look for what may be gone.
        state.tail = tail
        _remove_segments_after(state, segment)
        store.truncate(position)
        store.sync()
        preallocate(store, position, state.options)
        segment.end = position
        if was_written:
            _cut_write_segment(state, tail)
        else:
            _take_as_write_segment(state, segment, store, tail)
        # What is left was synced just now.
        state.set_durable(tail, segment, position)
        state.mark.write(state.next_mark())


def _remove_segments_after(state: LogState, segment: Segment) -> None:
    if state.segments.last is segment:
        return
    state.retire(state.writer.store)
    while state.segments.last is not segment:
        state.segments.remove_last()
    state.files.sync()
    # It was a read segment until now; from here on, its file is the write segment's.
    state.segments.forget(segment)


def preallocate(store: Storage, end: int, options: LogOptions) -> None:
    """Preallocate a write segment whose frames end at `end`, or the reserve alone if the disk has less room."""
    needed, wished = room_of(end, options)
    try:
        allocate_most(store, wished, needed)
    except DiskFull:
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
    old.index.cut(tail.index - old.segment.base_index)
    state.writer = WriteSegment(old.segment, old.header, old.store, old.index, state.options)
    del state.epochs[bisect_left(state.epochs, tail.index, key=lambda start: start[1]) :]
    state.members = [index for index in state.members if index < tail.index]


def _take_as_write_segment(state: LogState, segment: Segment, store: Storage, tail: Tail) -> None:
    file = store_name(segment.base_index)
    first_kept = bisect_left(state.epochs, segment.base_index, key=lambda start: start[1])
    epoch_before = state.epochs[first_kept - 1][0] if first_kept else None
    try:
        header = decode_store_header(store.read_at(0, STORE_HEADER_BYTES), file)
        survey = Survey(header, state.options.index_interval_bytes, epoch_before)
        survey.glance(store, segment.end)
    except FrameInvalid as error:
        state.fail(f"{file} is corrupt at byte {error.position}: {error.reason}")
        raise FrameCorrupt(file, error.position, error.reason) from error
    del state.epochs[first_kept:]
    writer = WriteSegment(segment, header, store, survey.index, state.options)
    state.take_write_segment(writer, survey)
    if survey.tail != tail:
        state.fail(f"{file} ends in {survey.tail} after the cut, not in {tail}")
        raise FrameCorrupt(file, segment.end, f"ends in {survey.tail} after the cut, not in {tail}")
