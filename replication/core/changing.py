"""Rule 15: the members change one voter at a time, through the log.

A record of members counts as soon as it stands in a node's log, committed or not, and no longer when it is truncated
(Raft 4.1 of the thesis). Any majority of the voters before a change and any after it share a voter, as long as only
one was added or removed, so two leaders can not be elected beside each other. That holds only under two conditions,
which the leader looks at before it appends:

- *The change before is committed.* Two uncommitted ones are two voters at a time.
- *A record of the leader's own epoch is committed, its `epoch_start`.* Otherwise a change that an earlier leader left
  on a minority may come back and stand beside this one (the bug found in 2015 in the thesis' one-server changes).

A disk that was lost is replaced by two changes: its vote is removed, and when that is committed the new disk is added.
One record that does both has majorities before and after it without a common voter: of n1, n2 and n3's old disk the
first and the last; of n1, n2 and n3's new disk n2 and the new one. Whoever asked for it and was interrupted between
the two asks again: what is next follows from the log alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .members import MAX_MEMBERS, Member, Members, Role

if TYPE_CHECKING:
    from .state import State


@dataclass(frozen=True, slots=True)
class Changed:
    """The record at `index` is committed."""

    index: int


@dataclass(frozen=True, slots=True)
class AlreadyVoter:
    """The node is a voter with the disk that it has: nothing is to be done."""


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
    """This leader is handing over to another node; nothing was appended."""

    target: str


@dataclass(frozen=True, slots=True)
class NotConnected:
    """The leader has no link to that node, only to others; nothing was appended."""

    connected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotFollowing:
    """The node has no stream from this leader yet: it fetches a snapshot, or cuts what diverges."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The node lacks more than a new voter may: until it had that, it would hold commits up."""

    lag_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """Of the voters that there would be, fewer than a majority were heard within an election timeout."""

    node_ids: tuple[str, ...]
    heard: int
    majority: int


@dataclass(frozen=True, slots=True)
class TooMany:
    """There would be more members than may be."""

    count: int
    limit: int


@dataclass(frozen=True, slots=True)
class Full:
    """The disk is full; nothing was appended."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The record was appended, and the leadership ended before it was committed: nobody knows what becomes of it."""


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
    """What a leader knows of itself and of a node that is to be a voter. `match_index` is None without a stream."""

    serving: bool
    start_index: int | None
    transferring_to: str | None
    match_index: int | None
    is_heard: Callable[[Member], bool]


def next_change(state: "State", context: ChangeContext, node_id: str, address: str) -> Members | AlreadyVoter | Refused:
    """The members as they are to stand in the log next, on the way of a node to be a voter with its present disk."""
    if not context.serving:
        return NotServing(context.start_index or 0, state.commit_index)
    if (members_index := state.log.members_index or 0) >= state.commit_index:
        return ChangeUnderWay(members_index, state.commit_index)
    if context.transferring_to is not None:
        return TransferUnderWay(context.transferring_to)
    disk_id = state.me.disk_id if node_id == state.me.node_id else state.links.get(node_id)
    if disk_id is None:
        return NotConnected(tuple(sorted(state.links)))
    members = state.members
    if members.is_voter(node_id, disk_id):
        return AlreadyVoter()
    if context.match_index is None:
        return NotFollowing()
    lag_bytes = state.log.bytes_from(context.match_index)
    if lag_bytes > state.options.promotable_bytes:
        return Behind(lag_bytes, state.options.promotable_bytes)
    return _admissible(_after(members, Member(node_id, disk_id, address, Role.VOTER)), context)


def _after(members: Members, new: Member) -> tuple[Member, ...]:
    """The old disk's vote goes first; with none, the new one comes."""
    old = members.of_node(new.node_id)
    others = tuple(member for member in members.members if member.node_id != new.node_id)
    if old is not None and old.role is Role.VOTER:
        return others
    return tuple(sorted((*others, new), key=lambda member: member.node_id))


def _admissible(after: tuple[Member, ...], context: ChangeContext) -> Members | TooMany | Unheard:
    """Refuse what could not be committed, and nothing after it: it would count at once, and could not be taken back."""
    if len(after) > MAX_MEMBERS:
        return TooMany(len(after), MAX_MEMBERS)
    members = Members(after)
    unheard = tuple(voter.node_id for voter in members.voters() if not context.is_heard(voter))
    if not members.is_majority(context.is_heard):
        return Unheard(unheard, len(members.voters()) - len(unheard), members.majority())
    return members
