"""Rule 0: how a cluster begins.

An unformatted node neither promises nor counts. When all initial members are connected and all unformatted, the
lowest id makes the genesis frame; whoever finds its disk in a genesis that is shown takes that one, committed or not;
any other joins a committed one as an observer.

All of them, and not a majority: *a wiped majority would form an empty cluster* beside the disks that hold the data.
"""

from collections.abc import Sequence

from .members import Member, Members, Role
from .state import Identity


class Formation:
    """What an unformatted node knows of the others."""

    def __init__(self, me: Identity, address: str, initial: Sequence[str]) -> None:
        self._me = Member(me.node_id, me.disk_id, address, Role.VOTER)
        self._initial = sorted(initial)
        self._linked: dict[str, Member] = {}

    def linked(self, node_id: str, disk_id: bytes, address: str, *, formatted: bool) -> None:
        """The link that this node dialled to a peer stands."""
        if formatted:
            self._linked.pop(node_id, None)
        else:
            self._linked[node_id] = Member(node_id, disk_id, address, Role.VOTER)

    def unlinked(self, node_id: str) -> None:
        """It is gone."""
        self._linked.pop(node_id, None)

    def awaited(self) -> list[str]:
        """The initial members that are not connected and unformatted."""
        return [node for node in self._initial if node != self._me.node_id and node not in self._linked]

    def members(self) -> Members | None:
        """Whom to form the cluster of, if it is this node's turn."""
        if self._me.node_id != self._initial[0] or self.awaited():
            return None
        return Members(tuple(self._linked.get(node, self._me) for node in self._initial))

    def accepts(self, shown: Members, *, committed: bool) -> bool:
        """Whether this node takes a genesis that a member shows: its disk stands there, or it may observe."""
        return committed or any(member.disk_id == self._me.disk_id for member in shown.members)
