"""Where a node's peers may be reached, by several sources, the best first:

    link        an address given for this node's own use, such as that of a proxy: then only that
    log         the row of the last members record
    directory   what a peer says of a later members record, which this log does not have yet
    members     the configuration
    seed        an address of `--join`, where that node has answered
    hello       what the peer, which has proved itself, says

No rule reads it: it says whom to dial and whom to believe to be a member, never who counts.
"""

from collections.abc import Callable, Mapping

from ..address import is_address, is_here
from ..core.members import MAX_MEMBERS, Members
from ..core.messages import Directory
from .trust import Trust


def believed(trust: Trust, directory: Directory) -> dict[str, str]:
    """The addresses of a directory that may be dialled: from a peer that proves nothing, those on this machine."""
    return {node: address for node, address in directory.addresses if trust.proves or is_here(address)}


class Book:
    """The addresses of one node's peers."""

    def __init__(
        self,
        me: str,
        members: Callable[[], tuple[int, Members]],
        configured: Mapping[str, str],
        links: Mapping[str, str],
    ) -> None:
        """`members` returns those in the log, with the index of their record."""
        self._me = me
        self._members = members
        self._configured = configured
        self._links = links
        self._seeds: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._directories: dict[str, tuple[int, dict[str, str]]] = {}

    def found(self, node_id: str, address: str) -> None:
        """A node has answered at an address of `--join`."""
        self._seeds[node_id] = address

    def told(self, node_id: str, address: str) -> None:
        """A peer that proved itself says that this is its address."""
        self._told[node_id] = address

    def learnt(self, sender: str, index: int, addresses: dict[str, str]) -> None:
        """A member says that the members record at `index` names these; the last that each said is kept."""
        if sender in self._directories or len(self._directories) < MAX_MEMBERS:
            self._directories[sender] = index, addresses

    def forget(self, node_id: str) -> None:
        """The peer is dialled no longer."""
        self._told.pop(node_id, None)
        self._directories.pop(node_id, None)

    @property
    def _ahead(self) -> dict[str, str]:
        """What the directories say of records that are later than this log's last one."""
        own = self._members()[0]
        latest = sorted((said for said in self._directories.values() if said[0] > own), key=lambda said: said[0])
        return {node_id: address for _, addresses in latest for node_id, address in addresses.items()}

    def peers(self) -> set[str]:
        """The other nodes that are members by some source, and not removed by the log."""
        _, members = self._members()
        others = {*self._configured, *self._seeds, *self._ahead}
        named = {member.node_id for member in members.members}
        return (named | {node for node in others if not self.was_removed(node)}) - {self._me}

    def left_behind(self) -> list[str]:
        """The configured addresses of nodes that the log removed. One that begins a history removed all others."""
        return [address for node_id, address in self._configured.items() if self.was_removed(node_id)]

    def is_certain(self, node_id: str) -> bool:
        """Whether this is a member by the log or the configuration, and not only by what a peer says."""
        known = self._members()[1].of_node(node_id) is not None
        return known or ((node_id in self._configured or node_id in self._links) and not self.was_removed(node_id))

    def was_removed(self, node_id: str) -> bool:
        """Whether the log removed this node, and has no other row of it."""
        _, members = self._members()
        return members.of_node(node_id) is None and any(gone.node_id == node_id for gone in members.removed)

    def is_member(self, node_id: str) -> bool:
        """Whether this is the id of a member, or of a removed one, which must still be told so."""
        if node_id in self._configured or node_id in self._seeds or node_id in self._ahead:
            return True
        _, members = self._members()
        return members.of_node(node_id) is not None or any(gone.node_id == node_id for gone in members.removed)

    def addresses_of(self, node_id: str) -> list[str]:
        """The addresses at which to try a peer, the best first."""
        if (own := self._links.get(node_id)) is not None:
            return [own]
        row = self._members()[1].of_node(node_id)
        found = (
            None if row is None else row.address,
            self._ahead.get(node_id),
            self._configured.get(node_id),
            self._seeds.get(node_id),
            self._told.get(node_id),
        )
        return list(dict.fromkeys(address for address in found if address is not None and is_address(address)))
