"""Two lags, neither ever below 0: what a node has not received (`Lag`), and what it has not applied (`ApplyLag`).

    Lag              how far the node's log is behind its leader's: the network, or the node's disk
      records, bytes   the leader's durable_index less the node's, and the bytes of the frames between
      seconds          0 if equal, else the leader's clock less the timestamp of the first record that the node lacks
    ApplyLag         how far the node's machine is behind its own log; a leader's may be, too
      records          what is committed, as far as is known, and durable on the node, less what it has applied
      seconds          0 if none, else the clock less the timestamp of the first record that is not applied

For a silent node, the last known position counts. If there is no descriptor for the lookup, the bytes are those of the
whole log, and the record is the newest one. A node's own lag is at least the seconds since it heard its leader.
"""

from typing import NamedTuple

from quire.log import Log, LogError, ResourcesExhausted, decode_header

MICROSECONDS = 1_000_000


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
        raw, _ = log.read_frames(log.boundary_at_or_below(begin), 1)
    except ResourcesExhausted:
        return log.durable_tail.timestamp
    return decode_header(raw).timestamp


def lacking_bytes(log: Log, durable_index: int) -> int:
    """The bytes of the durable frames that a node with `durable_index` lacks."""
    if durable_index >= log.durable_index:
        return 0
    try:
        begin = log.boundary_at_or_below(max(durable_index, log.bounds.lowest_index))
        return log.bytes_between(begin, log.durable_index)
    except ResourcesExhausted:
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


def own_lag(reported: Lag, heard_at: int, clock: int) -> Lag:
    """A follower's own lag: what its leader reported at `heard_at`, and at least the time since."""
    silent = max(0, clock - heard_at) / MICROSECONDS
    return Lag(reported.records, reported.bytes, max(reported.seconds, silent))
