"""Rule 15: the members change one voter at a time, through the log.

A record of members counts from when it is in a node's log, committed or not, until it is truncated (section 4.1 of the
Raft thesis). If only one voter is added or removed, any majority before the change and any majority after it share a
voter, so two leaders cannot be elected side by side. That requires two things, which the leader checks before it
appends:

- *The previous change is committed.* Two uncommitted changes are two voters at a time.
- *A record of the leader's own epoch is committed, its `epoch_start`.* Otherwise a change that an earlier leader left
  on a minority may come back next to this one (the bug found in 2015 in the thesis' single-server changes).

A node that is added gets a row first, without a vote and, if it has not connected yet, without a disk. `next_step` goes
on from there: the disk of the node's first proven hello enters the row; once all nodes that join are level, one after
the other becomes a voter. Nobody waits for that: the log alone says what is still to be done, so any leader goes on.

A lost disk is replaced in two changes: its vote is removed, and once that is committed the new disk is added. If one
record did both, a majority before it and a majority after it could have no voter in common: n1 and the old disk before,
n2 and the new disk after. An operator who was interrupted between the two repeats the request: the log alone determines
the next change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from quire.log import MEMBERSHIP

from ..members import MAX_MEMBERS, MAX_REMOVED, NO_DISK, Member, Members, Removed, Role


class Promote(NamedTuple):
    """Make a node a voter with the disk that it has now. `address` is for a node that has no row yet."""

    node_id: str
    address: str


class Add(NamedTuple):
    """Give nodes a row, each (node_id, address): JOINING to make them voters once they are level, or OBSERVER."""

    nodes: tuple[tuple[str, str], ...]
    role: Role


class Remove(NamedTuple):
    """Remove a node."""

    node_id: str


class Demote(NamedTuple):
    """Make a voter, or a node that joins, an observer."""

    node_id: str


class Move(NamedTuple):
    """Give a member another address."""

    node_id: str
    address: str


Wanted = Promote | Add | Remove | Demote | Move


@dataclass(frozen=True, slots=True)
class Changed:
    """The record at `index` is committed."""

    index: int


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The members already are as wanted: there is nothing to do."""


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
    """The node has no open stream from this leader yet: it fetches a snapshot, or truncates a divergent suffix.

    Or it does not keep up with what is committed: perhaps it needs what this leader cannot read.
    """


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
class OwnRow:
    """A leader appends neither its own removal nor its own demotion: it hands over first, and the next leader does."""


@dataclass(frozen=True, slots=True)
class LastVoter:
    """The change would leave no voter."""


@dataclass(frozen=True, slots=True)
class NoMember:
    """The node has no row."""

    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlreadyMember:
    """The node has a row with another address."""

    member: Member


@dataclass(frozen=True, slots=True)
class AddressTaken:
    """The address is another member's."""

    member: Member


@dataclass(frozen=True, slots=True)
class FeatureNotInUse:
    """The log does not name the feature that this change needs; `lacking` are the members that do not offer it."""

    name: str
    lacking: tuple[str, ...]


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
    | OwnRow
    | LastVoter
    | NoMember
    | AlreadyMember
    | AddressTaken
    | FeatureNotInUse
)
Outcome = Changed | Unchanged | Refused | Full | Lost


class ChangeContext(NamedTuple):
    """What a leader knows about itself and the others.

    `record_index` is that of the record to be appended. `disks` are the connected nodes' current ones, and this
    leader's. `lag_of` says what a disk lacks, None if it has no stream or would be promotable and does not keep up; a
    new voter may lack `promotable_bytes`. `lacking` are the members that do not offer the feature `membership`; None
    once the log names it.
    """

    me: str
    serving: bool
    start_index: int | None
    commit_index: int
    record_index: int
    members: Members
    members_index: int
    transferring_to: str | None
    disks: Mapping[str, bytes]
    lag_of: Callable[[str, bytes], int | None]
    promotable_bytes: int
    is_heard: Callable[[Member], bool]
    lacking: tuple[str, ...] | None


