"""Rule 15: the members change one voter at a time, through the log.

A record of members counts from when it is in a node's log, committed or not, until it is truncated (section 4.1 of the
Raft thesis). If only one voter is added or removed, any majority before the change and any majority after it share a
voter, so two leaders cannot be elected side by side. That requires two things, which the leader checks before it
appends:

- *The previous change is committed.* Two uncommitted changes are two voters at a time.
- *A record of the leader's own epoch is committed, its `epoch_start`.* Otherwise a change that an earlier leader left
  on a minority may come back next to this one (the bug found in 2015 in the thesis' single-server changes).

A lost disk is replaced in two changes: its vote is removed, and once that is committed the new disk is added. If one
record did both, a majority before it and a majority after it could have no voter in common: n1 and the old disk before,
n2 and the new disk after. An operator who was interrupted between the two repeats the request: the log alone determines
the next change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .members import MAX_MEMBERS, Member, Members, Role


@dataclass(frozen=True, slots=True)
class Changed:
    """The record at `index` is committed."""

    index: int


@dataclass(frozen=True, slots=True)
class AlreadyVoter:
    """The node is a voter with its current disk: there is nothing to do."""


@dataclass(frozen=True, slots=True)
class NotLeading:
    """This node does not lead; nothing was appended."""


@dataclass(frozen=True, slots=True)
class NotServing:
    """This leader's `epoch_start` is not committed yet; nothing was appended."""

    start_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class ChangeUnderWay:
    """The last change of members is not committed yet; nothing was appended."""

    members_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class TransferUnderWay:
    """This leader is transferring its leadership to `target`; nothing was appended."""

    target: str


@dataclass(frozen=True, slots=True)
class NotConnected:
    """The leader has no link to that node, only to those in `connected`; nothing was appended.

    `lacking`: the features in use, or about to be, that its program does not offer. Such a node stays disconnected.
    """

    connected: tuple[str, ...]
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotFollowing:
    """The node has no open stream from this leader yet: it fetches a snapshot, or truncates a divergent suffix."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The node lacks more than a new voter may: until it has caught up it would delay commits."""

    lag_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """Fewer than a majority of the voters after the change were heard within an election timeout."""

    node_ids: tuple[str, ...]
    heard: int
    majority: int


@dataclass(frozen=True, slots=True)
class TooMany:
    """The change would exceed the limit of members."""

    count: int
    limit: int


@dataclass(frozen=True, slots=True)
class Full:
    """The disk is full; nothing was appended."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The record was appended, and the leadership ended before it was committed: the outcome is unknown."""


Refused = (
    NotLeading
    | NotServing
    | ChangeUnderWay
    | TransferUnderWay
    | NotConnected
    | NotFollowing
    | Behind
    | Unheard
    | TooMany
)
Outcome = Changed | AlreadyVoter | Refused | Full | Lost


class ChangeContext(NamedTuple):
    """What a leader knows about itself and the node to be promoted.

    `disk_id` is that node's current disk, None if it has no link. `lag_bytes` is what it lacks, None if it has no
    stream; `promotable_bytes` is what a new voter may lack.
    """

    serving: bool
    start_index: int | None
    commit_index: int
    members: Members
    members_index: int
    transferring_to: str | None
    connected: tuple[str, ...]
    disk_id: bytes | None
    lag_bytes: int | None
    promotable_bytes: int
    is_heard: Callable[[Member], bool]


def next_change(context: ChangeContext, node_id: str, address: str) -> Members | AlreadyVoter | Refused:
    """The members to append next so that a node becomes a voter with its current disk, or why there are none."""
    if not context.serving:
        return NotServing(context.start_index or 0, context.commit_index)
    if context.members_index >= context.commit_index:
        return ChangeUnderWay(context.members_index, context.commit_index)
    if context.transferring_to is not None:
        return TransferUnderWay(context.transferring_to)
    disk_id = context.disk_id
    if disk_id is None:
        return NotConnected(context.connected)
    if context.members.is_voter(node_id, disk_id):
        return AlreadyVoter()
    if context.lag_bytes is None:
        return NotFollowing()
    if context.lag_bytes > context.promotable_bytes:
        return Behind(context.lag_bytes, context.promotable_bytes)
    return _admissible(_after(context.members, Member(node_id, disk_id, address, Role.VOTER)), context)


def _after(members: Members, new: Member) -> tuple[Member, ...]:
    """Remove the old disk's vote if it has one; otherwise add the new disk."""
    old = members.of_node(new.node_id)
    others = tuple(member for member in members.members if member.node_id != new.node_id)
    if old is not None and old.role is Role.VOTER:
        return others
    return tuple(sorted((*others, new), key=lambda member: member.node_id))


def _admissible(after: tuple[Member, ...], context: ChangeContext) -> Members | TooMany | Unheard:
    """Refuse a change that could not be committed: it would count at once and could not be undone."""
    if len(after) > MAX_MEMBERS:
        return TooMany(len(after), MAX_MEMBERS)
    members = Members(after)
    unheard = tuple(voter.node_id for voter in members.voters() if not context.is_heard(voter))
    if not members.is_majority(context.is_heard):
        return Unheard(unheard, len(members.voters()) - len(unheard), members.majority())
    return members
