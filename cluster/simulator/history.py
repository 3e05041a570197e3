"""One history: a cluster, its clients and its faults, from a seed to an outcome."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from traceback import format_exception_only

from quire.log import Kind, encode_frame, encode_system
from quire.replication import Member, Members, Role
from quire.replication.core import events

from ..data_dir.genesis import FRAME_LIMITS
from .checks import Counts, Violation
from .clients import Client, Order
from .clock import SECOND, START_CLOCK, Clocks, Schedule
from .consuming.consumer import FIRST_CONSUMER, Consumer
from .disks import Latency
from .form import Form
from .machine import Model
from .membership.recovery import Recovery
from .membership.restoration import Restoration
from .membership.rules import MemberChecks
from .nemesis import Nemesis
from .network import Link, Network
from .node.node import Node
from .permanent.phase import PermanentPhase
from .permanent.prober import Prober, Unavailability
from .plan import ELECTION_US, Plan, calm

MIN_STEPS = 2_000
MIN_OPERATIONS = 50
CONVERGES_WITHIN_US = 90 * SECOND  # Hundreds of commands may wait for disks that take 0.15 s for each.
CLUSTER_ID = bytes(range(16))
MAX_SHRINKING_RUNS = 300
TRANSCRIPT_STEPS = 60
PROBER = 14
"""The prober's number as a client: no other client has it or sends its commands."""
LATEST_REPAIR_US = 2 * SECOND
"""By then every fault of the chaos has been repaired."""


@dataclass
class Outcome:
    """The result of a history. `failure` is empty if every rule held; otherwise `rule` names the broken one."""

    seed: int
    counts: Counts
    trace_hash: str
    failure: str = ""
    rule: str = ""
    trace: list[str] = field(default_factory=list)
    unavailability: Unavailability | None = None
    """How long its permanent faults stopped clients; None without any."""


