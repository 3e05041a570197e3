"""Expiry: removing the oldest records, in whole read segments.

The steps, in this order:

1. Write and sync the mark, which then names a segment that stays. A mark that a power loss brings back must not name a
   segment that is gone.
2. Remove the oldest segment, its index before its store, and sync the folder; then the next one. Without that sync, a
   power loss could restore an older segment but not a newer one: a gap, which would be rot.

The write segment always stays, and so does the newest read segment until the write segment has a durable frame: the
mark needs a place, and the log needs its last frame.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ..errors import ResourcesExhausted
from ..options import STORE_HEADER_BYTES
from ..state import LogState


class Expirable(NamedTuple):
    """What an expiry removes: how many segments, all records below `to_index`, and how many bytes of frames."""

    segments: int
    to_index: int
    size: int


def expirable(state: LogState, aged_to: int, max_bytes: int | None, floor: int | None) -> Expirable:
    """Return what `remove_expired` would remove now."""
    due = count_due(state, aged_to, max_bytes, floor)
    size = sum(state.segments.at(place).end - STORE_HEADER_BYTES for place in range(due))
    return Expirable(due, state.segments.at(due).base_index, size)


def remove_expired(state: LogState, aged_to: int, max_bytes: int | None, floor: int | None) -> int:
    """Remove the segments that are due by the rules of `Log.remove_expired`; return how many. Blocks."""
    due = count_due(state, aged_to, max_bytes, floor)
    if due:
        try:
            state.segments.refuse_without_descriptor()
        except ResourcesExhausted:
            return 0
        with state.failing("expiring"):
            state.mark.write_synced(state.next_mark())
            for _ in range(due):
                _remove_first(state)
    return due


def count_due(state: LogState, aged_to: int, max_bytes: int | None, floor: int | None) -> int:
    """Return how many segments, from the first on, are due to go."""
    segments = state.segments
    size = state.read_segments_bytes + state.writer.segment.end - STORE_HEADER_BYTES
    removable = segments.place_of(state.durable_segment.base_index)
    if state.durable.index <= state.writer.segment.base_index:
        removable = min(removable, len(segments) - 2)
    due = 0
    while due < removable:
        following = segments.at(due + 1)
        if floor is not None and following.base_index > floor:
            break
        if following.base_index > aged_to and (max_bytes is None or size <= max_bytes):
            break
        size -= segments.at(due).end - STORE_HEADER_BYTES
        due += 1
    return due


def _remove_first(state: LogState) -> None:
    gone = state.segments.remove_first()
    state.origin = state.segments.first.origin
    state.read_segments_bytes -= gone.end - STORE_HEADER_BYTES
    lowest = state.origin.index
    kept = bisect_right(state.epochs, lowest, key=lambda start: start[1]) - 1
    if kept >= 0:
        # As after a restart: the first epoch held begins at the first record held.
        state.epochs[: kept + 1] = [(state.epochs[kept][0], lowest)]
    state.files.sync()
