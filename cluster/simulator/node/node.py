"""One simulated node: the shipped driver, core, log, applier and sessions on a simulated disk and network.

A `Node` is the machine: it is inserted a disk, started, paused and killed. Its disk and clocks survive a crash; its
`Process` does not.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from quire.log.simulated import faulty
from quire.replication import PromiseFile
from quire.replication.core import events
from quire.replication.core.membership.changing import Outcome

from ..checks import Checks
from ..clock import SECOND, Clocks, Schedule
from ..disks import Latency, SimDevice, SimDisk
from ..form import Condition, Form
from ..machine import CODE, OTHER_CODE, Tally
from ..network import Network, Stream
from ..shadow import Shadow
from .life import Life
from .process import Process, recover


class Inserted(NamedTuple):
    """A disk with what the node remembers of it: whether it is a voter's, and whether it holds a log."""

    disk_id: bytes
    disk: SimDisk
    shadow: Shadow
    counted: bool
    is_formatted: bool


class Node:
    """A machine on which a node runs, crashes and restarts."""

    def __init__(
        self, node_id: str, form: Form, schedule: Schedule, network: Network, seed: str, *, is_spare: bool = False
    ) -> None:
        self.node_id = node_id
        self.form = form
        self.schedule = schedule
        self.network = network
        self.random = Random(f"{seed}/{node_id}")
        self.snapshot_random = Random(f"{seed}/{node_id}/snapshots")
        self.seed = seed
        self.life = 0
        self.process: Process | None = None
        self.clocks = Clocks(schedule, 1.0, 0)
        self.latency = Latency(50, 1_000)
        self.upstreams: dict[int, Stream] = {}
        self.downstreams: dict[int, Stream] = {}
        self.backlog: list[tuple[Callable[..., None], tuple[object, ...]]] | None = None
        """The calls to make when it is resumed; None unless it is paused."""
        self.fuse: int | None = None
        self.trigger: str | None = None
        """The fuse starts to burn at the next action whose name starts with this."""
        self.armed_fuse = 0
        self.nominated = False
        self.condition = Condition()
        self.ended: Callable[[Node, str], None] = lambda *_: None
        self.changed: Callable[[int, Outcome], None] = lambda *_: None
        self.checks: Checks
        self.history = form.cluster_id
        """The id of its log's history: nodes of unequal ones refuse each other."""
        self.disks = 0
        self.has_left = False
        """It was removed, knows it, and has stopped; its disk is as it was."""
        self.is_restored = False
        """It is a restored node in the place of a member; the clients of the members do not take it for one."""
        self.former_disks: list[Inserted] = []
        """The disks with which it was a member, oldest first."""
        self.insert_disk()
        if not is_spare:
            self.format()

    def insert_disk(self) -> None:
        """Insert a new, empty disk."""
        self.disks += 1
        self.is_formatted = False
        self.disk_id = f"{self.node_id}/{self.disks}".encode().ljust(16, b"\0")
        self.disk = SimDisk(f"{self.seed}/{self.node_id}/{self.disks}", self.act)
        self.shadow = Shadow(self.disk, self.form.named)
        self._counted = self.form.members.is_voter(self.node_id, self.disk_id)
        self.shadow.below = lambda first, crc: self.checks.below(self, first, crc)

    def format(self) -> None:
        """Write the genesis and a fresh promise to its empty disk."""
        self.is_formatted = True
        directory = self.disk.directory()
        PromiseFile.create(directory, self.disk_id).close()
        log = self.form.open_log(directory, self.clocks)
        log.append_frames(self.form.genesis)
        log.flush()
        log.close()
        self.shadow.read_all()

    def take_disk(self) -> "Inserted":
        """Take out the disk while it is down."""
        return Inserted(self.disk_id, self.disk, self.shadow, self._counted, self.is_formatted)

    def put_back(self, inserted: "Inserted") -> None:
        """Insert a disk that it had before."""
        self.disk_id, self.disk, self.shadow, self._counted, self.is_formatted = inserted

    # Life and death

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        return self.process is not None

    @property
    def running(self) -> Process:
        """Its process; only while it runs."""
        if self.process is None:
            raise AssertionError(f"{self.node_id} is down")
        return self.process

    @property
    def leads(self) -> bool:
        """Whether it believes it is the leader."""
        return self.process is not None and self.process.core.leads

    @property
    def counts(self) -> bool:
        """Whether it is a voter according to its own log, when it last ran."""
        if self.process is not None:
            self._counted = self.process.core.status().is_voter
        return self._counted

    def start(self) -> None:
        """Recover and run.

        Raises:
            OSError: the disk fails. So do `LogError` and `PromiseLost`.
            PowerLoss: the fuse burned down during recovery.
        """
        self.life += 1
        self.backlog = None
        life = Life(self, self.life, self.form, self.checks, self.schedule, self.random, self.snapshot_random)
        device = SimDevice(self.clocks, self.latency, self.random, life.later, self.act)
        process = recover(life, self.disk.directory(), self.network, device, self.act, self.changed)
        process.driver.watch = self._watched
        self.process = process
        self.checks.started(self)
        process.driver.step(self._code_known)
        process.driver.step(events.Nominated(self.nominated))
        self._tick()
        life.later(self.random.randint(0, SECOND), self._sync_mark)
        process.expiring.begin()
        self.network.came_up(self)

    def die(self, *, keep: faulty.Keep | None) -> None:
        """End the process: it is killed (`keep` is None: the page cache stays), or the machine loses power."""
        self.checks.died(self)
        self._counted = self.counts
        self.process, self.fuse, self.trigger, self.backlog = None, None, None, None
        self.upstreams.clear()
        self.downstreams.clear()
        if keep is not None:
            self.disk.lose_power(keep)
        self.network.went_down(self, noticed_at_once=keep is None)

    def stop_cleanly(self) -> None:
        """Stop as on SIGTERM."""
        self.running.driver.step(events.Stopped("this node is stopping"))
        self.running.log.close()

    def run(self, life: int, call: Callable[..., None], *arguments: object) -> None:
        """Call in the process with that number: now, or when it is resumed; never if it has ended."""
        if life != self.life or self.process is None:
            return
        if self.backlog is not None:
            self.backlog.append((call, arguments))
            return
        self.guarded(call, *arguments)

    def guarded(self, call: Callable[..., None], *arguments: object) -> None:
        """Call something during which the node may die."""
        try:
            call(*arguments)
        except faulty.PowerLoss:
            self.ended(self, "fuse")
        if self.process is not None and self.process.health.halt_reason:
            self.ended(self, "halted")

    def pause(self) -> None:
        """Make no call until it is resumed."""
        self.backlog = []

    def resume(self) -> None:
        """Continue after a pause: make all calls that are due, those from sockets before those from timers."""
        backlog, self.backlog = self.backlog or [], None
        for timers in (False, True):
            for call, arguments in backlog:
                if (call == self._tick) is timers:
                    self.run(self.life, call, *arguments)

    def act(self, what: str = "send") -> None:
        """Announce an externally visible action. If the fuse has burned down, the node dies before it.

        Raises:
            PowerLoss: it dies.
        """
        if self.trigger is not None and what.startswith(self.trigger):
            self.trigger, self.fuse = None, self.armed_fuse
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise faulty.PowerLoss("the fuse burnt down")

    def break_machine(self) -> None:
        """From now on its machine raises an exception at each command, even after a restart."""
        self.condition.machine_is_broken = True
        if self.process is not None and isinstance(self.process.machine.applier.machine, Tally):
            self.process.machine.applier.machine.is_broken = True

    @property
    def code(self) -> bytes:
        """The fingerprint of its machine's code, as its hello names it."""
        return OTHER_CODE if self.condition.runs_other_code else CODE

    @property
    def _code_known(self) -> events.CodeKnown:
        return events.CodeKnown(self.code, frozenset({CODE}))  # The first start accepted the code of all.

    def change_code(self) -> None:
        """From now on its machine gives other results, and the node knows; its peers learn it from the next hello.

        In one process code does not change. To this node it is the same as if the others had been upgraded.
        """
        self.condition.runs_other_code = True
        if self.process is not None and isinstance(self.process.machine.applier.machine, Tally):
            self.process.machine.applier.machine.is_other = True
            self.run(self.life, self.step, self._code_known)

    # Steps

    def _tick(self) -> None:
        if self.process is not None and not self.process.health.halt_reason:
            self.process.driver.tick()
        delay = self.form.tick_us + self.random.randint(0, self.form.tick_us // 5)
        self.schedule.later(delay, self.run, self.life, self._tick)

    def _sync_mark(self) -> None:
        self.running.driver.sync_mark()
        self.checks.looked(self)
        self.schedule.later(SECOND, self.run, self.life, self._sync_mark)

    def step(self, event: events.Event) -> None:
        """Pass an event to the driver, unless the node has halted or died."""
        if self.process is not None and not self.process.health.halt_reason:
            self.process.driver.step(event)

    def _watched(self, event: events.Event | events.AppendResult) -> None:
        process = self.running
        process.invariants.check(process.core)
        self.checks.stepped(self, event)

    # The network's end

    def next_stream_id(self) -> int:
        """A new number for a stream that a follower opened."""
        return self.running.next_stream_id()

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        """A chunk of its snapshot or, without a number, the manifest; None if it has no such snapshot."""
        store = self.running.snapshots
        manifest = next((manifest for manifest in store.manifests if manifest.index == index), None)
        if manifest is None or self.backlog is not None:
            return None
        return manifest.encode() if number is None else store.chunk(manifest, number)