def next_change(context: ChangeContext, wanted: Wanted) -> Members | Unchanged | Refused:
    """The members to append next on the way to what is wanted, or why there are none."""
    if (refused := _not_now(context)) is not None:
        return refused
    if context.lacking is not None and not isinstance(wanted, Promote):
        return FeatureNotInUse(MEMBERSHIP, context.lacking)
    match wanted:
        case Promote(node_id, address):
            return _promoted(context, node_id, address)
        case Add(nodes, role):
            return _added(context, nodes, role)
        case Remove(node_id):
            return _removed(context, node_id)
        case Demote(node_id):
            return _demoted(context, node_id)
        case Move(node_id, address):
            return _moved(context, node_id, address)
        case _:
            assert_never(wanted)


def next_step(context: ChangeContext) -> Members | None:
    """The members to append next on the way of those that join; None if there is nothing to do now."""
    if context.lacking is not None or _not_now(context) is not None:
        return None
    members = context.members
    found = [(m, disk) for m in members.members if (disk := _disk_found(context, m)) is not None]
    if found:
        return _with(members, *(replace(member, disk_id=disk) for member, disk in found))
    joining = [member for member in members.members if member.role is Role.JOINING]
    level = [member for member in joining if _is_level(context, member)]
    if len(level) < len(joining):  # A node that had a vote already waits for nobody.
        had_vote = {gone.node_id for gone in members.removed}
        level = [member for member in level if member.node_id in had_vote]
    if not level:
        return None
    after = _admissible(_with(members, replace(level[0], role=Role.VOTER)), context)
    return after if isinstance(after, Members) else None


def lost_disk(context: ChangeContext, member: Member) -> Members | None:
    """The members to append if a voter's disk is lost and its node is level with another one; None if it is not."""
    new = context.disks.get(member.node_id, member.disk_id)
    if new == member.disk_id or context.lacking is not None or _not_now(context) is not None:
        return None
    if not _is_level(context, replace(member, disk_id=new)):
        return None
    after = _promoted(context, member.node_id, member.address)
    return after if isinstance(after, Members) else None


def _not_now(context: ChangeContext) -> NotServing | ChangeUnderWay | TransferUnderWay | None:
    if not context.serving:
        return NotServing(context.start_index or 0, context.commit_index)
    if context.members_index >= context.commit_index:
        return ChangeUnderWay(context.members_index, context.commit_index)
    if context.transferring_to is not None:
        return TransferUnderWay(context.transferring_to)
    return None


def _disk_found(context: ChangeContext, member: Member) -> bytes | None:
    """The disk with which a node without a vote has connected, if its row has none, or one that it lost since.

    A disk that was removed is not taken back.
    """
    disk_id = context.disks.get(member.node_id)
    if member.role is Role.VOTER or disk_id in (None, member.disk_id):
        return None
    return disk_id if context.members.removal_of(member.node_id, disk_id) is None else None


def _is_level(context: ChangeContext, member: Member) -> bool:
    """Whether a node is connected with this disk, heard, and may be a voter."""
    if context.disks.get(member.node_id) != member.disk_id or not context.is_heard(member):
        return False
    lag_bytes = context.lag_of(member.node_id, member.disk_id)
    return lag_bytes is not None and lag_bytes <= context.promotable_bytes


def _promoted(context: ChangeContext, node_id: str, address: str) -> Members | Unchanged | Refused:
    members, disk_id = context.members, context.disks.get(node_id)
    if disk_id is None:
        return NotConnected(tuple(sorted(context.disks.keys() - {context.me})))
    if members.is_voter(node_id, disk_id):
        return Unchanged()
    if members.removal_of(node_id, disk_id) is not None:
        return NotFollowing()  # It is told that it was removed.
    lag_bytes = context.lag_of(node_id, disk_id)
    if lag_bytes is None:
        return NotFollowing()
    if lag_bytes > context.promotable_bytes:
        return Behind(lag_bytes, context.promotable_bytes)
    old = members.of_node(node_id)
    if old is None or old.role is not Role.VOTER:
        row = Member(node_id, disk_id, address if old is None else old.address, Role.VOTER)
        if old is not None and old.disk_id != disk_id and context.lacking is None:
            members = _noted(members, old, context.record_index)
        return _admissible(_with(members, row), context)
    if context.lacking is not None:  # A member of an earlier version knows neither the role nor the removed.
        return _admissible(_without(members, old), context)
    joining = replace(old, disk_id=disk_id, role=Role.JOINING)
    return _admissible(_with(_noted(members, old, context.record_index), joining), context)


