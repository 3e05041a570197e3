"""Nodes with `--join` and an empty disk, until a member sends the genesis (rule 0)."""

from collections.abc import Callable
from random import Random

from quire.replication.core import Identity, Members
from quire.replication.core.membership.formation import Formation

from ..checks import Violation
from ..clock import MILLISECOND, Schedule
from ..network import Network
from ..node.node import Node

ASKS_EVERY_US = (10 * MILLISECOND, 120 * MILLISECOND)


class Joining:
    """Lets nodes wait for a genesis, by the shipped `Formation`: one that joins has no initial members."""

    def __init__(
        self, seed: int, schedule: Schedule, network: Network, nodes: list[Node], start: Callable[[Node], None]
    ) -> None:
        self._random = Random(f"{seed}/joining")
        self._schedule = schedule
        self._network = network
        self._nodes = nodes
        self._start = start
        self.initial: list[str] = []
        """None: with `--join` there are no initial members."""
        self._waiting: dict[bytes, Formation] = {}

    def begin(self, node: Node) -> None:
        """Start a node whose disk is empty."""
        if node.is_formatted or node.disk_id in self._waiting:
            return
        me = Identity(node.node_id, node.disk_id, 0)
        self._waiting[node.disk_id] = Formation(me, f"{node.node_id}:1", self.initial)
        self._ask(node, node.disk_id)

    def _ask(self, node: Node, disk_id: bytes) -> None:
        """Form, if the shipped code says so; else ask another node for the genesis, again and again."""
        formation = self._waiting[disk_id]
        if node.disk_id != disk_id or node.is_formatted:
            del self._waiting[disk_id]
            return
        if (formed := formation.members()) is not None:
            raise Violation("rule 0: a node with --join never forms", node.node_id, formed)
        others = [other for other in self._nodes if other is not node and self._reaches(node, other)]
        if others:
            peer = self._random.choice(others)
            formation.linked(peer.node_id, peer.disk_id, f"{peer.node_id}:1", formatted=peer.is_formatted)
            if peer.runs and self._is_offered(node, peer, formation):
                del self._waiting[disk_id]
                node.history = peer.history
                node.format()
                self._start(node)
                return
        self._schedule.later(self._random.randint(*ASKS_EVERY_US), self._ask, node, disk_id)

    def _reaches(self, node: Node, other: Node) -> bool:
        pair = (node.node_id, other.node_id)
        is_up = other.runs or other.disk_id in self._waiting
        return is_up and pair not in self._network.cut and pair[::-1] not in self._network.cut

    @staticmethod
    def _is_offered(node: Node, peer: Node, formation: Formation) -> bool:
        """Whether a peer sends its genesis, and the node takes it."""
        core, members = peer.running.core, peer.form.members
        is_named = core.members.of_node(node.node_id) is not None and peer.checks is node.checks
        return is_named and formation.accepts(Members(members.members), committed=core.commit_index > 0)
