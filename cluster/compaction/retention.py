"""Expiry of this node's log: which segments may expire, which do, and what holds the rest (rule 16).

Each node decides for itself, by its own limits of age and bytes and its own floor. Nothing at or above the floor
expires. The floor is the lowest of the holds:

    snapshots   the older of two whole snapshots; with fewer, nothing expires
    stream      the records not yet shipped on a follower's stream, up to `retention_follower_bytes`
    install     the snapshot that a follower is fetching
    follower    the records that a node lacks, by its last report to this leader, up to `retention_follower_bytes`
    cursor      the records that a cursor's consumer has not read, up to the cursor's `hold_bytes`

A follower that lacks more gets a snapshot, even if its stream is open but slower than the log's limits allow.

A restart needs a snapshot and the whole log after it. A snapshot may turn out to be damaged, hence the older one.
Someone may have removed a snapshot's files, so they are checked before any segment expires.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from quire.log import Expirable, Expiry, Log, LogError, time_since_boot, wall_clock
from quire.replication import Disk
from quire.replication.core import Status
from quire.replication.lag import Position, lacking_bytes
from quire.sm import KEPT_SNAPSHOTS, Manifest

MICROSECONDS_A_MS = 1_000
EXPIRY_PAUSE_S = 1.0
MAX_ALARMS = 10
NOTHING = Expirable(0, 0, 0)


class Limits(NamedTuple):
    """This node's limits: its log's bytes and age in ms (0: no limit), and the bytes kept for a lagging node."""

    size: int
    age_ms: int
    follower_bytes: int

    @property
    def max_bytes(self) -> int | None:
        """The limit of bytes; None without one."""
        return self.size or None

    @property
    def age(self) -> int | None:
        """The limit of age in microseconds; None without one."""
        return self.age_ms * MICROSECONDS_A_MS or None


class Needed(Protocol):
    """What the consumer of a cursor needs: the records from `index` on, and up to so many bytes of the log for them."""

    @property
    def name(self) -> str:
        """The cursor's."""
        ...

    @property
    def index(self) -> int:
        """The first record that its consumer has not read."""
        ...

    @property
    def hold_bytes(self) -> int:
        """How many bytes of the log may be kept for it."""
        ...


class Hold(NamedTuple):
    """A reason to keep every record from `index` on."""

    what: str
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    why: str


