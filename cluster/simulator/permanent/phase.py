"""The phase of a history in which a minority has permanent faults and the majority must make progress."""

from random import Random

from quire.replication.core import events

from ..checks import Violation
from ..clock import MILLISECOND, SECOND
from ..nemesis import Nemesis
from ..network import Network
from ..node.node import Node
from ..plan import ELECTION_US
from .faults import LASTS_ELECTIONS, PermanentFault, PermanentFaults
from .fitness import CHECKED_EVERY_US, FitnessReports
from .injector import Injector
from .prober import Prober, Unavailability

MOST_ELECTIONS = 10
"""Whatever permanent faults a minority has, the majority makes progress within this many election timeouts."""
MOST_LEADERS = 5
"""How many elections the phase may cost: epochs that keep climbing are outages, each a short one.

A node that crashes again and again may cost more: if the control plane nominates it, it leads each time it is back.
"""
NOMINATION_US = 3 * ELECTION_US


class PermanentPhase:
    """Runs the phase, once the cluster is whole."""

    def __init__(self, faults: PermanentFaults, seed: int, network: Network, nemesis: Nemesis, prober: Prober) -> None:
        self.faults = faults
        self.unavailability: Unavailability | None = None
        self._random = Random(f"{seed}/trial")
        self._network = network
        self._schedule = network.schedule
        self._nemesis = nemesis
        self._nodes = nemesis.nodes
        self._prober = prober
        self._lasts_us = LASTS_ELECTIONS * ELECTION_US
        self._ends_at = 0
        self.trace: list[str] = []

    def run(self) -> None:
        """Inject the faults, and require progress until the phase ends; then repair, if the plan says so.

        Raises:
            Violation: the healthy majority made no progress.
        """
        faulty = self._choose()
        if not faulty:
            return
        self._prober.healthy = [node for node in self._voters() if node not in faulty]
        injector = Injector(self._random, self._network, self._nemesis, self._lasts_us)
        self._ends_at = self._schedule.now + self._lasts_us
        counts = self._nemesis.checks.counts
        kinds = tuple(sorted({fault.kind for faults in faulty.values() for fault in faults}))
        elections = counts.elections
        self._nominate(list(faulty), 0)
        self._start_concurrent(next(iter(faulty)))
        self._prober.start()
        for node, faults in faulty.items():
            for fault in faults:
                self.trace.append(f"{self._schedule.now} {node.node_id} fails: {fault}")
                injector.inject(node, fault)
        look_at, ask_at = 0, 0
        reports = FitnessReports(faulty, self._prober.healthy, self._schedule.now)
        while self._schedule.now < self._ends_at:
            self._schedule.run_next()
            if self._schedule.now >= ask_at:
                ask_at = self._schedule.now + CHECKED_EVERY_US
                reports.check(self._schedule.now)
            if self._schedule.now >= look_at:
                look_at = self._schedule.now + SECOND // 50
                self.unavailability = self._prober.unavailability(kinds, counts.elections - elections)
                self._judge(self.unavailability)
        self._prober.stopped = True
        if self.faults.heals:
            injector.repair(self._nodes)

    def _judge(self, stopped: Unavailability) -> None:
        if stopped.longest > MOST_ELECTIONS:
            raise Violation("a faulty minority never stops a healthy majority", self.faults, stopped, *self.trace)
        if stopped.reads > MOST_ELECTIONS:
            raise Violation(
                "a faulty minority never stops a healthy majority's reads", self.faults, stopped, *self.trace
            )
        if stopped.elections > MOST_LEADERS and "crash_loop" not in stopped.kinds:
            raise Violation("a faulty minority never replaces leader after leader", self.faults, stopped, *self.trace)

    def _voters(self) -> list[Node]:
        """The running nodes whose present disk is a voter."""
        return [node for node in self._nodes if node.runs and node.counts]

    def _choose(self) -> dict[Node, tuple[PermanentFault, ...]]:
        """The nodes that get faults: no more than leave a majority of the log's voters healthy."""
        leader = next(node for node in self._nodes if node.leads)
        voters, counted = self._voters(), len(leader.running.core.members.voters())
        most = (counted - 1) // 2 - (counted - len(voters))
        followers = [node for node in voters if node is not leader]
        self._random.shuffle(followers)
        order = [leader, *followers] if self.faults.hits_leader else followers
        return dict(zip(order[: max(0, most)], self.faults.faulty, strict=False))

    def _nominate(self, faulty: list[Node], count: int) -> None:
        """The control plane, which knows nothing of faults."""
        if self._ends_at and self._schedule.now >= self._ends_at:
            return
        voters = self._voters() or self._nodes
        chosen = {
            "nobody": None,
            "faulty": faulty[0],
            "healthy": self._prober.healthy[0],
            "all": voters[count % len(voters)],
        }[self.faults.nominated]
        for node in self._nodes:
            if node.nominated != (node is chosen):
                node.nominated = node is chosen
                node.run(node.life, node.step, events.Nominated(node.nominated))
        self._schedule.later(NOMINATION_US, self._nominate, faulty, count + 1)

    def _start_concurrent(self, faulty: Node) -> None:
        """Begin a transfer or a change of members."""
        leader = next(node for node in self._nodes if node.leads)
        if self.faults.concurrent == "transfer":
            leader.run(leader.life, leader.step, events.TransferRequested(faulty.node_id))
        observers = [node for node in self._nodes if not node.counts]
        if self.faults.concurrent == "promote" and observers:
            self._schedule.later(20 * MILLISECOND, self._nemesis.promote, observers[0].node_id)
