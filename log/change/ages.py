"""How old a log's records are, as far as clocks can tell: what may expire by age, and when a write segment is rotated.

Two clocks judge, and neither is trusted alone. The wall clock may be years off and may be set at any time, and so may
the clocks that stamp the frames, a majority's too. The time since boot is right, but says nothing of what was before
this process. A segment is older than a limit if

- this process has held it, complete, for longer than that; or
- it was in the log when this process opened it, complete, and the timestamp of its last frame is further below the
  present time. That is the smaller of this node's clock and the timestamp of the frame that was the log's last then,
  plus the time since.

So what came while this process runs is judged by the time since boot alone: no timestamp makes it old, and none keeps
it. What came before is judged by timestamps of before. If those were of clocks years ahead, and this node's clock is,
too, young records seem old. The time for which the process was down counts only as far as the last frame shows it.

Segments go as a whole. So that records do not wait for a quiet write segment to fill, it is rotated once its first
frame is older than the limit; the records in it have expired once they are twice as old. The log's last frame stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from ..errors import NoRoom
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
        self._complete = [(base, opened)]  # (end, seen at): all segments up to this end were complete then; ascending
        self._begun = (
            (base, opened) if tail.index > base else None
        )  # the write segment, and when it was seen with a frame

    def aged_to(self, age: int | None) -> int:
        """Everything below this index is older than `age` microseconds; None: no age is too old."""
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
        """Rotate the write segment if its first frame is older than `age`, and some of it is below `floor`. Blocks.

        Not while anything in it waits for a flush. If the disk is full, the next call tries again.

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
        """The present time, as far as it is certain that it has come."""
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
