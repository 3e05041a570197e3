"""What of this node's log may go, what goes, and what holds the rest (rule 16).

Each node decides for itself: its own limits of age and bytes, its own floor. Nothing at or above the floor goes, which
is the lowest of its holds:

    snapshots   the older of two whole snapshots; with fewer, nothing goes
    stream      of each follower's stream, what was not shipped yet
    follower    of each node that told this leader where it stands, what it lacks

A restart needs a snapshot and all of the log behind it, and a snapshot may turn out to be damaged: hence the older one.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from quire.log import Expirable, Log
from quire.replication import Disk, Replica
from quire.sm import KEPT_SNAPSHOTS, Manifest

journal = structlog.get_logger(__name__)

MICROSECONDS_A_MS = 1_000
EXPIRY_PAUSE_S = 1.0


class Limits(NamedTuple):
    """This node's own: bytes and age in ms of its log; 0: no limit."""

    size: int
    age_ms: int

    @property
    def max_bytes(self) -> int | None:
        """As the log wants it."""
        return self.size or None

    @property
    def age(self) -> int | None:
        """As the log wants it, in microseconds."""
        return self.age_ms * MICROSECONDS_A_MS or None


class Hold(NamedTuple):
    """Something that needs every record from `index` on."""

    what: str
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    why: str


class Retention:
    """One node's expiry. Everything is called on the event loop."""

    def __init__(self, disk: Disk, replica: Replica, manifests: Callable[[], list[Manifest]], limits: Limits) -> None:
        self._disk = disk
        self._log: Log = disk.log
        self._replica = replica
        self._manifests = manifests
        self._limits = limits
        self.expired_segments = 0
        """So many went since this node started."""

    def holds(self) -> list[Hold]:
        """What needs the log, the lowest first."""
        return sorted([self._of_snapshots(), *self._of_followers()], key=lambda hold: hold.index)

    def _of_snapshots(self) -> Hold:
        kept = [manifest.index for manifest in self._manifests()]
        if len(kept) < KEPT_SNAPSHOTS:
            why = f"{len(kept)} of {KEPT_SNAPSHOTS} snapshots are there; without both nothing expires"
            return Hold("snapshots", self._log.bounds.lowest_index, why)
        older = kept[-KEPT_SNAPSHOTS]
        return Hold("snapshots", older, f"the older of the two newest snapshots stands at {older}")

    def _of_followers(self) -> list[Hold]:
        leading = self._replica.core.leading
        if leading is None:
            return []
        holds = [
            Hold("stream", stream.next_index, f"{stream.node_id} was shipped what is below")
            for stream in leading.streams.values()
        ]
        for node_id, position in self._replica.positions.items():
            holds.append(Hold("follower", position.durable_index, f"{node_id} has what is below"))
        return holds

    def due(self) -> Expirable:
        """What would go now."""
        return self._expirable(self.holds()[0].index)

    def _expirable(self, floor: int | None) -> Expirable:
        limits = self._limits
        return self._log.expirable(_now(), age=limits.age, max_bytes=limits.max_bytes, floor=floor)

    def expire(self) -> Expirable:
        """Remove what may go; say what went. Blocks for the few syncs of a removal.

        Raises:
            LogReadOnly: the device failed.
        """
        floor = self.holds()[0].index
        gone = self._expirable(floor)
        if gone.segments:
            age, max_bytes = self._limits.age, self._limits.max_bytes
            self._disk.remove_expired(_now(), age=age, max_bytes=max_bytes, floor=floor)
            self.expired_segments += gone.segments
            journal.info("expired", segments=gone.segments, to_index=gone.to_index, size=gone.size)
        return gone

    def document(self) -> dict[str, Any]:
        """What `/status` says: the limits, what goes next, what would go if nothing held it, and what does."""
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
    """As a document."""
    return {"segments": expirable.segments, "to_index": expirable.to_index, "bytes": expirable.size}


def _now() -> int:
    return time.time_ns() // 1_000
