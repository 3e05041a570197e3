"""The members of the cluster: how it forms (rule 0), and what a majority of its voters is."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ..address import host_and_port

MAX_NODE_ID_BYTES = 24
NODE_ID = re.compile(rf"[a-z0-9-]{{1,{MAX_NODE_ID_BYTES}}}")
DISK_ID_BYTES = 16
MAX_MEMBERS = 64


class Identity(NamedTuple):
    """This process: the node, its disk, and a number that is random at each start."""

    node_id: str
    disk_id: bytes
    incarnation: int


class Role(StrEnum):
    """A voter counts for majorities; an observer only replicates."""

    VOTER = "voter"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class Member:
    """A node with its disk. A node that returns with another disk is another member."""

    node_id: str
    disk_id: bytes
    address: str
    role: Role


def _member(row: object) -> Member:
    if type(row) is not list or len(row) != 4:
        raise ValueError(f"{row!r} is not a row of node_id, disk_id, address and role")
    node_id, disk_id, address, role = row
    if type(node_id) is not str or type(address) is not str or type(disk_id) is not bytes:
        raise ValueError(f"{row!r} does not name a node")
    if not NODE_ID.fullmatch(node_id) or len(disk_id) != DISK_ID_BYTES:
        raise ValueError(f"{row!r} has ids of another shape")
    host_and_port(address)
    return Member(node_id, disk_id, address, Role(role))


@dataclass(frozen=True, slots=True)
class Members:
    """The members in a `genesis` or `members` record."""

    members: tuple[Member, ...]
    _voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)  # Read several times per step.

    def __post_init__(self) -> None:
        object.__setattr__(self, "_voters", tuple(m for m in self.members if m.role is Role.VOTER))

    @classmethod
    def from_record(cls, rows: Iterable[object]) -> "Members":
        """The members of a system record's `members` field: rows of node_id, disk_id, address, role.

        Raises:
            ValueError: a row has another shape, a node has two, their number is out of range, or none is a voter's.
        """
        members = tuple(_member(row) for row in rows)
        if not 0 < len(members) <= MAX_MEMBERS:
            raise ValueError(f"{len(members)} members; there are 1 to {MAX_MEMBERS}")
        if len({member.node_id for member in members}) != len(members):
            raise ValueError("a node has two rows")
        if not any(member.role is Role.VOTER for member in members):
            raise ValueError("no member is a voter")
        return cls(members)

    def to_record(self) -> list[list[str | bytes]]:
        """The rows for a system record."""
        return [[m.node_id, m.disk_id, m.address, str(m.role)] for m in self.members]

    def voters(self) -> tuple[Member, ...]:
        """The members that count."""
        return self._voters

    def is_voter(self, node_id: str, disk_id: bytes) -> bool:
        """Whether this node counts, with this disk. A voter's node id with another disk does not."""
        return any(voter.node_id == node_id and voter.disk_id == disk_id for voter in self._voters)

    def of_node(self, node_id: str) -> Member | None:
        """The member with this node id, with any disk."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def majority(self) -> int:
        """How many voters are a majority."""
        return len(self._voters) // 2 + 1

    def is_majority(self, agrees: Callable[[Member], bool]) -> bool:
        """Whether more than half of the voters agree."""
        return sum(1 for voter in self._voters if agrees(voter)) >= self.majority()

    def held_by_majority(self, value_of: Callable[[Member], int]) -> int:
        """The greatest value that more than half of the voters have reached."""
        return sorted(map(value_of, self._voters), reverse=True)[self.majority() - 1]


class Formation:
    """What an unformatted node knows about the others, until there is a genesis (rule 0).

    The cluster forms when *all* initial members are connected and all are unformatted; then the lowest id makes the
    genesis frame. A majority is not enough: a wiped majority would form an empty cluster next to the disks that hold
    the data.
    """

    def __init__(self, me: Identity, address: str, initial: Sequence[str]) -> None:
        self._me = Member(me.node_id, me.disk_id, address, Role.VOTER)
        self._initial = sorted(initial)
        self._linked: dict[str, Member] = {}

    def linked(self, node_id: str, disk_id: bytes, address: str, *, formatted: bool) -> None:
        """The link that this node dialled to a peer is up."""
        if formatted:
            self._linked.pop(node_id, None)
        else:
            self._linked[node_id] = Member(node_id, disk_id, address, Role.VOTER)

    def unlinked(self, node_id: str) -> None:
        """The link is down."""
        self._linked.pop(node_id, None)

    @property
    def others(self) -> list[str]:
        """The initial members but this node."""
        return [node for node in self._initial if node != self._me.node_id]

    def awaited(self) -> list[str]:
        """The initial members that are not connected, or are connected and formatted."""
        return [node for node in self.others if node not in self._linked]

    def members(self) -> Members | None:
        """The members with which to form the cluster, if that is this node's task now."""
        if self._me.node_id != self._initial[0] or self.awaited():
            return None
        return Members(tuple(self._linked.get(node, self._me) for node in self._initial))

    def accepts(self, offered: Members, *, committed: bool) -> bool:
        """Whether this node accepts a genesis that a member offers.

        Yes if its own disk is among the members, committed or not; else only a committed one, as an observer.
        """
        return committed or any(member.disk_id == self._me.disk_id for member in offered.members)
