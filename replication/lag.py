"""Two lags, neither ever below 0: what a node has not received (`Lag`), and what it has not applied (`ApplyLag`).

    Lag              how far the node's log is behind its leader's: the network, or the node's disk
      records, bytes   the leader's durable_index less the node's, and the bytes of the frames between
      seconds          0 if equal, else the leader's clock less the timestamp of the first record that the node lacks
    ApplyLag         how far the node's machine is behind its own log; a leader's may be, too
      records          what is committed, as far as is known, and durable on the node, less what it has applied
      seconds          0 if none, else the clock less the timestamp of the first record that is not applied

For a silent node, the last known position counts. If there is no descriptor for the lookup, the bytes are those of the
whole log, and the record is the newest one. A node's own lag is at least the seconds since it heard its leader.

A clock that went back would make the seconds fewer, down to 0. They are therefore at least those for which the records
are known to be lacking, by a clock that is never set (`Ends`).
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, TypeVar, assert_never

from quire.log import FrameCorrupt, Log, LogError, ResourcesExhausted, decode_header, wall_clock

from .core import Core
from .core.messages import LagReport, PositionReport

MICROSECONDS = 1_000_000
MAX_ENDS = 4_096
"""Once there are more, every other one is forgotten: the older they are, the farther apart."""


class Lag(NamedTuple):
    """How far a node is behind its leader."""

    records: int
    bytes: int
    seconds: float


class ApplyLag(NamedTuple):
    """How far a node's machine is behind the committed records in the node's log."""

    records: int
    seconds: float


class Position(NamedTuple):
    """A node's position when it was last heard. `heard_at` is this node's wall clock, in microseconds."""

    durable_index: int
    applied_index: int
    digest: bytes
    heard_at: int


LagT = TypeVar("LagT", Lag, ApplyLag)

NO_LAG = Lag(0, 0, 0.0)
NO_APPLY_LAG = ApplyLag(0, 0.0)


def first_lacking(log: Log, durable_index: int) -> int:
    """The timestamp of the first record that a node with `durable_index` lacks, 0 if it lacks none."""
    if durable_index >= log.durable_index:
        return 0
    begin = max(durable_index, log.bounds.lowest_index)
    if begin == log.durable_index:  # After an install, until a flush, the log holds nothing yet.
        return log.durable_tail.timestamp
    try:
        raw, _ = log.read_frames(log.lookup.boundary_at_or_below(begin), 1)
    except (ResourcesExhausted, FrameCorrupt):
        return log.durable_tail.timestamp
    return decode_header(raw).timestamp


def lacking_bytes(log: Log, durable_index: int) -> int:
    """The bytes of the durable frames that a node with `durable_index` lacks."""
    if durable_index >= log.durable_index:
        return 0
    try:
        begin = log.lookup.boundary_at_or_below(max(durable_index, log.bounds.lowest_index))
        return log.lookup.bytes_between(begin, log.durable_index)
    except (ResourcesExhausted, FrameCorrupt):
        return log.size


def lag_of(log: Log, durable_index: int, clock: int) -> Lag:
    """The lag of another node, computed on its leader's log at the leader's clock (microseconds)."""
    if durable_index >= log.durable_index:
        return NO_LAG
    late = clock - first_lacking(log, durable_index)
    return Lag(log.durable_index - durable_index, lacking_bytes(log, durable_index), max(0, late) / MICROSECONDS)


def apply_lag_of(log: Log, applied_index: int, to_index: int, clock: int) -> ApplyLag:
    """The apply lag of a node that is to apply up to `to_index`, in a log that has those records.

    If a frame cannot be read, the newest record's timestamp is used instead.
    """
    if applied_index >= to_index:
        return NO_APPLY_LAG
    try:
        timestamp = first_lacking(log, applied_index)
    except LogError:
        timestamp = log.durable_tail.timestamp
    return ApplyLag(to_index - applied_index, max(0, clock - timestamp) / MICROSECONDS)


class Ends:
    """When the leader's log reached which end, as far as this node saw it, in monotonic microseconds."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._seen_at: list[int] = []

    def note(self, end: int, now: int) -> None:
        """Note where the log ends now. What another leader truncated does not count any more."""
        while self._ends and self._ends[-1] > end:
            del self._ends[-1], self._seen_at[-1]
        if not self._ends or self._ends[-1] < end:
            self._ends.append(end)
            self._seen_at.append(now)
        if len(self._ends) > MAX_ENDS:
            del self._ends[1::2], self._seen_at[1::2]

    def lacking_s(self, index: int, now: int) -> float:
        """For how many seconds, at least, whoever has only what is below `index` has lacked something."""
        place = bisect_right(self._ends, index)
        return 0.0 if place == len(self._ends) else (now - self._seen_at[place]) / MICROSECONDS


