"""What the servers answer, as documents: maps with the keys that are named here.

The types are the servers' word: what an answer holds is not checked, except that it is a map, or a list of maps. A
later version may add keys.
"""

from collections.abc import Mapping
from typing import NotRequired, TypedDict, TypeGuard, TypeVar, cast

import orjson

from quire.log import Value
from quire.log.packing import ExtType, unpack_trusted

from .errors import ClientError
from .transport import Reply

Document = TypeVar("Document", bound=Mapping[str, object])


class BoundsDocument(TypedDict):
    """The indices of the records that a log holds: [lowest_index, highest_index)."""

    lowest_index: int
    highest_index: int


class ApplyLag(TypedDict):
    """How far a node's machine is behind the committed records in the node's log."""

    records: int
    seconds: float


class Lag(ApplyLag):
    """How far a node is behind its leader."""

    bytes: int


class MemberRow(TypedDict):
    """A member, or another node that is connected to the leader. `lag` is None if it is unknown."""

    node_id: str
    disk_id: str
    address: str
    role: str
    heard: bool
    lag: Lag | None
    waits_for: str | None
    version: str | None
    drained: bool | None
    ready: bool | None
    started_at: int | None


class RemovedDisk(TypedDict):
    """A disk that the record at `index` removed from the cluster."""

    node_id: str
    disk_id: str
    index: int


class Members(TypedDict):
    """The members, as the leader knows them. So many of the voters may fail now: `may_fail`."""

    leader: str
    epoch: int
    members_index: int
    commit_index: int
    change: bool
    may_fail: int
    members: list[MemberRow]
    removed: list[RemovedDisk]


class SnapshotTaken(TypedDict):
    """A new snapshot of a node: of everything below `index`, with its size and checksum."""

    node_id: str
    index: int
    bytes: int
    sha256: str


class Expirable(TypedDict):
    """Segments of a log, all before `to_index`, and their size."""

    segments: int
    to_index: int
    bytes: int


class SegmentsExpired(Expirable):
    """What expired from a node's log, or would."""

    node_id: str


class CodeAccepted(TypedDict):
    """The fingerprints of a node's code, None if unknown, and of the code that it accepts."""

    node_id: str
    code: str | None
    accepted_code: list[str]


class SessionClosed(TypedDict):
    """A session that was closed, and the last sequence that it executed."""

    session: int
    sequence: int


class SessionStatus(SessionClosed):
    """An open session; `sequence` is the last one executed, `owner` the name of the token that opened it."""

    name: str | None
    owner: str | None


class SessionRow(SessionStatus):
    """An open session in a list. `used_at` is the log's timestamp of its last use, 0 if unknown."""

    used_at: int


class Machine(TypedDict):
    """A node's machine: its code, in fingerprints, and the size of its state."""

    name: str
    version: int
    initial: Value
    code: str | None
    accepted_code: list[str]
    state_bytes: int
    state_limit_bytes: int


class MemberStatus(TypedDict):
    """A member in a node's status."""

    node_id: str
    disk_id: str
    address: str
    role: str


class KeptSnapshot(TypedDict):
    """A snapshot on a node's disk."""

    index: int
    epoch: int
    timestamp: int
    bytes: int
    sha256: str


class Snapshots(TypedDict):
    """A node's snapshots, oldest first, and the one that it is taking."""

    kept: list[KeptSnapshot]
    taking: int | None
    pause_ms: float
    failure: str
    overdue_seconds: float
    damaged: list[str]


class Install(TypedDict):
    """The snapshot that a node fetches, `index` None without one."""

    index: int | None
    chunks: int
    fetched_chunks: int
    failure: str


class Hold(TypedDict):
    """What keeps the log from expiring past an index, and why."""

    what: str
    index: int
    why: str


class Expiry(TypedDict):
    """What has expired from a node's log, what expires next, and what is held."""

    retention_bytes: int
    retention_ms: int
    expired_segments: int
    due: Expirable
    held: Expirable
    floor: int
    holds: list[Hold]


class Difference(TypedDict):
    """The index at which a node's digest differed from the leader's."""

    index: int
    digest: str
    leader_digest: str


class NodePosition(TypedDict):
    """A node, as its leader knows it."""

    durable_index: int
    applied_index: int
    digest: str
    differs: Difference | None
    heard_at: int
    lag: Lag
    apply_lag: ApplyLag
    held_for: str | None


class Stream(TypedDict):
    """The stream that a follower receives."""

    from_index: int
    received_bytes: int


class LeaderChange(TypedDict):
    """A change of leader or epoch as a node saw it, `at` microseconds since the Unix epoch."""

    at: int
    epoch: int
    leader: str | None
    role: str
    reason: str


