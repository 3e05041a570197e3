"""Injects the plan's faults, and repairs them."""

from random import Random

from quire.log import LogError
from quire.log.simulated import faulty
from quire.replication import PromiseLost
from quire.replication.core import events

from .checks import Violation
from .clock import MILLISECOND, Schedule
from .membership.changes import MemberChanges
from .membership.operator import Operator
from .membership.rules import MemberChecks
from .membership.wishes import MEMBER_KINDS
from .network import Network
from .node.node import Node
from .plan import Fault, Settings
from .stranger import Stranger

RETRY_START_US = 100 * MILLISECOND
NETWORK_KINDS = ("cut", "depose", "slow_link", "reset_links", "break_streams")
DISK_TROUBLE = ("the disk failed", "LogReadOnly", "LogClosed")


class Nemesis:
    """Injects faults, and restarts nodes that died."""

    def __init__(
        self, settings: Settings, schedule: Schedule, network: Network, nodes: list[Node], checks: MemberChecks
    ) -> None:
        self.settings = settings
        self.schedule = schedule
        self.network = network
        self.nodes = nodes
        self.checks = checks
        self.random = Random(f"{settings.seed}/nemesis")
        self.stranger = Stranger(settings.seed, nodes, checks)
        self.healed = False
        self.changes_members = False
        """Whether an operator changes the members, and nodes whose disk is empty join."""
        self._fuses: dict[str, tuple[str, int]] = {}
        self._wiped = False
        self._absent: set[str] = set()
        self.operator = Operator(settings.seed, schedule, nodes, checks)
        self.operator.ended = lambda _: self._whole_again()
        self.members = MemberChanges(settings.seed, schedule, network, nodes, checks, self.operator, self.start)
        for node in nodes:
            node.ended = self.ended

    def use(self, checks: MemberChecks) -> None:
        """From now on another history is checked."""
        self.checks = checks
        self.operator.use(checks)
        self.members.use(checks)

    # Targets

    def _whom(self, role: str, kind: str) -> Node | None:
        """The node of that name, or a running one with that role. Network faults may also hit one that is down."""
        named = next((node for node in self.nodes if node.node_id == role), None)
        if named is not None:
            return named if named.runs or kind in NETWORK_KINDS else None
        running = [node for node in self.nodes if node.runs]
        wanted = [
            node
            for node in running
            if role == "any"
            or (role == "leader" and node.leads)
            or (role == "follower" and not node.leads)
            or (role == "candidate" and node.nominated)
        ]
        wanted = wanted or running or (self.nodes if kind in NETWORK_KINDS else [])
        return self.random.choice(wanted) if wanted else None

    # Faults

    def strike(self, fault: Fault) -> None:
        """Carry out a fault."""
        if fault.kind == "power_all":
            how, lasts = str(fault.values[0]), int(fault.values[1])
            for running in [node for node in self.nodes if node.runs]:
                self._die(running, how, lasts)
            return
        if fault.kind == "nominate":
            self._nominate(fault)
        elif fault.kind == "wipe":
            self._wipe(fault.whom[0])
        elif fault.kind == "promote" and not self.changes_members:
            self.promote(fault.whom[0])
        elif fault.kind in MEMBER_KINDS:
            self._count(fault.kind)
            self.members.strike(fault.kind, fault.whom, next(iter(fault.values), ""))
        elif (node := self._whom(fault.whom[0], fault.kind)) is not None:
            self._count(fault.kind)
            lasts = next((value for value in fault.values if type(value) is int), 0)
            if fault.kind in ("slow_disk", "hang_disk", "failing_disk", "full_disk"):
                self._strike_disk(fault, node, lasts)
            elif fault.kind in NETWORK_KINDS:
                self._strike_network(fault, node, lasts)
            else:
                self._strike_process(fault, node, lasts)

    def _count(self, kind: str) -> None:
        faults = self.checks.counts.faults
        faults[kind] = faults.get(kind, 0) + 1

    def _strike_process(self, fault: Fault, node: Node, lasts: int) -> None:
        values = fault.values
        match fault.kind:
            case "crash":
                self._die(node, str(values[0]), lasts)
            case "fuse":
                node.armed_fuse, node.trigger = int(values[2]), str(values[3])
                self._fuses[node.node_id] = str(values[0]), lasts
            case "pause":
                if node.backlog is None:
                    node.pause()
                    self.schedule.later(lasts, self._resume, node, node.life)
            case "clock":
                node.clocks.ahead += lasts
            case "transfer":
                node.run(node.life, node.step, events.TransferRequested(str(values[0]) or None))
            case "stop":
                self._stop(node, lasts)
            case "stranger":
                self.stranger.speak(node, str(values[0]))
            case _:
                raise ValueError(fault.kind)

    def _strike_network(self, fault: Fault, node: Node, lasts: int) -> None:
        values = fault.values
        match fault.kind:
            case "cut":
                self._cut(node, str(values[0]), lasts)
            case "depose":
                self._cut(node, "alone", lasts)
                self._name_another(node)
            case "slow_link":
                for pair in self._pairs_of(node):
                    self.network.slow[pair] = int(values[1])
                self.schedule.later(lasts, self._quicken, node)
            case "reset_links":
                self.network.reset(self._pairs_of(node))
            case _:
                self.network.break_streams(node)

    def _strike_disk(self, fault: Fault, node: Node, lasts: int) -> None:
        values = fault.values
        match fault.kind:
            case "slow_disk":
                node.latency.lowest, node.latency.highest = int(values[1]) // 2, int(values[1])
            case "hang_disk":
                node.latency.hangs_until = self.schedule.now + lasts
            case "failing_disk":
                self._fail_disk(node, str(values[1]))
            case _:
                node.disk.full = True
        self.schedule.later(lasts, self._repair_disk, node)

    def _pairs_of(self, node: Node) -> list[tuple[str, str]]:
        others = [other.node_id for other in self.nodes if other is not node]
        return [pair for other in others for pair in ((node.node_id, other), (other, node.node_id))]

    def _nominate(self, fault: Fault) -> None:
        node = next(node for node in self.nodes if node.node_id == fault.whom[0])
        node.nominated = bool(fault.values[0])
        node.run(node.life, node.step, events.Nominated(node.nominated))

    def _name_another(self, than: Node) -> None:
        """The control plane nominates another voter, and all nodes learn it at once."""
        candidate = self.random.choice(
            [name for name in self.settings.node_ids[: self.settings.voters] if name != than.node_id]
        )
        for node in self.nodes:
            node.nominated = node.node_id == candidate
            node.run(node.life, node.step, events.Nominated(node.nominated))

    # Cuts

    def _cut(self, node: Node, shape: str, lasts: int) -> None:
        self.checks.counts.cuts += 1
        pairs = self._shape(node, shape)
        self.network.begin_cut(pairs)
        self.schedule.later(lasts, self.network.end_cut, pairs)

    def _shape(self, node: Node, shape: str) -> list[tuple[str, str]]:
        name = node.node_id
        others = [other.node_id for other in self.nodes if other is not node]
        if shape == "one_way_in":
            return [(other, name) for other in others]
        if shape == "one_way_out":
            return [(name, other) for other in others]
        if shape == "pair":
            other = self.random.choice(others)
            return [(name, other), (other, name)]
        if shape in ("halves", "bridge"):
            shuffled = self.random.sample(others, len(others))
            left, right = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]
            if shape == "halves":
                left.append(name)  # A bridge reaches both sides.
            return [pair for a in left for b in right for pair in ((a, b), (b, a))]
        return self._pairs_of(node)

    def _quicken(self, node: Node) -> None:
        for pair in self._pairs_of(node):
            self.network.slow.pop(pair, None)

    # Disks

    def _fail_disk(self, node: Node, what: str) -> None:
        random = node.disk.random
        node.condition.disk_failing = True

        def fails(operation: str, name: str) -> bool:
            return operation == "sync" and (what == "any" or what in name) and random.random() < 0.5

        node.disk.failing = fails

    def _repair_disk(self, node: Node) -> None:
        node.disk.failing, node.disk.full = None, False
        node.latency.lowest, node.latency.highest = self.settings.sync_us

    def _wipe(self, name: str) -> None:
        """Replace a node's disk, so that it loses its vote. At most one disk at a time: a majority must remain."""
        node = next(node for node in self.nodes if node.node_id == name)
        if self.changes_members and not self.members.may_wipe(node):
            return
        if (self._wiped and not self.changes_members) or node.nominated:
            return
        self._count("wipe")
        self._wiped = True
        if node.runs:
            self._die(node, "nothing", 200 * MILLISECOND)
        node.fuse = node.trigger = None
        self.checks.lost_disk(node)
        if self.changes_members:
            self.members.wipe(node)
            return
        node.insert_disk()
        node.format()

    def _whole_again(self) -> None:
        self._wiped = False  # Every majority has all committed records again: another disk may be lost.

    def promote(self, name: str) -> None:
        """An operator wants a node to be a voter."""
        self._count("promote")
        self.operator.promote(name)

    # Life and death

    def _resume(self, node: Node, life: int) -> None:
        if node.life == life and node.runs:
            node.resume()

    def ended(self, node: Node, why: str) -> None:
        """Handle the end of a node: its fuse burned down, or it halted."""
        if why == "fuse":
            self._die(node, *self._fuses.get(node.node_id, ("kill", 100 * MILLISECOND)))
            return
        if (index := node.running.health.removed_at) is not None:
            self.members.left(node, index)
            return
        reason = node.running.health.halt_reason
        if not node.condition.disk_failing or not reason.startswith(DISK_TROUBLE):
            raise Violation("a node halts only when its disk fails", node.node_id, reason)
        self._die(node, "kill", 100 * MILLISECOND)

    def _stop(self, node: Node, lasts: int) -> None:
        life = node.life

        def stop() -> None:
            try:
                node.stop_cleanly()
            except LogError:
                if not node.condition.disk_failing:
                    raise

        node.backlog = None
        node.run(life, stop)
        if node.runs and node.life == life:
            self._die(node, "kill", lasts)

    def kill(self, node: Node, lasts: int, keep: faulty.Keep | None = None) -> None:
        """Kill a node, regardless of other faults; it restarts after a while."""
        self.checks.counts.crashes += 1
        node.die(keep=keep)
        self.schedule.later(lasts, self.start, node)

    def _die(self, node: Node, how: str, lasts: int) -> None:
        self.checks.counts.crashes += 1
        node.die(keep=None if how == "kill" else faulty.Keep(how))
        self._absent.add(node.node_id)
        self.schedule.later(RETRY_START_US if self.healed else lasts, self.start, node)

    def start(self, node: Node) -> None:
        """Start a node that is down; retry later if its disk fails.

        Raises:
            Violation: it does not start although its disk works.
        """
        if node.runs or node.has_left or not node.is_formatted:
            return
        try:
            node.start()
        except faulty.PowerLoss:
            how, lasts = self._fuses.get(node.node_id, ("kill", 100 * MILLISECOND))
            self._die(node, how, lasts)
        except (OSError, LogError, PromiseLost) as error:
            reads_only = isinstance(error, OSError) or type(error).__name__ in ("LogReadOnly", "DiskFull")
            if not reads_only or not (node.condition.disk_failing or node.disk.full):
                raise Violation("a node starts", node.node_id, repr(error)) from error
            self._die(node, "kill", RETRY_START_US)

    # The end

    def heal(self) -> None:
        """End all faults."""
        self.healed = True
        self.network.end_cut([pair for pair, count in list(self.network.cut.items()) for _ in range(count)])
        self.network.slow.clear()
        for node in self.nodes:
            self._repair_disk(node)
            node.fuse, node.trigger, node.latency.hangs_until, node.clocks.ahead = None, None, 0, 0
            if node.backlog is not None:
                node.resume()
            if not node.runs:
                self.start(node)
        if self.changes_members:
            self.members.heal()
