"""Carries out the plan's wishes: nodes start, join, leave, come back with old disks, and lose disks."""

from collections.abc import Callable, Sequence
from random import Random

from quire.log import MEMBERSHIP
from quire.replication.core import Role, events
from quire.replication.core.members import NO_DISK
from quire.replication.core.messages import Last, Promise, VoteRequest

from ..clock import MILLISECOND, SECOND, Schedule
from ..network import Network
from ..node.node import Inserted, Node
from .joining import Joining
from .operator import Operator, wanted_of
from .rules import MemberChecks
from .wishes import AWAY

STARTS_WITHIN_US = 600 * MILLISECOND
AWAY_US = (700 * MILLISECOND, 1500 * MILLISECOND)
PROMISES_AFTER = (1.5, 2.0)
"""Election timeouts without a leader, after which a node promises another."""
PAST_EVERY_LOG = 1 << 40


class MemberChanges:
    """The members of one history as they change, beside its other faults."""

    def __init__(
        self,
        seed: int,
        schedule: Schedule,
        network: Network,
        nodes: list[Node],
        checks: MemberChecks,
        operator: Operator,
        start: Callable[[Node], None],
    ) -> None:
        self._random = Random(f"{seed}/changes of members")
        self._schedule = schedule
        self._network = network
        self._nodes = nodes
        self._checks = checks
        self._operator = operator
        self._start = start
        self.joining = Joining(seed, schedule, network, nodes, start)
        self._swapped: dict[str, Inserted] = {}
        """The present disks of nodes that were started with a former one."""

    def begin(self) -> None:
        """Some spare nodes are started before anybody adds them: they wait."""
        for node in self._nodes:
            if not node.is_formatted and self._random.random() < 0.5:
                self._schedule.later(self._random.randint(0, 3 * SECOND), self.joining.begin, node)

    @property
    def is_swapped(self) -> bool:
        """Whether a node runs with a former disk."""
        return bool(self._swapped)

    def use(self, checks: MemberChecks) -> None:
        """From now on another history is checked."""
        self._checks = checks

    def rejoin(self, names: tuple[str, ...]) -> None:
        """The others join a node that was recovered."""
        self._add(names, Role.JOINING)

    def wait_again(self, node: Node) -> None:
        """Let a node with an empty disk wait for a genesis, if it has one."""
        if not node.is_formatted:
            self.joining.begin(node)

    def strike(self, kind: str, whom: Sequence[str], value: object) -> None:
        """Carry out a wish of the plan."""
        name = whom[0]
        if name == "leader":
            leader = self._operator.leader
            name = leader.node_id if leader is not None else self._random.choice(self._nodes).node_id
        node = self._node(name)
        match kind:
            case "add":
                self._add(tuple(whom), Role(str(value)))
            case "promote":
                self._operator.promote(name)
            case "remove" | "demote" if self._is_safe_without(node):
                if value == AWAY:
                    self._away(node)
                self._operator.want((name,), wanted_of(kind, name, ""))
            case "move":
                self._operator.want((name,), wanted_of(kind, name, str(value)))
            case "drain" if isinstance(value, int):
                node.run(node.life, node.step, events.Drained(True))
                self._schedule.later(value, node.run, node.life, node.step, events.Drained(False))
            case "return":
                self._return(node)
            case _:
                pass

    def _node(self, name: str) -> Node:
        return next(node for node in self._nodes if node.node_id == name)

    # Joining

    def _add(self, names: tuple[str, ...], role: Role) -> None:
        for node in map(self._node, names):
            if node.has_left:
                self._empty(node)
            if not node.is_formatted:
                self._schedule.later(self._random.randint(0, STARTS_WITHIN_US), self.joining.begin, node)
        self._operator.add(names, role)

    def _empty(self, node: Node) -> None:
        """A removed node comes back with another disk, as a new member must."""
        self._checks.lost_disk(node)
        node.former_disks.append(node.take_disk())
        node.has_left = False
        node.insert_disk()

    def wipe(self, node: Node) -> None:
        """Replace a disk that was lost. The node joins again."""
        leader = self._operator.leader
        core = leader.running.core if leader is not None else None
        row = core.members.of_node(node.node_id) if core is not None else None
        is_replaced = bool(node.form.core.auto_replace_us and core and MEMBERSHIP in core.features)
        node.insert_disk()
        self.joining.begin(node)
        if not is_replaced or row is None or row.role is not Role.VOTER:
            self._operator.promote(node.node_id)

    def may_wipe(self, node: Node) -> bool:
        """Whether a majority remains without a node's disk, whichever of the logs counts."""
        if not node.is_formatted or node.has_left or node.node_id in self._swapped:
            return False
        return self._is_safe_without(node) and not any(wish.takes_votes for wish in self._operator.wishes)

    def _is_safe_without(self, node: Node) -> bool:
        disks = {(other.node_id, other.disk_id) for other in self._nodes if other is not node}
        views = [one.shadow.members_below(one.shadow.end).voters for one in self._nodes if one.is_formatted]
        return all(len(voters & disks) > len(voters) // 2 for voters in views)

    # Leaving

    def _away(self, node: Node) -> None:
        """Cut a node off. Meanwhile it promises a candidate whose campaign nobody else hears of."""
        name, others = node.node_id, [other for other in self._nodes if other is not node]
        pairs = [pair for other in others for pair in ((name, other.node_id), (other.node_id, name))]
        self._network.begin_cut(pairs)
        self._schedule.later(self._random.randint(*AWAY_US), self._network.end_cut, pairs)
        candidate = self._random.choice(others)
        for timeouts in PROMISES_AFTER:
            after_us = int(timeouts * node.form.core.election_timeout_us)
            self._schedule.later(after_us, node.run, node.life, self._promise, node, candidate)

    def _promise(self, node: Node, candidate: Node) -> None:
        if not node.counts:
            return  # Nobody asks an observer.
        epoch = node.running.core.promise.epoch + 1
        promise = Promise(epoch, candidate.node_id, self._random.getrandbits(63))
        request = VoteRequest(promise, Last(epoch, PAST_EVERY_LOG))
        node.step(events.Received(candidate.node_id, candidate.disk_id, request))

    def left(self, node: Node, index: int) -> None:
        """Handle the end of a node that was removed."""
        self._checks.left(node, index)
        self._checks.counts.removals += 1
        node.die(keep=None)
        node.has_left = True
        if node.node_id in self._swapped:
            self._swap_back(node)

    def _return(self, node: Node) -> None:
        """Start a node with the disk with which it was removed."""
        if node.has_left:
            node.has_left = False
            self._start(node)
        elif node.former_disks and node.is_formatted and node.node_id not in self._swapped:
            if node.runs:
                node.die(keep=None)
            node.fuse = node.trigger = None
            self._checks.lost_disk(node)
            self._swapped[node.node_id] = node.take_disk()
            node.put_back(node.former_disks[-1])
            self._start(node)

    def _swap_back(self, node: Node) -> None:
        self._checks.lost_disk(node)
        node.put_back(self._swapped.pop(node.node_id))
        node.has_left = False
        self._start(node)

    # The end

    def heal(self) -> None:
        """Every node runs with its newest disk, and none is drained."""
        for node in self._nodes:
            if node.node_id in self._swapped:
                if node.runs:
                    node.die(keep=None)
                self._swap_back(node)
            node.run(node.life, node.step, events.Drained(False))

    def _join(self, node: Node) -> None:
        """Start a node that has a row and no disk in it, with an empty disk if its own was removed."""
        if node.has_left:
            self._empty(node)
        if not node.is_formatted:
            self.joining.begin(node)

    def settled(self, leader: Node) -> list[Node] | None:
        """The nodes that belong to the cluster; None while a change is under way, or a removed node runs."""
        members = leader.running.core.members
        waiting = [row.node_id for row in members.members if row.role is Role.JOINING or row.disk_id == NO_DISK]
        for node_id in waiting:  # All of them: those that join become voters once all are level.
            self._join(self._node(node_id))
        if waiting:
            return None
        names = {row.node_id for row in members.members}
        removed = {(gone.node_id, gone.disk_id) for gone in members.removed}
        others = [node for node in self._nodes if node.runs and node.node_id not in names]
        if any((node.node_id, node.disk_id) in removed for node in others):
            return None
        return [node for node in self._nodes if node.node_id in names]
