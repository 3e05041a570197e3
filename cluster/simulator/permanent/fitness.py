"""Whether nodes report their fitness correctly while some are faulty: operators and peers rely on it."""

from collections.abc import Collection, Mapping

from quire.replication.core.fitness import Level

from ..checks import Violation
from ..clock import MILLISECOND
from ..node.node import Node
from ..plan import ELECTION_US
from .faults import PermanentFault

CHECKED_EVERY_US = 100 * MILLISECOND
KNOWN_AFTER_US = 10 * ELECTION_US
"""After this a fault is visible, and the effect of an election or a lost link on a healthy node is over."""
SHOWS = {
    "slow_disk": Level.SLOW_DISK,
    "hung_disk": Level.DISK_HANGS,
    "failed_machine": Level.MACHINE_FAILED,
    "other_code": Level.MACHINE_FAILED,
}
"""What a node with only this fault reports. A full disk shows at the first append that finds no room, a hung disk at
the next operation, a slow one in its flushes, a failed machine at the next command.
"""
QUIET_AFTER_US = 2 * ELECTION_US


class FitnessReports:
    """Checks the reported levels of all nodes repeatedly."""

    def __init__(self, faulty: Mapping[Node, Collection[PermanentFault]], healthy: Collection[Node], now: int) -> None:
        self._expected = {
            node: SHOWS[fault.kind]
            for node, faults in faulty.items()
            for fault in faults
            if len(faults) == 1 and fault.kind in SHOWS
        }
        self._expected |= dict.fromkeys(healthy, Level.FIT)
        self._true_at = dict.fromkeys(self._expected, now)
        self._ends: dict[Node, tuple[int, int]] = dict.fromkeys(self._expected, (-1, now))

    def check(self, now: int) -> None:
        """Check them now.

        Raises:
            Violation: a healthy node has long reported a fault, or a faulty one none.
        """
        for node, expected in self._expected.items():
            level = node.running.core.status().fitness.level if node.process is not None else expected
            if level == expected or self._does_not_show(node, expected, now):
                self._true_at[node] = now
            elif now - self._true_at[node] > KNOWN_AFTER_US:
                raise Violation("a node reports its fitness correctly", node.node_id, level.name, expected.name)

    def _does_not_show(self, node: Node, level: Level, now: int) -> bool:
        """Whether nothing has triggered a node's fault: its disk is idle and its machine has applied everything."""
        if level is Level.DISK_HANGS:
            return node.latency.busy_until <= now
        if level is Level.SLOW_DISK:
            return now - self._grew_at(node, now) > QUIET_AFTER_US
        status, applier = node.running.core.status(), node.running.machine.applier
        return level is Level.MACHINE_FAILED and applier.applied_index >= status.commit_index

    def _grew_at(self, node: Node, now: int) -> int:
        """When the end of a node's log was last seen to move: a node that no leader reaches flushes nothing."""
        end, since = node.running.log.tail.index, self._ends[node]
        if end != since[0]:
            self._ends[node] = since = (end, now)
        return since[1]
