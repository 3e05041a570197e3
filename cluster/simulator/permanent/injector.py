"""Injects permanent faults, and repairs them."""

from random import Random

from quire.log.simulated import faulty

from ..clock import MILLISECOND, SECOND
from ..nemesis import Nemesis
from ..network import Network
from ..node.node import Node
from ..plan import ELECTION_US
from .faults import PermanentFault, Value

BACK_AFTER_US = (50 * MILLISECOND, 600 * MILLISECOND)
AWAY_US = 4 * SECOND
RESETS_US = (200 * MILLISECOND, 3 * SECOND)


class Injector:
    """Injects one history's permanent faults, and maintains them until `repair`."""

    def __init__(self, random: Random, network: Network, nemesis: Nemesis, lasts_us: int) -> None:
        self._random = random
        self._network = network
        self._nemesis = nemesis
        self._schedule = network.schedule
        self._ends_at = self._schedule.now + lasts_us
        self._cut: list[tuple[str, str]] = []

    @property
    def _is_over(self) -> bool:
        return self._schedule.now >= self._ends_at

    def inject(self, node: Node, fault: PermanentFault) -> None:
        """Give a node a fault."""
        node.condition.is_faulty = True
        faults = self._nemesis.checks.counts.faults
        faults[fault.kind] = faults.get(fault.kind, 0) + 1
        match fault.kind, fault.values:
            case "full_disk", _:
                node.disk.full = True
            case "slow_disk", _:
                node.latency.lowest = node.latency.highest = ELECTION_US * 9 // 10
            case "hung_disk", _:
                node.latency.hangs_until = self._ends_at
            case "failed_machine" | "other_code" as kind, values:
                self._break_machine(node, kind, values)
            case "wrong_clock", (int(ahead_us),):
                node.clocks.ahead += ahead_us
            case "clock_rate", (float(rate),):
                node.clocks.run_at(rate)
            case "silent_flows", (str(which), int(again_us)):
                self._silence(node, which, again_us)
            case "one_way", (str(shape),):
                self._cut_pairs(self._one_way(node, shape), pongs=shape == "hears pongs alone")
            case "partial_reach", _:
                others = self._others(node)
                lost = self._random.sample(others, len(others) // 2)
                self._cut_pairs([pair for other in lost for pair in ((node.node_id, other), (other, node.node_id))])
            case "crash_loop", (int(runs_us),):
                self._crash(node, runs_us)
            case "stuck_install", _:
                self._network.fetches_nothing.add(node.node_id)
                self._nemesis.kill(node, AWAY_US)
            case _:
                raise ValueError(str(fault))

    def _break_machine(self, node: Node, kind: str, values: tuple[Value, ...]) -> None:
        if kind == "failed_machine":
            node.break_machine()
            return
        node.change_code()
        if values == ("restart",):
            self._nemesis.kill(node, self._random.randint(*BACK_AFTER_US))
        self._reset_links(node)

    def repair(self, nodes: list[Node]) -> None:
        """End all faults."""
        self._network.fetches_nothing.clear()
        self._network.end_cut(self._cut)
        for node in nodes:
            condition = node.condition
            if (condition.machine_is_broken or condition.runs_other_code) and node.runs:
                self._nemesis.kill(node, BACK_AFTER_US[0])
            condition.is_faulty = condition.machine_is_broken = condition.runs_other_code = False
        self._nemesis.heal()

    def _others(self, node: Node) -> list[str]:
        return [other for other in self._network.ends if other != node.node_id]

    def _one_way(self, node: Node, shape: str) -> list[tuple[str, str]]:
        name, others = node.node_id, self._others(node)
        if shape == "is not heard":
            return [(name, other) for other in others]
        if shape == "hears one less":
            return [(self._random.choice(others), name)]
        return [(other, name) for other in others]

    def _cut_pairs(self, pairs: list[tuple[str, str]], *, pongs: bool = False) -> None:
        """Cut these directions. `pongs`: a proxy in between answers pings, so neither end closes its connection."""
        self._cut += pairs
        self._network.begin_cut(pairs, breaks=not pongs)
        if not pongs:
            self._network.miss_pongs(pairs, 2 * ELECTION_US)

    def _silence(self, node: Node, which: str, again_us: int) -> None:
        if self._is_over:
            return
        pairs = [pair for other in self._others(node) for pair in ((node.node_id, other), (other, node.node_id))]
        self._network.silence(node, links=which != "streams", streams=which != "links")
        if which != "streams":
            self._network.miss_pongs(pairs, 2 * ELECTION_US)
        if again_us:
            self._schedule.later(again_us, self._silence, node, which, again_us)

    def _reset_links(self, node: Node) -> None:
        """Break a node's links now and again, so that what it knows of the others' code comes and goes."""
        if self._is_over:
            return
        name, others = node.node_id, self._others(node)
        other = self._random.choice([None, *others])
        for peer in others if other is None else [other]:
            self._network.reset([(name, peer), (peer, name)])
        self._schedule.later(self._random.randint(*RESETS_US), self._reset_links, node)

    def _crash(self, node: Node, runs_us: int) -> None:
        if self._is_over:
            return
        back_us = self._random.randint(*BACK_AFTER_US)
        if node.runs:
            self._nemesis.kill(node, back_us, self._random.choice((None, faulty.Keep.SOME)))
        self._schedule.later(back_us + self._random.randint(runs_us, 2 * runs_us), self._crash, node, runs_us)
