"""The members of the cluster: who belongs to it and what a majority of its voters is (rule 15)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ..address import host_and_port

MAX_NODE_ID_BYTES = 24
NODE_ID = re.compile(rf"[a-z0-9-]{{1,{MAX_NODE_ID_BYTES}}}")
"""What a log or a message may name: a member of an earlier version may begin with -."""
NEW_NODE_ID = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{MAX_NODE_ID_BYTES - 1}}}")
"""What a new member may be called: not as an option is, since ids stand in commands that are pasted."""
NODE_ID_FORM = f"1 to {MAX_NODE_ID_BYTES} of a-z, 0-9 and -, not - first"
DISK_ID_BYTES = 16
NO_DISK = bytes(DISK_ID_BYTES)
"""In the row of a node that has not connected yet: its first proven hello names its disk."""
MAX_MEMBERS = 64
MAX_REMOVED = 1_000


class Identity(NamedTuple):
    """This process: the node, its disk, and a number that is random at each start."""

    node_id: str
    disk_id: bytes
    incarnation: int


class Role(StrEnum):
    """A voter counts for majorities; an observer only replicates; one that joins becomes a voter once it is level."""

    VOTER = "voter"
    OBSERVER = "observer"
    JOINING = "joining"


@dataclass(frozen=True, slots=True)
class Member:
    """A node with its disk. A node that returns with another disk is another member."""

    node_id: str
    disk_id: bytes
    address: str
    role: Role


class Removed(NamedTuple):
    """A disk that is no longer a member: the record at `index` removed it. A node may return with another disk."""

    node_id: str
    disk_id: bytes
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.


def _member(row: object) -> Member:
    if type(row) is not list or len(row) != 4:
        raise ValueError(f"{row!r} is not a row of node_id, disk_id, address and role")
    node_id, disk_id, address, role = row
    if type(address) is not str:
        raise ValueError(f"{row!r} does not name a node")
    _check_ids(row, node_id, disk_id)
    host_and_port(address)
    if disk_id == NO_DISK and role == Role.VOTER:
        raise ValueError(f"{row!r} is a voter without a disk")
    return Member(node_id, disk_id, address, Role(role))


def _removed(row: object) -> Removed:
    if type(row) is not list or len(row) != 3:
        raise ValueError(f"{row!r} is not a row of node_id, disk_id and index")
    node_id, disk_id, index = row
    _check_ids(row, node_id, disk_id)
    if type(index) is not int or not 0 <= index < 1 << 63:
        raise ValueError(f"{row!r} does not name a record")
    return Removed(node_id, disk_id, index)


def _check_ids(row: object, node_id: object, disk_id: object) -> None:
    if type(node_id) is not str or type(disk_id) is not bytes:
        raise ValueError(f"{row!r} does not name a node")
    if not NODE_ID.fullmatch(node_id) or len(disk_id) != DISK_ID_BYTES:
        raise ValueError(f"{row!r} has ids of another shape")


@dataclass(frozen=True, slots=True)
class Members:
    """The members in a `genesis`, `members` or `history` record, and the disks that were removed, oldest first."""

    members: tuple[Member, ...]
    removed: tuple[Removed, ...] = ()
    _voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)  # Read several times per step.
    _disks: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_voters", tuple(m for m in self.members if m.role is Role.VOTER))
        object.__setattr__(self, "_disks", tuple((voter.node_id, voter.disk_id) for voter in self._voters))

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> "Members":
        """The members of a system record: its field `members` has rows of node_id, disk_id, address and role, and its
        field `removed`, which it need not have, rows of node_id, disk_id and index.

        Raises:
            ValueError: a row has another shape, a node has two, their number is out of range, or none is a voter's.
        """
        rows, gone = record.get("members"), record.get("removed", [])
        if type(rows) is not list or type(gone) is not list or len(gone) > MAX_REMOVED:
            raise ValueError("the record has no rows of members, or too many of removed ones")
        members = tuple(_member(row) for row in rows)
        if not 0 < len(members) <= MAX_MEMBERS:
            raise ValueError(f"{len(members)} members; there are 1 to {MAX_MEMBERS}")
        if len({member.node_id for member in members}) != len(members):
            raise ValueError("a node has two rows")
        if not any(member.role is Role.VOTER for member in members):
            raise ValueError("no member is a voter")
        return cls(members, tuple(_removed(row) for row in gone))

    def to_record(self) -> dict[str, object]:
        """The fields for a system record. A record of an earlier version has no `removed`."""
        rows = [[m.node_id, m.disk_id, m.address, str(m.role)] for m in self.members]
        return {"members": rows, **({"removed": [list(gone) for gone in self.removed]} if self.removed else {})}

    def removal_of(self, node_id: str, disk_id: bytes) -> int | None:
        """The index of the record that removed this disk; None if it was not removed."""
        if self.names(node_id, disk_id):
            return None
        found = [gone.index for gone in self.removed if (gone.node_id, gone.disk_id) == (node_id, disk_id)]
        return max(found, default=None)

    def voters(self) -> tuple[Member, ...]:
        """The members that count."""
        return self._voters

    def is_voter(self, node_id: str, disk_id: bytes) -> bool:
        """Whether this node counts, with this disk. A voter's node id with another disk does not."""
        return (node_id, disk_id) in self._disks

    def names(self, node_id: str, disk_id: bytes) -> bool:
        """Whether this node is a member of any role, with this disk."""
        return any((member.node_id, member.disk_id) == (node_id, disk_id) for member in self.members)

    def of_node(self, node_id: str) -> Member | None:
        """The member with this node id, with any disk."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def majority(self) -> int:
        """How many voters are a majority."""
        return len(self._voters) // 2 + 1

    def is_majority(self, agrees: Callable[[Member], bool]) -> bool:
        """Whether more than half of the voters agree."""
        return sum(1 for voter in self._voters if agrees(voter)) >= self.majority()

    def held_by_majority(self, values: Mapping[tuple[str, bytes], int]) -> int:
        """The greatest value that more than half of the voters have reached.

        `values` are by (node_id, disk_id); a voter without one has reached 0.
        """
        reached = sorted([values.get(disk, 0) for disk in self._disks])
        return reached[(len(reached) - 1) // 2]
