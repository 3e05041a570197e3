"""The age of a log's records, as far as clocks show it: what may expire by age, and when a write segment is rotated.

Two clocks are used, and neither is trusted alone. The wall clock may be years off and may be set at any time, and so
may the clocks that stamp the frames, even those of a majority. The time since boot is right, but says nothing about the
time before this process. A segment is older than a limit if

- this process has held it, complete, for longer than that; or
- it was complete in the log when this process opened it, and the timestamp of its last frame is further below the
  current time than the limit. The current time is the smaller of this node's clock and the timestamp of the log's last
  frame at that moment, plus the time since then.

So records that arrive while this process runs are judged only by the time since boot: no timestamp makes them old or
keeps them. Earlier records are judged by earlier timestamps. If those come from clocks that were years ahead, and this
node's clock is ahead, too, young records seem old. Time during which the process was down counts only as far as the
last frame shows it.

Whole segments are removed. So that records do not wait for a quiet write segment to fill, it is rotated once its first
frame is older than the limit; its records expire when they are at most twice as old. The log's last frame stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from ..errors import NoRoom
from ..frames import FrameHeader
from ..state import LogState
from .rotation import rotate


class Ages:
    """The ages of one open log. It is called repeatedly: events between two calls count as happening at the second."""

    def __init__(
        self,
        state: LogState,
        header_at: Callable[[int], FrameHeader],
        clock: Callable[[], int],
        now: Callable[[], int],
    ) -> None:
        """`clock` is the wall clock, `now` the time since boot; both in microseconds. Use `LogExpiry.ages`."""
        self._state = state
        self._header_at = header_at
        self._clock = clock
        self._now = now
        opened = now()
        base, tail = state.writer.segment.base_index, state.tail
        self._generation = state.generation
        self._opened_at, self._opened_base, self._opened_tail = opened, base, tail
        self._complete = [(base, opened)]  # (end, seen at): all segments up to this end were complete then; ascending
        self._begun = (
            (base, opened) if tail.index > base else None
        )  # the write segment, and when it was seen with a frame

    def aged_to(self, age: int | None) -> int:
        """Everything below this index is older than `age` microseconds. `age` None: there is no limit."""
        now = self._look()
        if age is None:
            return 0
        held = 0
        while self._complete and now - self._complete[0][1] > age:
            held = self._complete[0][0]
            if len(self._complete) == 1 or now - self._complete[1][1] <= age:
                break
            del self._complete[0]
        segments = self._state.segments
        earliest = self._time(now) - age
        # A store's header has the timestamp of the frame before it: ages need no read, and survive a restart.
        place = bisect_left(range(len(segments)), earliest, key=lambda each: segments.at(each).origin.timestamp)
        stamped = segments.at(place - 1).base_index if place else 0
        return max(held, min(stamped, self._opened_base))

    def rotate(self, age: int | None, floor: int | None) -> bool:
        """Rotate the write segment if its first frame is older than `age` and a part of it is below `floor`. Blocks.

        It is not rotated while anything in it waits for a flush. If the disk is full, the next call tries again.

        Raises:
            LogReadOnly: the device failed.
        """
        now, state = self._look(), self._state
        base = state.writer.segment.base_index
        if age is None or self._begun is None or state.readable_index < state.tail.index:
            return False
        state.refuse_if_unwritable()
        if floor is not None and floor <= base:
            return False
        held = now - self._begun[1] > age
        was_there = base < self._opened_tail.index
        if not held and not (was_there and self._header_at(base).timestamp < self._time(now) - age):
            return False
        try:
            rotate(state, 0)
        except NoRoom:
            return False
        self._look()
        return True

    def _time(self, now: int) -> int:
        """The latest time that has certainly been reached."""
        return min(self._clock(), self._opened_tail.timestamp + now - self._opened_at)

    def _look(self) -> int:
        now, state = self._now(), self._state
        base, tail = state.writer.segment.base_index, state.tail
        if state.generation != self._generation:
            # Other frames may have come where some were truncated: what was seen of those proves nothing.
            self._generation = state.generation
            self._opened_base, self._opened_tail = 0, tail
            self._opened_at = now
            self._complete, self._begun = [(base, now)], None
        if base > self._complete[-1][0]:
            self._complete.append((base, now))
        if self._begun is None or self._begun[0] != base:
            self._begun = (base, now) if tail.index > base else None
        return now
