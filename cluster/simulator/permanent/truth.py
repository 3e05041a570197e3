"""Whether nodes say truly how fit they are, while some are ill: what operators, load balancers and peers go by."""

from collections.abc import Collection, Mapping

from quire.replication.core.fitness import Level

from ..checks import Violation
from ..clock import MILLISECOND
from ..nodes import Node
from ..plan import ELECTION_US
from .illness import Illness

LOOKS_EVERY_US = 100 * MILLISECOND
KNOWN_AFTER_US = 10 * ELECTION_US
"""By then an illness shows, and what an election or a lost link did to a healthy node is over."""
SHOWS = {
    "slow_disk": Level.SLOW_DISK,
    "hung_disk": Level.DISK_HANGS,
    "failed_machine": Level.MACHINE_FAILED,
}
"""What a node says that has this illness and no other. A full disk shows at the first append that finds no room, a disk
that hangs as soon as something is asked of it, a slow one by what it flushes, a failed machine at the next command.
"""
QUIET_AFTER_US = 2 * ELECTION_US


class Truth:
    """Looks at the levels of all nodes, again and again."""

    def __init__(self, patients: Mapping[Node, Collection[Illness]], healthy: Collection[Node], now: int) -> None:
        self._expected = {
            node: SHOWS[illness.kind]
            for node, illnesses in patients.items()
            for illness in illnesses
            if len(illnesses) == 1 and illness.kind in SHOWS
        }
        self._expected |= dict.fromkeys(healthy, Level.FIT)
        self._true_at = dict.fromkeys(self._expected, now)
        self._ends: dict[Node, tuple[int, int]] = dict.fromkeys(self._expected, (-1, now))

    def look(self, now: int) -> None:
        """Look at them now.

        Raises:
            Violation: a healthy node has said for long that it is ill, or an ill one that it is not.
        """
        for node, expected in self._expected.items():
            level = node.running.status().fitness.level if node.process is not None else expected
            if level == expected or self._does_not_show(node, expected, now):
                self._true_at[node] = now
            elif now - self._true_at[node] > KNOWN_AFTER_US:
                raise Violation("a node says truly how fit it is", node.node_id, level.name, expected.name)

    def _does_not_show(self, node: Node, level: Level, now: int) -> bool:
        """Whether nothing has met what ails a node: its disk is asked nothing, its machine has applied all there is."""
        if level is Level.DISK_HANGS:
            return node.latency.busy_until <= now
        if level is Level.SLOW_DISK:
            return now - self._grew_at(node, now) > QUIET_AFTER_US
        status, applier = node.running.status(), node.running.applier
        return level is Level.MACHINE_FAILED and applier.applied_index >= status.commit_index

    def _grew_at(self, node: Node, now: int) -> int:
        """When the end of a node's log was last seen to have moved: a node that no leader reaches flushes nothing."""
        end, since = node.running.log.tail.index, self._ends[node]
        if end != since[0]:
            self._ends[node] = since = (end, now)
        return since[1]
