"""The public status of a core: a copy that later steps do not change. Nothing outside the core reads its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .fitness import FitnessStatus
from .members import Identity, Member, Members
from .messages import Promise


class NodeRole(StrEnum):
    """The current role of a node. A core is never `FORMING`: it starts when the cluster has formed."""

    LEADER = "leader"
    FOLLOWER = "follower"
    OBSERVER = "observer"
    FORMING = "forming"


class Queues(NamedTuple):
    """The queues of a leader: requests for the writer, their bytes, and bytes appended but not committed."""

    waiting_requests: int
    waiting_bytes: int
    uncommitted_bytes: int


class Backlog(NamedTuple):
    """The records known to have been committed before this node started or installed a snapshot: all below `end_index`.

    At first this is the mark's commit_index; `is_known` is set once a serving leader has reported its own.
    """

    end_index: int
    is_known: bool


class StreamStatus(NamedTuple):
    """A follower's stream: everything below `next_index` was shipped on it. `held_for`: why no writes are shipped."""

    node_id: str
    next_index: int
    held_for: str


class PreVoteStatus(NamedTuple):
    """A voter's answer to this node's pre-vote: the epoch promised there; `is_ahead` if its log is longer."""

    granted: bool
    held_epoch: int
    is_ahead: bool


class InstallStatus(NamedTuple):
    """A follower that was told to fetch the snapshot at `snapshot_index`."""

    node_id: str
    snapshot_index: int


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """A leadership. `heard` are the (node_id, disk_id) that echoed a heartbeat of the last election timeout.

    `clock_offsets_us`: how far each voter's clock, if known, is ahead of the time that a majority's clocks have
    reached; negative if it is behind.
    """

    start_index: int | None
    serving: bool
    queues: Queues
    heard: frozenset[tuple[str, bytes]]
    streams: tuple[StreamStatus, ...]
    installs: tuple[InstallStatus, ...]
    clock_offsets_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """One node's replication at one moment.

    `promise` is the one that counts, which may still be on its way to disk. `leader_id` is the leader that this node
    hears, itself included. `links` are the peers with an open link that this node dialled, with their disks.
    `pre_votes` are the voters' newest answers since no leader is heard.
    `following` is the promise of the leader that this node follows, heard or not. `is_matched`: its log matches that
    leader's. `may_snapshot` is False while no snapshot may hold what this node's code computes (`fitness/codes.py`).
    `disk_answers` is False while the disk has been busy with one operation for an election timeout.
    `refused` counts rejected implausible messages by reason; `alarms` are sentences by subject (rules 18 and 19).
    """

    me: Identity
    role: NodeRole
    promise: Promise
    commit_index: int
    leader_id: str | None
    leader: LeaderStatus | None
    following: Promise | None
    is_matched: bool
    members: Members
    members_index: int | None
    links: Mapping[str, bytes]
    pre_votes: Mapping[str, PreVoteStatus]
    disk_answers: bool
    fitness: FitnessStatus
    backlog: Backlog
    may_snapshot: bool
    refused: Mapping[str, int]
    alarms: Mapping[str, str]
    halted: str | None

    def is_me(self, member: Member) -> bool:
        """Whether a member is this node, on this disk."""
        return (member.node_id, member.disk_id) == (self.me.node_id, self.me.disk_id)

    def is_linked(self, member: Member) -> bool:
        """Whether messages to a member can arrive, at its own disk."""
        return self.links.get(member.node_id) == member.disk_id

    @property
    def is_voter(self) -> bool:
        """Whether this node counts and answers votes."""
        return self.members.is_voter(self.me.node_id, self.me.disk_id)
