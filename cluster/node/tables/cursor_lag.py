"""How far each cursor's reader is behind, by this node's log and its table of cursors.

A reader gets records of its share only, and no system records: commits are such records themselves. So a cursor is
behind only if there is a record for its reader at or above its index. Its lag is then the distance from the first of
these to the end, in indices, which is an upper bound, and the age of that record, which is exact.

To find that record, frame headers are read from the cursor's index on. What was found to hold nothing for the reader is
remembered, so each header is read once for a cursor that stands still. A node looks at all cursors again and again, for
`/status`, metrics and alarms, with turns for the loop in between (`look_forever`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.log import Bounds, Kind, Log, LogError
from quire.replication.lag import MICROSECONDS
from quire.sm import Cursor, Cursors, share_of

LOOK_S = 1.0
IDLE_SHARE = 10  # Between two looks, at least so many times as long as the last one took.
FRAMES_AT_ONCE = 64
"""How many headers are read before the loop gets a turn."""
CURSORS_AT_ONCE = 64
MAX_SHOWN = 100
"""Of how many cursors `/status` and the metrics show the lag: of those that are furthest behind."""
MAX_ALARMS = 10


class CursorLag(NamedTuple):
    """A cursor's lag: up to so many records, the oldest of which is so old. Both are 0 if its reader has read all."""

    records: int
    seconds: float


class NeededFrom(NamedTuple):
    """A cursor that may hold the log: its reader needs what is at `index` and above, and holds up to `hold_bytes`."""

    name: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    hold_bytes: int


class CursorRead(NamedTuple):
    """A cursor as it was looked at."""

    name: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    place: "Place"


@dataclass(slots=True)
class Place:
    """What is known of the records at and above a cursor's index."""

    index: int
    """The cursor's index."""
    at: int
    """Nothing in [index, at) is for the reader, or it is lost."""
    since: int = 0
    """The timestamp of the frame at `at`, or of the last one below that was read; 0 if none was."""
    found: bool = False
    """Whether the record at `at` is for the reader."""
    is_unreadable: bool = False
    """Whether the frame at `at` could not be read just now."""
    lost: int = 0
    """How many indices of [index, at) had expired here before they were read."""

    def lag(self, highest: int, clock: int) -> CursorLag:
        """The lag at a clock (microseconds), in a log that ends at `highest`."""
        if self.at >= highest:
            return CursorLag(0, 0.0)
        return CursorLag(highest - self.at, max(0, clock - self.since) / MICROSECONDS if self.since else 0.0)


class CursorLags:
    """The lag of each cursor on one node. One event loop."""

    def __init__(self, log: Log, bounds: Callable[[], Bounds], cursors: Callable[[], Cursors]) -> None:
        """`bounds` are those of the visible records."""
        self._log = log
        self._bounds = bounds
        self._cursors = cursors
        self._places: dict[str, Place] = {}
        self._shown: list[CursorRead] = []
        self._lost: list[CursorRead] = []

    def __len__(self) -> int:
        """How many cursors there are."""
        return len(self._cursors())

    async def place(self, name: str, cursor: Cursor) -> Place:
        """Where the cursor's reader finds its next record."""
        while True:
            place = self._advance(name, cursor)
            if place.found or place.is_unreadable or place.at >= self._bounds().highest_index:
                return place
            await asyncio.sleep(0)

    def lag_of(self, place: Place, clock: int) -> CursorLag:
        """The lag at a clock in microseconds."""
        return place.lag(self._bounds().highest_index, clock)

    def needed(self) -> list[NeededFrom]:
        """From where on the readers of cursors that may hold the log need it; without those that have read all."""
        holding = self._cursors().holding()
        places = [(name, cursor.hold_bytes, self._advance(name, cursor)) for name, cursor in holding]
        highest = self._bounds().highest_index
        return [NeededFrom(name, place.at, hold_bytes) for name, hold_bytes, place in places if place.at < highest]

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
        for number, (name, cursor) in enumerate(self._cursors().all(), 1):
            looked.append(CursorRead(name, cursor.index, await self.place(name, cursor)))
            if number % CURSORS_AT_ONCE == 0:
                await asyncio.sleep(0)
        known = {read.name for read in looked}
        self._places = {name: place for name, place in self._places.items() if name in known}
        self._shown = sorted(looked, key=_oldest_first)[:MAX_SHOWN]
        self._lost = [read for read in looked if read.place.lost][:MAX_ALARMS]

    def shown(self, clock: int) -> list[tuple[CursorRead, CursorLag]]:
        """The cursors that are furthest behind, as of the last look, at most MAX_SHOWN."""
        return [(read, self.lag_of(read.place, clock)) for read in self._shown]

    def behind(self, clock: int) -> list[tuple[CursorRead, CursorLag]]:
        """Those of `shown` whose consumers have not read all."""
        return [(read, lag) for read, lag in self.shown(clock) if lag.records]

    def alarms(self) -> list[str]:
        """An alarm for each cursor whose reader lacks records that have expired here, at most MAX_ALARMS."""
        lowest = self._bounds().lowest_index
        return [
            f"the cursor {read.name} is at index {read.index}, and this log begins at {lowest}: up to "
            f"{read.place.lost:,} records expired before its consumer read them; run it, or `quire cursor delete "
            f"{read.name}`"
            for read in self._lost
        ]

    def _advance(self, name: str, cursor: Cursor) -> Place:
        """What is known after at most FRAMES_AT_ONCE more headers."""
        bounds, place = self._bounds(), self._places.get(name)
        if place is None or not place.index <= cursor.index <= place.at:
            place = self._places[name] = Place(cursor.index, cursor.index)
        if cursor.index > place.index:
            place.index = cursor.index
            place.lost = max(0, min(place.lost, bounds.lowest_index - cursor.index))
        if place.at < bounds.lowest_index:
            place.lost += bounds.lowest_index - place.at
            place.at, place.found = bounds.lowest_index, False
        if not place.found:
            self._read_headers(place, share_of(name), bounds.highest_index)
        return place

    def _read_headers(self, place: Place, share: tuple[int, int], highest: int) -> None:
        shard, shards = share
        place.is_unreadable = False
        try:
            for _ in range(FRAMES_AT_ONCE):
                if place.at >= highest:
                    return
                header = self._log.reader.header(place.at)
                place.since = header.timestamp
                first = place.at + (shard - place.at) % shards
                if header.kind != Kind.SYSTEM and first < header.next_index:
                    place.at, place.found = first, True
                    return
                place.at = header.next_index
        except LogError:  # It may be for the reader.
            place.is_unreadable = True


def _oldest_first(read: CursorRead) -> tuple[int, str]:
    return (read.place.since if read.place.found else 1 << 63), read.name


def cursor_rows(shown: Iterable[tuple[CursorRead, CursorLag]]) -> list[dict[str, object]]:
    """For `/status`."""
    return [{"name": read.name, "index": read.index, **lag._asdict(), "lost": read.place.lost} for read, lag in shown]
