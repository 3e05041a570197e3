"""The phase of a history in which a minority is ill for good, and the majority is asked to go on."""

from random import Random

from quire.replication.core import events

from ..checks import Violation
from ..clock import MILLISECOND, SECOND
from ..nemesis import Nemesis
from ..network import Network
from ..nodes import Node
from ..plan import ELECTION_US
from .illness import LASTS_ELECTIONS, Illness, Ordeal
from .prober import Endured, Prober
from .truth import LOOKS_EVERY_US, Truth
from .ward import Ward

MOST_ELECTIONS = 10
"""The law: whatever is wrong for good with a minority, a healthy majority goes on within so many election timeouts."""
MOST_LEADERS = 5
"""How many elections an ordeal may cost: epochs that go on climbing are outages, each a short one.

A node that crashes again and again may cost more: if the control plane nominates it, it leads each time it is back.
"""
TURN_US = 3 * ELECTION_US


class Trial:
    """Carries out an ordeal, once the cluster is whole."""

    def __init__(self, ordeal: Ordeal, seed: int, network: Network, nemesis: Nemesis, prober: Prober) -> None:
        self.ordeal = ordeal
        self.endured: Endured | None = None
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
        """Strike, and demand progress until the end of the ordeal; then heal, if it says so.

        Raises:
            Violation: the healthy majority did not go on.
        """
        patients = self._choose()
        if not patients:
            return
        self._prober.healthy = [node for node in self._voters() if node not in patients]
        ward = Ward(self._random, self._network, self._nemesis, self._lasts_us)
        self._ends_at = self._schedule.now + self._lasts_us
        counts = self._nemesis.checks.counts
        kinds = tuple(sorted({illness.kind for patient in patients.values() for illness in patient}))
        elections = counts.elections
        self._nominate(list(patients), 0)
        self._beside(next(iter(patients)))
        self._prober.start()
        for node, illnesses in patients.items():
            for illness in illnesses:
                self.trace.append(f"{self._schedule.now} {node.node_id} falls ill: {illness}")
                ward.admit(node, illness)
        look_at, ask_at = 0, 0
        truth = Truth(patients, self._prober.healthy, self._schedule.now)
        while self._schedule.now < self._ends_at:
            self._schedule.run_next()
            if self._schedule.now >= ask_at:
                ask_at = self._schedule.now + LOOKS_EVERY_US
                truth.look(self._schedule.now)
            if self._schedule.now >= look_at:
                look_at = self._schedule.now + SECOND // 50
                self.endured = self._prober.endured(kinds, counts.elections - elections)
                self._judge(self.endured)
        self._prober.stopped = True
        if self.ordeal.heals:
            ward.discharge(self._nodes)

    def _judge(self, endured: Endured) -> None:
        if endured.longest > MOST_ELECTIONS:
            raise Violation("a sick minority never stops a healthy majority", self.ordeal, endured, *self.trace)
        if endured.reads > MOST_ELECTIONS:
            raise Violation("a sick minority never stops a healthy majority's reads", self.ordeal, endured, *self.trace)
        if endured.elections > MOST_LEADERS and "crash_loop" not in endured.kinds:
            raise Violation("a sick minority unseats no leader after leader", self.ordeal, endured, *self.trace)

    def _voters(self) -> list[Node]:
        """The running nodes whose present disk is a voter."""
        return [node for node in self._nodes if node.runs and node.counts]

    def _choose(self) -> dict[Node, tuple[Illness, ...]]:
        """The patients: no more than leave a majority of the log's voters healthy."""
        leader = next(node for node in self._nodes if node.leads)
        voters, counted = self._voters(), len(leader.running.core.members.voters())
        most = (counted - 1) // 2 - (counted - len(voters))
        followers = [node for node in voters if node is not leader]
        self._random.shuffle(followers)
        order = [leader, *followers] if self.ordeal.strikes_leader else followers
        return dict(zip(order[: max(0, most)], self.ordeal.patients, strict=False))

    def _nominate(self, patients: list[Node], turn: int) -> None:
        """The control plane, which knows nothing of illness."""
        if self._ends_at and self._schedule.now >= self._ends_at:
            return
        voters = self._voters() or self._nodes
        chosen = {
            "nobody": None,
            "patient": patients[0],
            "healthy": self._prober.healthy[0],
            "turns": voters[turn % len(voters)],
        }[self.ordeal.nominated]
        for node in self._nodes:
            if node.nominated != (node is chosen):
                node.nominated = node is chosen
                node.run(node.life, node.step, events.Nominated(node.nominated))
        self._schedule.later(TURN_US, self._nominate, patients, turn + 1)

    def _beside(self, patient: Node) -> None:
        """Have a transfer or a change of members under way."""
        leader = next(node for node in self._nodes if node.leads)
        if self.ordeal.beside == "transfer":
            leader.run(leader.life, leader.step, events.TransferRequested(patient.node_id))
        observers = [node for node in self._nodes if not node.counts]
        if self.ordeal.beside == "promote" and observers:
            self._schedule.later(20 * MILLISECOND, self._nemesis.promote, observers[0].node_id)
