"""Expiry: removing the oldest records, in whole read segments.

The steps, in this order:

1. Write and sync the mark, unless the synced one names a segment that stays already. A mark that a power loss brings
   back must not name a segment that is gone.
2. Take the oldest segment out of the log, on the log's thread: from then on nothing reads it.
3. Remove its files, in any thread, the index before the store, and sync the folder; then the next segment. Without that
   sync, a power loss could restore an older segment but not a newer one: a gap, which would be rot.

The write segment always stays, as does the newest read segment until the write segment has a durable frame: the mark
must point to a segment, and the log needs its last frame.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import ResourcesExhausted
from ..files import Sync
from ..options import STORE_HEADER_BYTES, time_since_boot, wall_clock
from ..segment.reader import Reader
from ..segment.removal import Expiry
from ..segment.segments import Segment
from ..state import LogState
from .ages import Ages


class Expirable(NamedTuple):
    """What is due: how many segments, all records below `to_index`, and how many bytes of frames."""

    segments: int
    to_index: int
    size: int


class LogExpiry:
    """Which of a log's oldest segments are due, and their removal.

    A segment is due if it ends at or below `aged_to` (`Ages`), or while the log's `size` exceeds `max_bytes`; but not
    if it holds a record at or above `floor`. The write segment stays, as does the newest read segment until a frame of
    the write segment is durable.
    """

    def __init__(self, state: LogState, reader: Reader) -> None:
        self._state = state
        self._reader = reader

    def ages(self, clock: Callable[[], int] = wall_clock, now: Callable[[], int] = time_since_boot) -> Ages:
        """Return the object that tracks the ages of the log's records from now on; both clocks in microseconds."""
        return Ages(self._state, self._reader.header, clock, now)

    def due(self, *, aged_to: int = 0, max_bytes: int | None = None, floor: int | None = None) -> Expirable:
        """Return what `remove` would remove now."""
        segments = self._state.segments
        due = _count_due(self._state, aged_to, max_bytes, floor)
        return Expirable(due, segments.at(due).base_index, segments.bytes_between(0, due))

    def remove(self, *, aged_to: int = 0, max_bytes: int | None = None, floor: int | None = None) -> int:
        """Remove the segments that are due, the oldest first; return how many. Blocks.

        Raises:
            LogReadOnly: the device failed; only a restart tells which segments are left.
        """
        state, count = self._state, 0
        state.refuse_if_unwritable()
        with state.failing("expiring"):
            state.mark.settle()
            while (expiry := self.begin(aged_to=aged_to, max_bytes=max_bytes, floor=floor)) is not None:
                expiry.run()
                self.end(expiry)
                count += 1
        return count

    def begin(self, *, aged_to: int = 0, max_bytes: int | None = None, floor: int | None = None) -> Expiry | None:
        """Take the oldest segment out of the log if it is due; return the removal of its files.

        Call its `run` in any thread, then `end`. From this call on nothing reads the segment. None also while another
        removal or a sync of a mark that names the segment is in progress, or if no file can be opened.

        Raises:
            LogReadOnly: the device failed.
        """
        state = self._state
        state.refuse_if_unwritable()
        if state.expiry is not None or not _count_due(state, aged_to, max_bytes, floor):
            return None
        try:
            state.segments.refuse_without_descriptor()
        except ResourcesExhausted:
            return None
        mark_sync = None
        if _mark_is_behind(state):
            mark_sync = _begin_mark_sync(state)
            if mark_sync is None:
                return None
        gone = _take_first(state)
        size = gone.end - STORE_HEADER_BYTES
        state.expiry = Expiry(state.files, gone.base_index, state.origin.index, size, mark_sync)
        return state.expiry

    def end(self, expiry: Expiry, error: OSError | None = None) -> None:
        """Note how a removal ended: the files are gone, or the log is now read-only. Raises LogReadOnly."""
        state = self._state
        if expiry is not state.expiry:
            raise ValueError("this removal has ended before, or is of another log")
        state.expiry = None
        if error is not None:
            state.fail(f"expiring: {error}")
        elif expiry.mark_sync is not None and not state.closed:
            with state.writing_mark:
                state.mark.end_sync(expiry.mark_sync)


def _count_due(state: LogState, aged_to: int, max_bytes: int | None, floor: int | None) -> int:
    """Return how many segments, from the first on, are due. Its cost does not grow with their number."""
    segments = state.segments
    removable = segments.place_of(state.durable_segment.base_index)
    if state.durable.index <= state.writer.segment.base_index:
        removable = min(removable, len(segments) - 2)
    if floor is not None:
        removable = min(removable, _ending_by(segments.bases, floor))
    due = _ending_by(segments.bases, aged_to)
    if max_bytes is not None:
        due = max(due, segments.count_over(state.size - max_bytes))
    return max(0, min(removable, due))


def _ending_by(bases: Sequence[int], index: int) -> int:
    """How many segments end at or below an index; the last one does not count."""
    return max(0, bisect_right(bases, index) - 1)


def _mark_is_behind(state: LogState) -> bool:
    """Return whether the mark on disk may name the oldest segment."""
    synced = state.mark.synced
    return synced is None or synced.segment_base < state.segments.at(1).base_index


def _begin_mark_sync(state: LogState) -> Sync | None:
    """Return a sync of a mark that names a segment that stays; None if another sync is in progress."""
    if state.mark.is_syncing:
        return None
    with state.writing_mark:
        state.mark.write(state.next_mark())
    return state.mark.begin_sync()


def _take_first(state: LogState) -> Segment:
    gone = state.segments.take_first()
    state.origin = state.segments.first.origin
    lowest = state.origin.index
    kept = bisect_right(state.epochs, lowest, key=lambda start: start[1]) - 1
    if kept >= 0:
        # As after a restart: the first epoch held begins at the first record held.
        state.epochs[: kept + 1] = [(state.epochs[kept][0], lowest)]
    return gone
