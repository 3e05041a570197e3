"""How old a log's records are, as far as clocks can tell: what may expire by age, and when a write segment is rotated.

Two clocks judge, and neither is trusted alone. The wall clock may be years off and may be set at any time. The time
since boot is right, but says nothing of what was before this process. A segment is older than a limit if

- this process has held it, complete, for longer than that; or
- the timestamp of its last frame is further below the present time. That is the smaller of this node's clock and the
  newest frame's timestamp plus the time since that frame came (at the start of a process: since the start).

Where one clock alone stamps the frames (a standalone log, a cluster of one voter), a timestamp of this process proves
nothing: an append by a clock ten years ahead would make everything before it old. There the second rule is for what
was in the log when it was opened only, and the newest frame is the newest of then. If other clocks join (a lone voter
becomes one of three), it stays so until a frame has a later timestamp than those of the one clock: only that is theirs.

The first rule ends what a wrong clock left behind. If frames are stamped ten years ahead, they expire once this process
has held them for the limit.

Segments go as a whole. So that records do not wait for a quiet write segment to fill, it is rotated once its first
frame is older than the limit; the records in it have expired once they are twice as old. The log's last frame stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from ..errors import DiskFull
from ..frames import FrameHeader
from ..state import LogState
from .rotation import rotate


class Ages:
    """One open log's. It is asked again and again: what happens between two calls counts as happening at the second."""

    def __init__(
        self,
        state: LogState,
        header_at: Callable[[int], FrameHeader],
        clock: Callable[[], int],
        now: Callable[[], int],
    ) -> None:
        """`clock` is the wall clock, `now` the time since boot; both in microseconds. Use `Log.ages`."""
        self._state = state
        self._header_at = header_at
        self._clock = clock
        self._now = now
        opened = now()
        base, tail = state.writer.segment.base_index, state.tail
        self._generation = state.generation
        self._opened_at, self._opened_base, self._opened_tail = opened, base, tail
        self._newest, self._came_at = tail, opened
        self._stamped_alone = False  # at the last look
        self._alone_to = -1  # the last timestamp that may still be of one clock alone
        self._complete = [(base, opened)]  # (end, seen at): all segments up to this end were complete then; ascending
        self._begun = (
            (base, opened) if tail.index > base else None
        )  # the write segment, and when it was seen with a frame

    def aged_to(self, age: int | None, *, own_stamps: bool) -> int:
        """Everything below this index is older than `age` microseconds; None: no age is too old.

        `own_stamps`: one clock alone stamps this log's frames.
        """
        now = self._look()
        own_stamps = self._of_one_clock(own_stamps=own_stamps)
        if age is None:
            return 0
        held = 0
        while self._complete and now - self._complete[0][1] > age:
            held = self._complete[0][0]
            if len(self._complete) == 1 or now - self._complete[1][1] <= age:
                break
            del self._complete[0]
        segments = self._state.segments
        earliest = self._time(now, own_stamps=own_stamps) - age
        # A store's header has the timestamp of the frame before it: ages need no read, and survive a restart.
        place = bisect_left(range(len(segments)), earliest, key=lambda each: segments.at(each).origin.timestamp)
        stamped = segments.at(place - 1).base_index if place else 0
        return max(held, min(stamped, self._opened_base) if own_stamps else stamped)

    def rotate(self, age: int | None, floor: int | None, *, own_stamps: bool) -> bool:
        """Rotate the write segment if its first frame is older than `age`, and some of it is below `floor`. Blocks.

        Not while anything in it waits for a flush. If the disk is full, the next call tries again.

        Raises:
            LogReadOnly: the device failed.
        """
        now, state = self._look(), self._state
        own_stamps = self._of_one_clock(own_stamps=own_stamps)
        base = state.writer.segment.base_index
        if age is None or self._begun is None or state.readable_index < state.tail.index:
            return False
        state.refuse_if_unwritable()
        if floor is not None and floor <= base:
            return False
        held = now - self._begun[1] > age
        judged = not own_stamps or base < self._opened_tail.index
        earliest = self._time(now, own_stamps=own_stamps) - age
        if not held and not (judged and self._header_at(base).timestamp < earliest):
            return False
        try:
            rotate(state, 0)
        except DiskFull:
            return False
        self._look()
        return True

    def _of_one_clock(self, *, own_stamps: bool) -> bool:
        """Return whether the newest timestamp may be of one clock alone, now or before others joined."""
        if self._stamped_alone and not own_stamps:
            self._alone_to = self._newest.timestamp
        self._stamped_alone = own_stamps
        return own_stamps or self._newest.timestamp <= self._alone_to

    def _time(self, now: int, *, own_stamps: bool) -> int:
        """The present time, as far as it is certain that it has come."""
        if own_stamps:
            return min(self._clock(), self._opened_tail.timestamp + now - self._opened_at)
        return min(self._clock(), self._newest.timestamp + now - self._came_at)

    def _look(self) -> int:
        now, state = self._now(), self._state
        base, tail = state.writer.segment.base_index, state.tail
        if state.generation != self._generation:
            # Other frames may have come where some were truncated: what was seen of those proves nothing.
            self._generation = state.generation
            self._opened_base, self._opened_tail = 0, tail
            self._opened_at = now
            self._complete, self._begun = [(base, now)], None
        if tail != self._newest:
            self._newest, self._came_at = tail, now
        if base > self._complete[-1][0]:
            self._complete.append((base, now))
        if self._begun is None or self._begun[0] != base:
            self._begun = (base, now) if tail.index > base else None
        return now
