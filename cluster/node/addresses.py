"""The members and their addresses as callers are told them: those of the log, and of the configuration before that.

The log wins: the configuration is for the first formation, and for a member that the log does not name yet.
"""

from collections.abc import Callable

from quire.replication import Members

from ..config.serve import ServeConfig


class Addresses:
    """HOST:PORT of each member."""

    def __init__(self, config: ServeConfig, members: Callable[[], Members | None]) -> None:
        """`members` returns those in the log; None while the cluster is not formed."""
        self._config = config
        self._members = members

    def all(self) -> dict[str, str]:
        """The members' addresses by node id; this node's own is among them."""
        config, members = self._config, self._members()
        if members is None:
            return dict(config.members)
        gone = {row.node_id for row in members.removed}
        configured = {node: address for node, address in config.members.items() if node not in gone}
        return configured | {member.node_id: member.address for member in members.members}

    def of(self, node_id: str) -> str | None:
        """A member's own address; None for a node that is no member."""
        members = self._members()
        row = None if members is None else members.of_node(node_id)
        return self._config.members.get(node_id) if row is None else row.address

    def __contains__(self, node_id: object) -> bool:
        """Whether this is the id of a member."""
        return isinstance(node_id, str) and self.of(node_id) is not None

    def reached(self, node_id: str) -> str | None:
        """Where this node reaches a member: at the address of `link`, if there is one; None for an unknown id."""
        return self._config.link.get(node_id) or self.of(node_id)

    def differences(self) -> str | None:
        """Where the configuration names other members or addresses than the log, as a sentence; None if nowhere.

        A node that was told nothing but itself, or joined, has nothing to compare.
        """
        config, members = self._config, self._members()
        if members is None or config.join or set(config.members) <= {config.node}:
            return None
        log = {member.node_id: member.address for member in members.members}
        missing = [node for node in config.members if node not in log and node in config.initial_members]
        if not missing and all(config.members.get(node) == address for node, address in log.items()):
            return None
        return (
            f"this node's configuration has the members {_listed(config.members)}, and the log {_listed(log)}; the log "
            "counts: correct --members, or start this node with --join"
        )


def _listed(addresses: dict[str, str]) -> str:
    return ", ".join(f"{node}={address}" for node, address in sorted(addresses.items()))
