"""How far each cursor's consumer is behind, by this node's log and its table of cursors.

A consumer gets records of its share only, and no system records: commits are such records themselves. So a cursor is
behind only if there is a record for its consumer at or above its index. Its lag is then the distance from the first of
these to the end, in indices, which is an upper bound, and the age of that record, which is exact.

To find that record, frame headers are read from the cursor's index on. A share of n has a record in any n indices that
are not of system records, and runs of system records are remembered for all cursors together, so the search is short. A
node looks at all cursors again and again, for `/status`, metrics and alarms, with turns for the loop in between
(`look_forever`). Whoever may not wait, such as expiry, gets what the last look found, and a short look at those that
have moved since.
"""

import asyncio
import heapq
import shlex
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.log import Bounds, FrameHeader, Kind, Log, LogError
from quire.replication.lag import MICROSECONDS
from quire.sm import Applier, Cursor, Cursors, share_of

LOOK_S = 1.0
IDLE_SHARE = 10  # Between two looks, at least so many times as long as the last one took.
HEADERS_AT_ONCE = 64
CURSORS_AT_ONCE = 256
"""So many headers are read, and so many cursors are looked at, before the loop gets a turn."""
RECENT_HEADERS = 4_096
MAX_RUNS = 10_000
MAX_SERIES = 1_000
"""Of how many cursors the metrics show the lag; one that has a series keeps it while it lags."""
MAX_BEHIND = 10
"""Of how many cursors `/status` shows the lag: of those that are furthest behind."""
MAX_ALARMS = 10
UNMEASURED_BYTES = 1 << 62
"""The hold of a cursor that does not give way (`CursorLags.needed` says when)."""


class CursorLag(NamedTuple):
    """A cursor's lag: up to so many records, the oldest of which is so old. Both are 0 if its consumer has read all."""

    records: int
    seconds: float


class NeededFrom(NamedTuple):
    """A cursor that may hold the log: its consumer needs what is at `index` and above, and holds up to `hold_bytes`."""

    name: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    hold_bytes: int


class CursorRead(NamedTuple):
    """A cursor as it was when it was looked at. Its consumer continues at `next_index`, where all it needs begins.

    `since` is the timestamp of the record there; None if the consumer has read all. Up to `lost` records expired here
    before they were read.
    """

    name: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    next_index: int
    since: int | None
    lost: int
    found_at: float
    """When the record there was found, by a clock that is never set: a clock that went back makes no lag shorter."""


@dataclass(slots=True)
class _Place:
    """What is known of the records at and above a cursor's index."""

    index: int
    """The cursor's index."""
    at: int
    """Nothing in [index, at) is for the consumer, or it is lost."""
    since: int | None = None
    """The timestamp of the record at `at`, if that is for the consumer; 0 if it cannot be read."""
    lost: int = 0
    """How many indices of [index, at) had expired here before they were read."""
    found_at: float = 0.0
    """When `since` was found, in monotonic seconds."""


