"""How a cluster forms (rule 0)."""

from collections.abc import Sequence

from ..members import Identity, Member, Members, Role


class Formation:
    """What an unformatted node knows about the others, until there is a genesis (rule 0).

    The cluster forms when *all* initial members are connected and all are unformatted; then the lowest id makes the
    genesis frame. A majority is not enough: a wiped majority would form an empty cluster next to the disks that hold
    the data. A node with `--join` has no initial members: it never forms, since its lost disk must not become a new,
    empty cluster.
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
        if not self._initial or self._me.node_id != self._initial[0] or self.awaited():
            return None
        return Members(tuple(self._linked.get(node, self._me) for node in self._initial))

    def accepts(self, offered: Members, *, committed: bool) -> bool:
        """Whether this node accepts a genesis that a member offers.

        Yes if its own disk is among the members, committed or not; else only a committed one, as an observer.
        """
        return committed or any(member.disk_id == self._me.disk_id for member in offered.members)
