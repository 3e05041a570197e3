"""A lost majority: the best of the survivors is recovered by the shipped code, and the others join it empty.

Crashes interrupt the recovery, and it is run again. Disks of the former history come back one at a time, as strangers:
no node of the new history links to them.
"""

from collections.abc import Callable
from random import Random

from quire.log.simulated import faulty

from ...data_dir.identity import DataDirRefused, NodeIdentity, read_identity, write_identity
from ...data_dir.recovery import RecoveryPlan, make_plan, read_plan, recover
from ...data_dir.survivor import inspect
from ..checks import Violation
from ..clock import MILLISECOND, SECOND, Schedule
from ..machine import Tally
from ..nemesis import Nemesis
from ..node.node import Inserted, Node
from .rules import Begun, MemberChecks

MOST_CRASHES = 4
STARTS_ONCE = 3
FUSE = (0, 60)
LASTS_US = 4 * SECOND
STRANGERS = 3
STRANGER_US = 600 * MILLISECOND
FEWEST_VOTERS = 3


class Recovery:
    """Destroys a majority of the disks, recovers a survivor, and lets former disks return."""

    def __init__(self, seed: int, schedule: Schedule, nemesis: Nemesis, until: Callable[[int], None]) -> None:
        self._random = Random(f"{seed}/what is lost")
        self._schedule = schedule
        self._nemesis = nemesis
        self._nodes = nemesis.nodes
        self._until = until
        self._former: dict[str, Inserted] = {}
        self._plan: RecoveryPlan | None = None

    def begin(self, checks: MemberChecks) -> MemberChecks | None:
        """Destroy and recover. Returns the checks of the new history, or None if too few voters were left to lose.

        Raises:
            Violation: the recovery was refused, or breaks a rule.
        """
        voters = [node for node in self._nodes if node.is_formatted and not node.has_left and node.counts]
        if len(voters) < FEWEST_VOTERS or self._nemesis.members.is_swapped:
            return None
        survivors = self._random.sample(voters, self._random.randint(1, (len(voters) - 1) // 2))
        for node in self._nodes:
            if node.runs:
                node.die(keep=self._random.choice((None, faulty.Keep.SOME)))
            node.fuse = node.trigger = None
            node.has_left = True  # It stays down.
            if node.is_formatted:
                node.shadow.read_all()
        self._nemesis.operator.wishes.clear()
        self._nemesis.heal()
        best = max(survivors, key=lambda node: (node.shadow.frames[-1].epoch, node.shadow.end))
        plan = self._recover(best)
        checks.counts.recoveries += 1
        later = checks.begin_history(best, Begun(plan.end, plan.commit_index, plan.epoch))
        for node in self._nodes:
            node.checks = later
            if node is not best:
                self._replace(node, checks)
        best.disk_id, best.history, best.has_left = plan.disk_id, plan.history, False
        best.nominated = True
        self._nemesis.use(later)
        self._nemesis.start(best)
        others = tuple(node.node_id for node in self._nodes if node is not best)
        self._nemesis.members.rejoin(others)
        return later

    def _replace(self, node: Node, checks: MemberChecks) -> None:
        """Insert an empty disk. The former one may come back as a stranger."""
        if node.is_formatted:
            checks.lost_disk(node)
            if len(node.shadow.members_below(node.shadow.end).voters) >= FEWEST_VOTERS:
                self._former[node.node_id] = node.take_disk()
        node.insert_disk()
        node.has_left, node.nominated, node.former_disks = False, False, []

    def _recover(self, node: Node) -> RecoveryPlan:
        """Run `quire recover` until it succeeds."""
        directory = node.disk.directory()
        if read_identity(directory) is None:
            me = NodeIdentity(node.form.cluster_id, node.node_id, node.disk_id, (Tally.name, Tally.version), None)
            write_identity(directory, me)
        crashes, starts = self._random.randint(0, MOST_CRASHES), 0
        while True:
            node.fuse = self._random.randint(*FUSE) if crashes else None
            try:
                plan = self._run(node)
            except faulty.PowerLoss:
                crashes -= 1
                node.disk.lose_power(self._random.choice(list(faulty.Keep)))
                node.shadow.read_all()
            except DataDirRefused as refused:
                starts += 1
                if starts > STARTS_ONCE:
                    raise Violation("a survivor can be recovered", node.node_id, refused) from refused
                self._start_once(node)
            else:
                node.fuse = None
                return plan

    def _run(self, node: Node) -> RecoveryPlan:
        directory = node.disk.directory()
        plan, identity = read_plan(directory), read_identity(directory)
        if plan is None and self._plan and identity and identity.history == self._plan.history:
            return self._plan  # The crash came after the last step.
        if plan is None:
            survivor = inspect(directory)
            plan = make_plan(directory.path, survivor, "sim", None, node.clocks.clock)
            if survivor.last != (node.shadow.frames[-1].epoch, node.shadow.end):
                raise Violation("a survivor's end is that of its log", node.node_id, survivor.last)
        self._plan = plan
        recover(directory, plan, node.form.log)
        found = read_identity(directory)
        if found is None or found.history != plan.history or found.history == node.history:
            raise Violation("a recovery begins another history", node.node_id, found)
        return plan

    def _start_once(self, node: Node) -> None:
        """Start a survivor alone, so that it finishes what a crash interrupted."""
        node.fuse, node.has_left = None, False
        self._nemesis.start(node)
        self._until(self._schedule.now + SECOND // 2)
        if node.runs:
            node.die(keep=None)
        node.has_left = True

    def disturb(self, checks: MemberChecks, later: MemberChecks) -> None:
        """For a while, former disks come back, one at a time, and nodes crash."""
        ends_at = self._schedule.now + LASTS_US
        for _ in range(STRANGERS):
            self._until(self._schedule.now + self._random.randint(SECOND // 4, SECOND))
            node = self._random.choice(self._nodes)
            if node.node_id not in self._former:
                if node.runs:
                    self._nemesis.kill(node, 100 * MILLISECOND, self._random.choice((None, faulty.Keep.SOME)))
                continue
            self._visit(node, checks, later)
        self._until(ends_at)

    def _visit(self, node: Node, checks: MemberChecks, later: MemberChecks) -> None:
        if node.runs:
            node.die(keep=None)
        later.lost_disk(node)
        present, history = node.take_disk(), node.history
        node.checks, node.history = checks, node.form.cluster_id
        node.put_back(self._former.pop(node.node_id))
        self._nemesis.start(node)
        self._until(self._schedule.now + STRANGER_US)
        if node.runs:
            node.die(keep=None)
        node.put_back(present)
        node.checks, node.history, node.has_left = later, history, False
        self._nemesis.start(node)
        self._nemesis.members.wait_again(node)