class History:
    """A cluster, its clients and its faults while they run."""

    def __init__(self, plan: Plan) -> None:
        settings = self.settings = plan.settings
        self.plan = plan
        self.is_nominating = True
        self.schedule = Schedule()
        self.trace: list[str] = []
        self.network = Network(self.schedule, Random(f"{settings.seed}/network"), settings.weather)
        form = self._form()
        seed, spares = str(settings.seed), settings.spare_ids
        self.nodes = [
            Node(name, form, self.schedule, self.network, seed, is_spare=name in spares)
            for name in (*settings.node_ids, *spares)
        ]
        random = Random(f"{settings.seed}/nodes")
        for node, rate in zip(self.nodes, settings.rates, strict=True):
            ahead = random.randint(-settings.clock_ahead_us, settings.clock_ahead_us) // 2
            node.clocks = Clocks(self.schedule, rate, ahead)
            node.latency = Latency(*settings.sync_us)
            node.condition.apply_us = settings.apply_us
        self.checks = MemberChecks(self.nodes, form, self.trace, Model(settings.max_sessions))
        for node in self.nodes:
            node.checks = self.checks
            self.network.ends[node.node_id] = node
        self.network.links = {(a.node_id, b.node_id): Link(a, b) for a in self.nodes for b in self.nodes if a is not b}
        self.nemesis = Nemesis(settings, self.schedule, self.network, self.nodes, self.checks)
        self.nemesis.changes_members = plan.changes_members
        self.order = Order()
        self.clients = [
            Client(str(number), self.schedule, self.nodes, self.checks, self.order, settings.habits, str(settings.seed))
            for number in range(settings.habits.clients)
        ]
        self.consumers = [
            Consumer(str(number), self.schedule, self.nodes, self.checks, self.order, settings.habits, seed)
            for number in range(FIRST_CONSUMER, FIRST_CONSUMER + settings.habits.consumers)
        ]
        self.phase = self._phase()

    @property
    def _everyone(self) -> list[Client]:
        return [*self.clients, *self.consumers]

    def _phase(self) -> PermanentPhase | None:
        if self.plan.permanent is None:
            return None
        seed, habits = self.settings.seed, self.settings.habits
        name = str(PROBER)
        prober = Prober(name, self.schedule, self.nodes, self.checks, self.order, habits, str(seed))
        return PermanentPhase(self.plan.permanent, seed, self.network, self.nemesis, prober)

    def _form(self) -> Form:
        settings = self.settings
        members = Members(
            tuple(
                Member(node, f"{node}/1".encode().ljust(16, b"\0"), f"{node}:1", Role.VOTER)
                for node in settings.node_ids[: settings.voters]
            )
        )
        value = {
            "type": "genesis",
            "cluster_id": CLUSTER_ID,
            **members.to_record(),
            "machine": ["tally", 1],
            "initial": None,
            "limits": {"max_frame_bytes": FRAME_LIMITS[0]},  # No genesis has less, as the small logs here have.
        }
        genesis = encode_frame(
            index=0,
            epoch=0,
            timestamp=START_CLOCK,
            count=1,
            prev_crc32c=0,
            kind=Kind.SYSTEM,
            payload=encode_system(value),
        )
        return Form(
            CLUSTER_ID,
            genesis,
            members,
            settings.core,
            settings.log,
            settings.core.heartbeat_us // 2,
            settings.snapshot_records,
            settings.max_sessions,
            settings.retention_bytes,
            settings.retention_follower_bytes,
        )

    # Running

    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: a rule is broken. So do `InvariantBroken`, `ModelBroken` and any other error of the node's code.
        """
        self._start()
        self._until(self.settings.chaos_us)
        counts = self.checks.counts
        if self.phase is not None:
            self._calm()
        if self.plan.recovers:
            self._recover()
        if self.plan.restores:
            self._restore()
        self.nemesis.heal()
        self._nominate(0)
        # A plan may leave too little time or work: continue until there was enough of both.
        deadline = self.schedule.now + CONVERGES_WITHIN_US
        while (counts.steps < MIN_STEPS or counts.operations < MIN_OPERATIONS) and self.schedule.now < deadline:
            self.schedule.run_next()
        for client in self._everyone:
            client.stopped = True
        if self.phase is not None:
            self._until(self.settings.chaos_us + LATEST_REPAIR_US)
        self._settle()
        if self.phase is not None:
            self.is_nominating = False
            self.phase.run()
            self.is_nominating = True
            if self.phase.unavailability is not None and not self.phase.faults.heals:
                return
        for client in self._everyone:
            client.want_last()
        self._settle()

    def _start(self) -> None:
        for fault in self.plan.faults:
            self.schedule.at(fault.at, self.nemesis.strike, fault)
        for node in self.nodes:
            self.nemesis.start(node)
        if self.plan.changes_members:
            self.nemesis.members.begin()
        for client in self._everyone:
            self.schedule.later(SECOND // 4, client.begin)

    def _recover(self) -> None:
        """Lose a majority, recover a survivor, and continue with other clients in its history."""
        settings, former = self.settings, self.checks
        recovery = Recovery(settings.seed, self.schedule, self.nemesis, self._until)
        later = recovery.begin(former)
        if later is None:
            return
        for client in self.clients:
            client.stopped = True
            client.under_way.clear()
        self.checks, self.order, habits = later, Order(later.ends[-1]), settings.habits
        numbers = range(len(self.clients), len(self.clients) + habits.clients)
        self.clients = [
            Client(str(number), self.schedule, self.nodes, later, self.order, habits, str(settings.seed))
            for number in numbers
        ]
        for client in self.clients:
            client.begin()
        for consumer in self.consumers:
            consumer.continue_in(later, self.order)
        recovery.disturb(former, later)

    def _restore(self) -> None:
        """Restore a backup beside the members, and let it serve clients of its own."""
        settings = self.settings
        restoration = Restoration(settings.seed, self.schedule, self.nemesis, self._until)
        later = restoration.begin(self.checks)
        if later is None:
            return
        order, habits = Order(later.ends[-1]), settings.habits
        numbers = range(len(self.clients), len(self.clients) + habits.clients)
        nodes, seed = [restoration.node], str(settings.seed)
        clients = [Client(str(number), self.schedule, nodes, later, order, habits, seed) for number in numbers]
        numbers = range(FIRST_CONSUMER + len(self.consumers), FIRST_CONSUMER + 2 * len(self.consumers))
        heirs = zip(self.consumers, numbers, strict=True)
        restoration.serve(
            [*clients, *(consumer.heir(str(number), nodes, later, order, seed) for consumer, number in heirs)]
        )

    def _calm(self) -> None:
        """From now on only faulty nodes are slow."""
        settings = self.nemesis.settings = calm(self.settings)
        self.network.weather = settings.weather
        for node in self.nodes:
            node.condition.apply_us = settings.apply_us

    def _until(self, time: int) -> None:
        while self.schedule.now < time:
            self.schedule.run_next()

    def _nominate(self, count: int) -> None:
        """The control plane after the faults: nominate one voter after the other until one serves."""
        voters = [node for node in self.nodes if node.counts and not node.has_left]
        if (
            self.is_nominating
            and voters
            and not any(node.process and node.process.role_state.role.serving for node in voters)
        ):
            candidate = voters[count % len(voters)]
            for node in voters:
                node.nominated = node is candidate
                node.run(node.life, node.step, events.Nominated(node.nominated))
        self.schedule.later(3 * ELECTION_US, self._nominate, count + 1)

    def _settle(self) -> None:
        """Liveness: without faults, a leader is elected and all nodes converge."""
        deadline, look_at = self.schedule.now + CONVERGES_WITHIN_US, 0
        while self.schedule.now < deadline:
            self.schedule.run_next()
            if self.schedule.now >= look_at:
                look_at = self.schedule.now + SECOND // 20
                if self._is_settled():
                    return
        raise Violation("after the faults all nodes converge", *(self._describe(node) for node in self.nodes))

    def _is_settled(self) -> bool:
        leader = next((node for node in self.nodes if node.process and node.process.role_state.role.serving), None)
        if leader is None:
            return False
        nodes = self.nemesis.members.settled(leader) if self.plan.changes_members else self.nodes
        if not (all(client.is_idle for client in self._everyone) and self.nemesis.operator.is_idle):
            return False
        running = [node.process for node in nodes or () if node.process is not None]
        if nodes is None or len(running) < len(nodes):
            return False
        tail = running[0].log.tail
        return all(
            process.log.tail == tail
            and process.log.durable_index
            == process.core.commit_index
            == process.machine.applier.applied_index
            == tail.index
            and process.machine.applier.digest == running[0].machine.applier.digest
            for process in running
        )

    def _describe(self, node: Node) -> str:
        if node.process is None:
            return f"{node.node_id}: {'left' if node.has_left else 'down' if node.is_formatted else 'empty'}"
        process, status = node.running, node.running.core.status()
        return (
            f"{node.node_id}: {process.role_state.role.role} {status.promise} tail {process.log.tail[:2]} durable "
            f"{process.log.durable_index} commit {status.commit_index} applied {process.machine.applier.applied_index} "
            f"follows {status.following} matched {status.is_matched} nominated {node.nominated}"
        )


def run(plan: Plan, *, keep_trace: bool = False) -> Outcome:
    """Run a plan's history. Errors of the history are its outcome; with `keep_trace`, unexpected ones are raised."""
    history: History | None = None
    failure, rule = "", ""
    try:
        history = History(plan)
        history.run()
        counts = history.checks.counts
        ends = counts.crashes + counts.removals  # The only follower may be removed before its crash.
        if counts.steps < MIN_STEPS or counts.operations < MIN_OPERATIONS or not ends or not counts.cuts:
            raise Violation("a history is long and eventful enough", counts)
    except Violation as broken:
        failure, rule = str(broken), broken.rule
    except Exception as error:
        failure = rule = "".join(format_exception_only(error)).strip()
        rule = type(error).__name__
        if keep_trace:
            raise
    if history is None:
        return Outcome(plan.settings.seed, Counts(), "", failure, rule)
    counts = history.checks.counts
    counts.leader_changes = max(0, counts.elections - 1)
    digest = blake2b("\n".join(history.trace).encode(), digest_size=16).hexdigest()
    unavailability = history.phase.unavailability if history.phase is not None else None
    return Outcome(
        plan.settings.seed, counts, digest, failure, rule, history.trace if keep_trace else [], unavailability
    )


