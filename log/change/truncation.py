"""Cutting the end of a log off.

The steps, and why in this order:

1. The mark is lowered and synced: from here on what lies above it may be missing without being rot.
2. Whole segments go, last to first, the index before the store, so that what is left is always a log.
3. The folder is synced: a segment that came back by a power loss would follow frames that were never before it.
4. The store that is left is cut, synced, and preallocated again; only then may anything be appended. A cut that a
   power loss takes back would bring old frames back behind new ones.
"""

from __future__ import annotations

from bisect import bisect_left

from ..errors import DiskFull, FrameCorrupt, FrameInvalid
from ..frames import Tail
from ..options import STORE_HEADER_BYTES
from ..segment.segments import Segment
from ..segment.store import decode_store_header, store_name
from ..segment.survey import Survey
from ..segment.write_segment import WriteSegment
from ..state import LogState
from ..storage import Storage


def truncate_at(state: LogState, tail: Tail, segment: Segment, position: int) -> None:
    """Cut everything behind `position` of `segment`, a frame boundary where `tail` is the chain's end. Blocks.

    Raises:
        LogReadOnly: the device failed; which frames are still there is known after a restart.
    """
    with state.failing("truncating"):
        state.settle_flush()
        state.writer.write_out()
        state.generation += 1
        if state.durable.index >= tail.index:
            state.set_durable(tail, segment, position)
        state.mark.write_synced(state.next_mark())
        # If the device fails from here on, nobody looks for what may be gone.
        state.tail = tail
        _remove_segments_behind(state, segment)
        was_written = state.writer.segment is segment
        store = state.writer.store if was_written else state.files.open(store_name(segment.base_index))
        store.truncate(position)
        store.sync()
        preallocate(store, state.options.segment_bytes)
        segment.end = position
        _take_as_write_segment(state, segment, store, tail)
        # What is left was synced just now.
        state.set_durable(tail, segment, position)
        state.mark.write(state.next_mark())


def _remove_segments_behind(state: LogState, segment: Segment) -> None:
    if state.segments.last is segment:
        return
    state.retire(state.writer.store)
    while state.segments.last is not segment:
        state.segments.remove_last()
    state.files.sync()
    # It was a read segment until now; from here on its file belongs to the writer.
    state.segments.forget(segment)
    state.read_segments_bytes = sum(
        state.segments.at(place).end - STORE_HEADER_BYTES for place in range(len(state.segments) - 1)
    )


def preallocate(store: Storage, length: int) -> None:
    """Have room for a write segment if there is some."""
    try:
        store.allocate(length)
    except DiskFull:
        # Neither cutting nor opening needs room. The next append asks again, and says so if there still is none.
        return


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