class Lags:
    """The lags of this node and, on a leader, of the others. They come from reports that no rule reads.

    A guest, a linked peer that is not a member, gets its lag, too, but is not shown.
    """

    def __init__(
        self,
        core: Core,
        log: Log,
        now: Callable[[], int],
        election_timeout_us: int,
        is_member: Callable[[str], bool],
        is_linked: Callable[[str], bool],
    ) -> None:
        """`now` gives monotonic microseconds."""
        self.note_digest: Callable[[str, int, bytes], None] = lambda *_: None
        """Gets a member's id, an index up to which it has applied, and its digest there."""
        self.positions: dict[str, Position] = {}
        """The last positions of members, by node id, that a leader heard."""
        self._guests: dict[str, int] = {}  # Their durable_index.
        self._core = core
        self._log = log
        self._now = now
        self._election_timeout_us = election_timeout_us
        self._is_member = is_member
        self._is_linked = is_linked
        self._report: LagReport | None = None
        self._reported_by: str | None = None
        self._reported_at = now()
        self._ends = Ends()

    def reported(self, node_id: str, message: PositionReport | LagReport) -> None:
        """Note a peer's report."""
        match message:
            case PositionReport(durable_index, applied_index, digest):
                if not self._is_member(node_id):
                    if self._core.leads and self._is_linked(node_id):
                        self._guests[node_id] = durable_index
                    return
                if self._core.leads:
                    self.positions[node_id] = Position(durable_index, applied_index, digest, wall_clock())
                self.note_digest(node_id, applied_index, digest)
            case LagReport():
                if node_id == self._core.leader_id:
                    self._report, self._reported_by, self._reported_at = message, node_id, self._now()
                    self._ends.note(message.durable_index, self._reported_at)
            case _:
                assert_never(message)

    def to_report(self) -> dict[str, LagReport]:
        """What a leader tells each other node about its lag."""
        log = self._log
        self._ends.note(log.durable_index, self._now())
        self._guests = {node: index for node, index in self._guests.items() if self._is_linked(node)}
        heard = self._guests | {node_id: position.durable_index for node_id, position in self.positions.items()}
        return {
            node_id: LagReport(log.durable_index, lacking_bytes(log, index), first_lacking(log, index))
            for node_id, index in heard.items()
        }

    @property
    def is_known(self) -> bool:
        """Whether the current leader has reported the lag within an election timeout; the leader itself has no lag.

        An older report, or another leader's, says nothing about a leader that was only just heard again.
        """
        if self._core.leads:
            return True
        age_us = self._now() - self._reported_at
        is_present = self._reported_by is not None and self._reported_by == self._core.leader_id
        return is_present and age_us <= self._election_timeout_us

    def own(self, clock: int) -> Lag:
        """This node's own lag at `clock`; the leader's is 0."""
        if self._core.leads:
            return NO_LAG
        report, silent = self._report or LagReport(0, 0, 0), self._now() - self._reported_at
        records = max(0, report.durable_index - self._log.durable_index)
        late = clock - silent - report.since if report.since and records else 0
        known = Lag(records, report.lag_bytes if records else 0, max(silent, late) / MICROSECONDS)
        return self._at_least(known, self._log.durable_index)

    def of(self, position: Position, clock: int) -> Lag:
        """Another node's lag at `clock`, as this leader knows it."""
        return self._at_least(lag_of(self._log, position.durable_index, clock), position.durable_index)

    def _at_least(self, lag: LagT, index: int) -> LagT:
        """A lag of what is at `index` and above, for no shorter than it is known to last."""
        if not lag.records:
            return lag
        return lag._replace(seconds=max(lag.seconds, self._ends.lacking_s(index, self._now())))

    def own_apply(self, applied_index: int, clock: int) -> ApplyLag:
        """The apply lag at `clock` of this node, whose machine has applied what is below `applied_index`."""
        to_index = min(self._core.commit_index, self._log.durable_index)
        return self._at_least(apply_lag_of(self._log, applied_index, to_index, clock), applied_index)

    def most_unapplied(self, applied_index: int, clock: int) -> ApplyLag:
        """How many of the records that are durable here the machine may lack at most.

        On a follower this is more than its own apply lag: it hears of commits only on the stream.
        """
        durable = self._log.durable_index
        to_index = min(self._core.commit_index, durable) if self._core.leads else durable
        return self._at_least(apply_lag_of(self._log, applied_index, to_index, clock), applied_index)

    def apply_of(self, position: Position, clock: int) -> ApplyLag:
        """Another node's apply lag at `clock`, as this leader knows it."""
        to_index = min(self._core.commit_index, position.durable_index)
        return self._at_least(apply_lag_of(self._log, position.applied_index, to_index, clock), position.applied_index)