class _SystemRuns:
    """Stretches [start, end) of the log that hold system records only, as far as headers were read."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def end_of(self, index: int) -> int:
        """The end of the run that holds `index`; `index` itself if none is known."""
        at = bisect_right(self._starts, index) - 1
        return self._ends[at] if at >= 0 and index < self._ends[at] else index

    def add(self, start: int, end: int) -> None:
        """Note that [start, end) is a run, or a part of one."""
        at = bisect_left(self._starts, start)
        if at and self._ends[at - 1] >= start:
            at -= 1
            self._ends[at] = max(self._ends[at], end)
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
        while at + 1 < len(self._starts) and self._starts[at + 1] <= self._ends[at]:
            self._ends[at] = max(self._ends[at], self._ends.pop(at + 1))
            del self._starts[at + 1]
        del self._starts[:-MAX_RUNS], self._ends[:-MAX_RUNS]


class CursorLags:
    """The lag of each cursor on one node. One event loop."""

    def __init__(self, log: Log, bounds: Callable[[], Bounds], applier: Callable[[], Applier]) -> None:
        """`bounds` are those of the visible records."""
        self._log = log
        self._bounds = bounds
        self._applier = applier
        self._replayed_at = log.bounds.highest_index
        """Once all below is applied, the table of cursors has what was in the log when this node started."""
        self._places: dict[str, _Place] = {}
        self._runs = _SystemRuns()
        self._recent: dict[int, FrameHeader] = {}
        self._measured: Cursors | None = None
        """The table that a look has gone through since this node replayed its log; a snapshot installs another."""
        self._left = HEADERS_AT_ONCE
        self._searching = asyncio.Lock()
        self._shown: list[CursorRead] = []
        self._furthest: list[CursorRead] = []
        self.unlisted = 0
        """How many cursors lagged at the last look and are not `shown`."""
        self._lost: list[CursorRead] = []

    @property
    def _cursors(self) -> Cursors:
        return self._applier().cursors

    def __len__(self) -> int:
        """How many cursors there are."""
        return len(self._cursors)

    async def read(self, name: str, cursor: Cursor) -> CursorRead:
        """Look at a cursor."""
        place, share = self._place(name, cursor), share_of(name)
        if not self._advance(place, share):
            async with self._searching:  # One after the other: each finds what those before it have found.
                while not self._advance(place, share):
                    await self._turn()
        self._places[name] = place
        return CursorRead(name, cursor.index, place.at, place.since, place.lost, place.found_at)

    def lag_of(self, read: CursorRead, clock: int) -> CursorLag:
        """Its lag at a clock in microseconds."""
        if read.since is None:
            return CursorLag(0, 0.0)
        records = max(0, self._bounds().highest_index - read.next_index)
        if not read.since:
            return CursorLag(records, 0.0)
        return CursorLag(records, max((clock - read.since) / MICROSECONDS, time.monotonic() - read.found_at))

    def needed(self) -> list[NeededFrom] | None:
        """From where on the consumers of cursors that may hold the log need it; None if the cursors are not known yet.

        That is so until this node has replayed its log: a hold may be in a record that is not applied.

        Most are as the last look found. The lowest of those that have moved since are looked at now, if the search is
        short. The others hold what they may hold, from where they are on: no move raises that, however often they move.
        What others' commits take counts for that, so right after a start, until the first look has gone through all
        cursors, a hold does not give way. Nor does one whose consumer had read all: it keeps what was written since.
        """
        highest = self._bounds().highest_index
        if not self._has_replayed:
            return None
        holding = self._cursors.holding()
        moved = [(cursor.index, name, cursor) for name, cursor in holding if self._has_moved(name, cursor, highest)]
        left, self._left = self._left, HEADERS_AT_ONCE
        for _, name, cursor in heapq.nsmallest(HEADERS_AT_ONCE, moved):
            place = self._place(name, cursor)
            if self._advance(place, share_of(name)):
                self._places[name] = place
        self._left = left
        return [self._needed_by(name, cursor) for name, cursor in holding]

    @property
    def _has_replayed(self) -> bool:
        return self._applier().applied_index >= min(self._replayed_at, self._log.bounds.highest_index)

    def _has_moved(self, name: str, cursor: Cursor, highest: int) -> bool:
        """Whether the cursor is not where it was found, or its consumer had read all, and now there is more."""
        place = self._known(name, cursor)
        return place is None or (place.since is None and place.at < highest)

    def _needed_by(self, name: str, cursor: Cursor) -> NeededFrom:
        place = self._known(name, cursor)
        if place is None:
            is_bounded = self._measured is self._cursors
            at = self._runs.end_of(cursor.index)
            return NeededFrom(name, at, cursor.hold_bytes if is_bounded else UNMEASURED_BYTES)
        return NeededFrom(name, place.at, UNMEASURED_BYTES if place.since is None else cursor.hold_bytes)

    async def look_forever(self) -> None:
        """Look at every cursor, again and again."""
        pause_s = LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            await self.look()
            pause_s = max(LOOK_S, IDLE_SHARE * (time.monotonic() - began))

    async def look(self) -> None:
        """Look at every cursor once."""
        looked: list[CursorRead] = []
        cursors = self._cursors if self._has_replayed else None
        for number, (name, _) in enumerate(self._cursors.all(), 1):
            if (cursor := self._cursors.find(name)) is not None:
                looked.append(await self.read(name, cursor))
            if number % CURSORS_AT_ONCE == 0:
                await self._turn()
        self._measured = cursors
        known = {read.name for read in looked}
        self._places = {name: place for name, place in self._places.items() if name in known}
        self._furthest = heapq.nsmallest(MAX_BEHIND, looked, key=_oldest_first)
        shown = {read.name for read in self._shown}
        looked.sort(key=lambda read: (read.since is None, read.name not in shown, *_oldest_first(read)))
        self._shown = looked[:MAX_SERIES]
        self.unlisted = sum(read.since is not None for read in looked[MAX_SERIES:])
        self._lost = sorted(read for read in looked if read.lost)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        self._left = HEADERS_AT_ONCE

    def shown(self, clock: int) -> list[tuple[CursorRead, CursorLag]]:
        """Cursors as of the last look, at most MAX_SERIES: those that lag first, of these those shown before."""
        return self._with_lag(self._shown, clock)

    def behind(self, clock: int) -> list[tuple[CursorRead, CursorLag]]:
        """The cursors that are furthest behind, as of the last look, at most MAX_BEHIND."""
        return [(read, lag) for read, lag in self._with_lag(self._furthest, clock) if lag.records]

    def _with_lag(self, reads: list[CursorRead], clock: int) -> list[tuple[CursorRead, CursorLag]]:
        cursors = self._cursors
        return [(read, self.lag_of(read, clock)) for read in reads if cursors.find(read.name) is not None]

    def alarms(self) -> list[str]:
        """An alarm for each cursor whose consumer lacks records that have expired here; past MAX_ALARMS a count."""
        lowest = self._bounds().lowest_index
        alarms = [
            f"the cursor {read.name} is at index {read.index}, and this log begins at {lowest}: up to {read.lost:,} "
            f"records expired before its consumer read them; run it, or `quire cursor delete {shlex.quote(read.name)}`"
            for read in self._lost[:MAX_ALARMS]
        ]
        if (more := len(self._lost) - MAX_ALARMS) > 0:
            text = f"of {more} more cursors records expired before they were read"
            alarms.append(f"{text}; `quire cursor list` shows all")
        return alarms

    def _known(self, name: str, cursor: Cursor) -> _Place | None:
        """What was found of a cursor, unless it has moved beyond that, or back."""
        place = self._places.get(name)
        return place if place is not None and place.index <= cursor.index <= place.at else None

    def _place(self, name: str, cursor: Cursor) -> _Place:
        """What is known of a cursor, as a copy: a search may take turns, and another one may begin meanwhile."""
        place = self._known(name, cursor)
        if place is None:
            return _Place(cursor.index, cursor.index)
        lost = max(0, min(place.lost, self._bounds().lowest_index - cursor.index))
        return _Place(cursor.index, place.at, place.since, lost, place.found_at)

    def _advance(self, place: _Place, share: tuple[int, int]) -> bool:
        """Search on for the consumer's next record; return False if there is more to search after a turn."""
        bounds = self._bounds()
        place.at = self._runs.end_of(place.at) if place.since is None else place.at
        if place.at < bounds.lowest_index:
            place.lost += bounds.lowest_index - place.at
            place.at, place.since = bounds.lowest_index, None
        if place.since:
            return True
        try:
            return self._search(place, share, bounds.highest_index)
        except LogError:  # It may be for the consumer.
            place.since = 0
            return True

    def _search(self, place: _Place, share: tuple[int, int], highest: int) -> bool:
        shard, shards = share
        place.since = None
        while (at := min(self._runs.end_of(place.at), highest)) < highest:
            place.at = at
            header = self._recent.get(at)
            if header is None:
                if not self._left:
                    return False
                header = self._read_header(at)
            if header.kind == Kind.SYSTEM:
                self._runs.add(at, header.next_index)
            elif (first := at + (shard - at) % shards) < header.next_index:
                place.at, place.since, place.found_at = first, header.timestamp, time.monotonic()
                return True
            else:
                place.at = header.next_index
        place.at = max(place.at, at)
        return True

    def _read_header(self, at: int) -> FrameHeader:
        """The header of the frame that holds `at`. Raises LogError."""
        self._left -= 1
        header = self._recent[at] = self._log.reader.header(at)
        if len(self._recent) > RECENT_HEADERS:
            del self._recent[next(iter(self._recent))]
        return header


def _oldest_first(read: CursorRead) -> tuple[int, str]:
    return (1 << 63 if read.since is None else read.since), read.name


def cursor_rows(shown: Iterable[tuple[CursorRead, CursorLag]]) -> list[dict[str, object]]:
    """For `/status`."""
    return [{"name": read.name, "index": read.index, **lag._asdict(), "lost": read.lost} for read, lag in shown]