def _added(context: ChangeContext, nodes: tuple[tuple[str, str], ...], role: Role) -> Members | Unchanged | Refused:
    members, new = context.members, list[Member]()
    for node_id, address in nodes:
        row = members.of_node(node_id)
        taken = next((m for m in (*members.members, *new) if m.address == address and m.node_id != node_id), None)
        if row is not None and row.address != address:
            return AlreadyMember(row)
        if taken is not None:
            return AddressTaken(taken)
        if row is None:
            new.append(Member(node_id, NO_DISK, address, role))
    return _admissible(_with(members, *new), context) if new else Unchanged()


def _removed(context: ChangeContext, node_id: str) -> Members | Unchanged | Refused:
    members, row = context.members, context.members.of_node(node_id)
    if row is None:
        known = any(gone.node_id == node_id for gone in members.removed)
        return Unchanged() if known else NoMember(tuple(member.node_id for member in members.members))
    if (refused := _voteless(context, row)) is not None:
        return refused
    present = replace(row, disk_id=context.disks.get(node_id, row.disk_id))  # It may have lost the disk of its row.
    for gone in {row.disk_id: row, present.disk_id: present}.values():
        members = _noted(members, gone, context.record_index)
    return _admissible(_without(members, row), context)


def _demoted(context: ChangeContext, node_id: str) -> Members | Unchanged | Refused:
    members, row = context.members, context.members.of_node(node_id)
    if row is None:
        return NoMember(tuple(member.node_id for member in members.members))
    if row.role is Role.OBSERVER:
        return Unchanged()
    if (refused := _voteless(context, row)) is not None:
        return refused
    return _admissible(_with(members, replace(row, role=Role.OBSERVER)), context)


def _moved(context: ChangeContext, node_id: str, address: str) -> Members | Unchanged | Refused:
    members, row = context.members, context.members.of_node(node_id)
    if row is None:
        return NoMember(tuple(member.node_id for member in members.members))
    if row.address == address:
        return Unchanged()
    if (taken := next((member for member in members.members if member.address == address), None)) is not None:
        return AddressTaken(taken)
    return _admissible(_with(members, replace(row, address=address)), context)


def _voteless(context: ChangeContext, row: Member) -> OwnRow | LastVoter | None:
    """Why this row may not lose its vote; None if it has none, or may."""
    if row.role is Role.VOTER and len(context.members.voters()) == 1:
        return LastVoter()
    return OwnRow() if row.node_id == context.me else None


def _with(members: Members, *rows: Member) -> Members:
    """The members with these rows instead of those of the same nodes."""
    new = {row.node_id for row in rows}
    kept = [member for member in members.members if member.node_id not in new]
    return Members(tuple(sorted((*kept, *rows), key=lambda member: member.node_id)), members.removed)


def _without(members: Members, row: Member) -> Members:
    kept = tuple(member for member in members.members if member is not row)
    return Members(kept, members.removed)


def _noted(members: Members, row: Member, index: int) -> Members:
    """The members with the row's disk among the removed ones, once. A node that never connected has none."""
    if row.disk_id == NO_DISK:
        return members
    others = (gone for gone in members.removed if (gone.node_id, gone.disk_id) != (row.node_id, row.disk_id))
    return Members(members.members, (*others, Removed(row.node_id, row.disk_id, index))[-MAX_REMOVED:])


def _admissible(after: Members, context: ChangeContext) -> Members | TooMany | Unheard:
    """Refuse a change that could not be committed: it would count at once and could not be undone."""
    if len(after.members) > MAX_MEMBERS:
        return TooMany(len(after.members), MAX_MEMBERS)
    unheard = tuple(voter.node_id for voter in after.voters() if not context.is_heard(voter))
    if not after.is_majority(context.is_heard):
        return Unheard(unheard, len(after.voters()) - len(unheard), after.majority())
    return after