class Retention:
    """One node's expiry. All methods are called on the event loop."""

    def __init__(
        self,
        disk: Disk,
        status: Callable[[], Status],
        positions: Mapping[str, Position],
        remove: Callable[[Callable[[], Expiry | None]], None],
        manifests: Callable[[], list[Manifest]],
        limits: Limits,
        needed: Callable[[], Sequence[Needed] | None] = tuple,
        clock: Callable[[], int] = wall_clock,
        now: Callable[[], int] = time_since_boot,
    ) -> None:
        """`positions` are what others reported to this leader, by node id; `remove` is as `Driver.expire`.
        `needed` are the needs of the cursors that may hold the log; None while these are not known.

        `clock` is the wall clock, `now` the time since boot; both in microseconds.
        """
        self._disk = disk
        self._log: Log = disk.log
        self._status = status
        self._positions = positions
        self._remove = remove
        self._manifests = manifests
        self._limits = limits
        self._needed = needed
        self._gave_way: dict[str, tuple[int, int]] = {}
        """The index and the hold, by name, of the cursors that need more of the log than they may hold."""
        self._ages = disk.log.expiry.ages(clock, now)
        self.expired_segments = 0
        """Segments expired since this node started."""
        self._gone = NOTHING
        self._checked = False
        self._waiting: list[Callable[[Expirable], None]] = []

    def holds(self) -> list[Hold]:
        """All holds, the lowest first."""
        return sorted([self._of_snapshots(), *self._of_followers(), *self._of_cursors()], key=lambda hold: hold.index)

    def _of_snapshots(self) -> Hold:
        kept = [manifest.index for manifest in self._manifests()]
        if len(kept) < KEPT_SNAPSHOTS:
            why = f"{len(kept)} of {KEPT_SNAPSHOTS} snapshots are there; without both nothing expires"
            return Hold("snapshots", self._log.bounds.lowest_index, why)
        older = kept[-KEPT_SNAPSHOTS]
        return Hold("snapshots", older, f"the older of the two newest snapshots is at index {older}")

    def _of_followers(self) -> list[Hold]:
        leader = self._status().leader
        if leader is None:
            return []
        fetching = [
            Hold("install", install.snapshot_index, f"{install.node_id} fetches the snapshot there")
            for install in leader.installs
        ]
        places = [
            *(("stream", stream.next_index, f"{stream.node_id} was shipped") for stream in leader.streams),
            *(("follower", known.durable_index, f"{node_id} has") for node_id, known in self._positions.items()),
        ]
        lowest, most = self._log.bounds.lowest_index, self._limits.follower_bytes
        lagging = [
            Hold(what, index, f"{who} what is below, and lacks {lacking:,} bytes")
            for what, index, who in places
            if index >= lowest and (lacking := lacking_bytes(self._log, index)) <= most
        ]
        return fetching + lagging

    def _of_cursors(self) -> list[Hold]:
        """The lowest hold of a cursor. One that needs too much has no hold until its consumer gets on."""
        needed = self._needed()
        if needed is None:
            why = "this node has not replayed its log, so it does not know yet what cursors hold"
            return [Hold("cursor", self._log.bounds.lowest_index, why)]
        former, self._gave_way = self._gave_way, {}
        holds: list[Hold] = []
        for each in sorted(needed, key=lambda needed: needed.index):
            needs = each.index, each.hold_bytes
            # What lies above an index only grows, so it need not be measured again; nor above one that fits.
            if former.get(each.name) == needs or (not holds and self._bytes_from(each.index) > each.hold_bytes):
                self._gave_way[each.name] = needs
            elif not holds:
                why = (
                    f"the consumer of the cursor {each.name} has read what is below; it holds {each.hold_bytes:,} bytes"
                )
                holds.append(Hold("cursor", each.index, why))
        return holds

    def _bytes_from(self, index: int) -> int:
        """How much of the log is kept for whoever needs what is at `index` and above; at most so much."""
        try:
            return lacking_bytes(self._log, index)
        except LogError:  # A frame there cannot be read, which is found and repaired elsewhere.
            return self._log.size

    def alarms(self) -> list[str]:
        """An alarm for each cursor that no longer holds a log that expires; those past MAX_ALARMS are counted."""
        if not self._limits.size and not self._limits.age_ms:
            return []
        alarms = [
            f"the cursor {name} no longer holds the log: its consumer has read up to index {index}, and the rest is "
            f"more than the {hold_bytes:,} bytes that it may hold, so records may expire before they are read"
            for name, (index, hold_bytes) in sorted(self._gave_way.items())[:MAX_ALARMS]
        ]
        if (more := len(self._gave_way) - MAX_ALARMS) > 0:
            alarms.append(f"{more} more cursors no longer hold the log; `quire cursor list` shows all")
        return alarms

    def due(self) -> Expirable:
        """What would expire now."""
        return self._expirable(self.holds()[0].index)

    def _expirable(self, floor: int | None) -> Expirable:
        return self._log.expiry.due(aged_to=self._aged_to(), max_bytes=self._limits.max_bytes, floor=floor)

    def _aged_to(self) -> int:
        return self._ages.aged_to(self._limits.age)

    def expire(self, ended: Callable[[Expirable], None], *, checked: bool) -> None:
        """Rotate an old write segment; begin to remove what may expire. `ended` gets what was removed, at the end.

        Segments are removed one by one, with other disk work in between, so the holds are checked before each one.
        `checked`: the files of the two newest snapshots were just found whole. Otherwise no removal begins.

        Raises:
            LogReadOnly: the device failed.
        """
        self._ages.rotate(self._limits.age, self.holds()[0].index)
        self._waiting.append(ended)
        if len(self._waiting) == 1:
            self._gone, self._checked = NOTHING, False
        self._checked |= checked
        self._remove(self._begin)

    def _begin(self) -> Expiry | None:
        """Take the next segment that may expire out of the log; None if there is none."""
        floor = self.holds()[0].index if self._checked else 0
        expiry = self._disk.begin_expiry(aged_to=self._aged_to(), max_bytes=self._limits.max_bytes, floor=floor)
        if expiry is not None:
            self.expired_segments += 1
            self._gone = Expirable(self._gone.segments + 1, expiry.to_index, self._gone.size + expiry.size)
            return expiry
        gone, waiting, self._waiting = self._gone, self._waiting, []
        for ended in waiting:
            ended(gone._replace(to_index=self._disk.lowest_index))
        return None

    def document(self) -> dict[str, object]:
        """For `/status`: the limits, what expires next, what would expire without the holds, and the holds."""
        holds = self.holds()
        due, wanted = self._expirable(holds[0].index), self._expirable(None)
        return {
            "retention_bytes": self._limits.size,
            "retention_ms": self._limits.age_ms,
            "expired_segments": self.expired_segments,
            "due": shown(due),
            "held": shown(Expirable(wanted.segments - due.segments, wanted.to_index, wanted.size - due.size)),
            "floor": holds[0].index,
            "holds": [hold._asdict() for hold in holds],
        }


def shown(expirable: Expirable) -> dict[str, int]:
    """For a document."""
    return {"segments": expirable.segments, "to_index": expirable.to_index, "bytes": expirable.size}