class Unfitness(TypedDict):
    """How unfit a node is to lead, why, and what to do. `since` is 0 if it was fit from its start."""

    level: int
    name: str
    reason: str
    do: str
    since: int


class Fitness(Unfitness):
    """A node's fitness: the highest level of what it has, and those below."""

    lower: list[Unfitness]


class Certificate(TypedDict):
    """A node's certificate: its cluster, and when it and the first of its CAs expire, in seconds since 1970.

    `ca_sha256` has the SHA-256 of each CA that the node trusts.
    """

    cluster: str
    expires_at: float
    ca_expires_at: float
    ca_sha256: list[str]


class CursorBehind(TypedDict):
    """A cursor whose consumer has not read all; `lost` records expired on the node before they were read."""

    name: str
    index: int
    records: int
    seconds: float
    lost: int


class CursorsStatus(TypedDict):
    """How many cursors there are, those that are furthest behind by the node's log, and how much of it all may hold.

    The limit is the setting `cursors_hold_bytes`. An older version has neither of the two.
    """

    count: int
    hold_bytes: NotRequired[int]
    cursors_hold_bytes: NotRequired[int]
    behind: list[CursorBehind]


class CommandsStatus(TypedDict):
    """A leader's last seconds: its commands a second, and how long half of them and all but one in 100 took."""

    per_second: float
    p50_ms: float
    p99_ms: float


class Status(TypedDict):
    """A node's status; `docs/architecture.md` says what the fields mean.

    Until a node has joined its cluster, it has only the fields up to `alarms`, and only the name of its machine.
    `nodes` and `clock_offsets_us` are a leader's, `stream` is a follower's; an older version has no `cursors`, no
    `other_histories` and no `commands`.
    """

    node_id: str
    role: str
    epoch: int
    leader: str | None
    serving: bool
    clock: int
    version: str
    started_at: int
    drained: bool
    ready: bool
    reasons: list[str]
    machine: Machine
    certificate: Certificate | None
    link_failures: dict[str, str]
    alarms: list[str]
    cluster_id: str
    history: str
    limits: dict[str, int]
    disk_id: str
    lowest_index: int
    highest_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    digest: str
    features: list[str]
    log_bytes: int
    snapshots: Snapshots
    install: Install
    expiry: Expiry
    lag: Lag
    apply_lag: ApplyLag
    members: list[MemberStatus]
    links: list[str]
    refused_messages: dict[str, int]
    nominated: bool
    leaders: list[LeaderChange]
    fitness: Fitness
    cursors: NotRequired[CursorsStatus]
    other_histories: NotRequired[dict[str, str]]
    commands: NotRequired[CommandsStatus]
    nodes: NotRequired[dict[str, NodePosition]]
    clock_offsets_us: NotRequired[dict[str, int]]
    stream: NotRequired[Stream]


def cluster_clock(status: Status) -> int:
    """The cluster's clock as a node knows it, in microseconds since 1970.

    On a leader it is the latest time that a majority of the voters' clocks have reached, elsewhere the node's own.
    """
    return status["clock"] - status.get("clock_offsets_us", {}).get(status["node_id"], 0)


def document_of(reply: Reply, kind: type[Document]) -> Document:
    """The JSON object or msgpack map in a reply. Raises ClientError if it is neither."""
    document = value_of(reply)
    if not _is_map(document, kind):
        raise ClientError(f"a server answered with {reply.content_type} that is not a map; is it a quire node?")
    return document


def rows_of(reply: Reply, kind: type[Document]) -> list[Document]:
    """The list of maps in a reply. Raises ClientError if it is none."""
    rows = value_of(reply)
    if not _is_list(rows, kind):
        raise ClientError(f"a server answered with {reply.content_type} that is not a list; is it a quire node?")
    return rows


def value_of(reply: Reply) -> Value:
    """The value in a reply. Raises ClientError if its content type is not one that a quire node sends."""
    match reply.content_type:
        case "application/msgpack":
            return cast("Value", unpack_trusted(reply.body, ExtType))  # A node sends nothing else.
        case "application/json":
            parsed: Value = orjson.loads(reply.body)
            return parsed
        case "application/octet-stream":
            return reply.body
        case _:
            raise ClientError(f"a server answered with {reply.content_type}; it is not a quire node; check the address")


def _is_map(value: object, _kind: type[Document]) -> TypeGuard[Document]:
    return isinstance(value, dict)


def _is_list(value: object, _kind: type[Document]) -> TypeGuard[list[Document]]:
    return isinstance(value, list)
