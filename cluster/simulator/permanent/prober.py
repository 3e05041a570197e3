"""A client that probes healthy nodes continuously, and measures for how long no write or read is answered."""

from dataclasses import dataclass

from ..clients import Attempt, Client, Operation
from ..clock import MILLISECOND
from ..node.node import Node
from ..plan import ELECTION_US

PROBES_EVERY_US = 40 * MILLISECOND
READS = 3
"""Every third probe is a linearizable read."""


@dataclass(frozen=True)
class Unavailability:
    """For how many election timeouts no write was acknowledged: until the first one, and the longest gap.

    `reads` is the longest gap without an answered read.
    """

    kinds: tuple[str, ...]
    first: float
    longest: float
    elections: int = 0
    reads: float = 0.0


class Prober(Client):
    """Sends new requests to healthy nodes continuously, each request once; a node answers or forwards to its leader."""

    healthy: list[Node]
    stopped = True

    def start(self) -> None:
        """Begin to probe."""
        self.stopped = False
        self.began_us = self.last_us = self.schedule.now
        self.first_us: int | None = None
        self.longest_us = self.longest_read_us = 0
        self.last_read_us = self.began_us
        self._probes = 0
        self._probe()

    @property
    def waits_us(self) -> int:
        """How long nothing has been acknowledged so far."""
        return self.schedule.now - self.last_us

    def unavailability(self, kinds: tuple[str, ...], elections: int) -> Unavailability:
        """The measurements so far."""
        first_us = self.waits_us if self.first_us is None else self.first_us
        longest_us = max(self.longest_us, self.waits_us)
        reads_us = max(self.longest_read_us, self.schedule.now - self.last_read_us)
        return Unavailability(
            kinds, first_us / ELECTION_US, longest_us / ELECTION_US, elections, reads_us / ELECTION_US
        )

    def _probe(self) -> None:
        if self.stopped:
            return
        self._probes += 1
        if self._probes % READS == 0:
            operation = Operation("read", self.order.began())
        else:
            operation = Operation("write", self.order.began(), [next(self._numbers)])
        self.checks.counts.operations += 1
        self.under_way.append(operation)
        self.schedule.later(self._delay(), self._at_node, self.random.choice(self.healthy), Attempt(self, operation, 0))
        self.schedule.later(PROBES_EVERY_US, self._probe)

    def _at_node(self, node: Node, attempt: Attempt) -> None:
        if node.leads:
            node.run(node.life, self._ask, node, attempt)
            return
        following = node.process.core.status().following if node.process is not None else None
        leader = next((other for other in self.nodes if following and other.node_id == following.candidate), None)
        if leader is not None and leader.runs and not self._is_cut(node, leader):
            self.schedule.later(self._delay(), leader.run, leader.life, self._ask, leader, attempt)

    def _is_cut(self, node: Node, leader: Node) -> bool:
        cut = node.network.cut
        return (node.node_id, leader.node_id) in cut or (leader.node_id, node.node_id) in cut

    def read(self, operation: Operation, state: object, applied_index: int) -> None:
        """Check an answer, and note when it came."""
        super().read(operation, state, applied_index)
        self.longest_read_us = max(self.longest_read_us, self.schedule.now - self.last_read_us)
        self.last_read_us = self.schedule.now

    def acknowledged(self, operation: Operation) -> None:
        """Note when a write was acknowledged."""
        if self.first_us is None:
            self.first_us = self.schedule.now - self.began_us
        self.longest_us = max(self.longest_us, self.waits_us)
        self.last_us = self.schedule.now