def shrink(plan: Plan, rule: str, fails: Callable[[Plan], Outcome] = run) -> Plan:
    """A plan with fewer faults that still breaks `rule`, found by delta debugging (Zeller 1999)."""
    bunch, runs = max(1, len(plan.faults) // 2), 0
    while True:
        at, went = 0, False
        while at < len(plan.faults) and runs < MAX_SHRINKING_RUNS:
            fewer = plan.without(frozenset(range(at, at + bunch)))
            runs += 1
            if fails(fewer).rule == rule:
                plan, went = fewer, True
            else:
                at += bunch
        if runs >= MAX_SHRINKING_RUNS or (bunch == 1 and not went):
            return plan
        bunch = max(1, bunch // 2)


def transcript(plan: Plan, outcome: Outcome) -> str:
    """The faults of a failing history, and its last steps."""
    faults = "\n".join(f"  {fault}" for fault in plan.faults)
    if plan.permanent is not None:
        faults += f"\n  then, permanently: {plan.permanent}"
    steps = "\n".join(f"  {line}" for line in outcome.trace[-TRANSCRIPT_STEPS:])
    return (
        f"faults that are needed ({len(plan.faults)}):\n{faults}\n"
        f"the last of {len(outcome.trace)} steps (time in us, node, event, promised epoch, end of the log, "
        f"commit_index):\n{steps}\n{outcome.failure}"
    )
