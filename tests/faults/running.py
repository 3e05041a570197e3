"""Runs a scenario on a cluster of real processes whose links all go through toxiproxy, and judges it.

Nodes and clients speak TLS and show tokens, as they do beyond one machine.

A cluster serves many scenarios, one after the other: each begins when its links are whole and its nodes equal, has
clients with sessions of its own, and is judged by its own stretch of the log. After one that failed, a new cluster is
made.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import tuned
from tests.faults.acting import Actor
from tests.faults.actions import AwaitInstall, LeaveBehind
from tests.faults.mesh import Mesh, meshed
from tests.faults.scenario import Scenario, Shape
from tests.faults.toxiproxy import ToxiproxyError
from tests.faults.traffic import BULK, NO_BULK, Traffic
from tests.faults.volume import Volume, volumes
from tests.processes.adder import BALLAST
from tests.processes.cluster import DEADLINE_S, Cluster, Node, Unreachable
from tests.processes.faulty import Faults
from tests.processes.meter import resident_bytes
from tests.verdict.bounds import (
    COMMITS_WITHIN_TIMEOUTS,
    HEALED_WITHIN_S,
    check_commits,
    check_memory,
    check_recovery,
    longest_without,
)
from tests.verdict.linearizable import check_linearizable, step_sum
from tests.verdict.verdict import Command, Seen, Sum, Wrong, check_logs, check_progress

WINDOW = tuned.flags(stream_window_bytes=1 << 20)
# A run of half an hour writes more than a disk is asked to keep; one scenario, never as much as this.
ORDINARY = ("--machine", "tests.processes.adder:Adder", "--initial", "0", "--retention-bytes", str(2 << 30), *WINDOW)
EXPIRING = (
    *("--machine", "tests.processes.adder:LadenAdder", "--initial", "0", *WINDOW),
    *("--segment-bytes", str(4 << 20), "--snapshot-records", "1000"),
    *("--retention-bytes", "1"),
    *tuned.flags(retention_follower_bytes=2 << 20),
)
# On volumes, which are full soon: within one scenario nothing expires all the same.
SMALL = ("--segment-bytes", str(1 << 20), "--retention-bytes", str(96 << 20), *tuned.flags(snapshot_log_bytes=16 << 20))
KEEPING = ("--snapshot-records", "0", "--retention-bytes", "0", *tuned.flags(snapshot_log_bytes=0))
ARCHIVE = "archive"
ELECTION_TIMEOUT_MS = 1000  # The default, which other process tests lengthen.
LOOK_EVERY_S = 0.05
HELD_FOR_TIMEOUTS = 2 * COMMITS_WITHIN_TIMEOUTS  # Longer than this nobody waits for a commit before all is healed.
MEMORY_GROWTH_BYTES = 24 << 20  # A window of 1 MiB for each follower, and what waits for the writer.
# Besides: two states, and the chunks of one as it is read.
INSTALL_GROWTH_BYTES = MEMORY_GROWTH_BYTES + 3 * len(BALLAST)
SETTLED_S = 0.3  # How long the clients go on after all of them were answered again.


@dataclass(frozen=True)
class Outcome:
    """How a scenario went that was judged good."""

    acknowledged: int
    operations: int
    retries: int
    changes: int
    recovery_s: float
    growth_bytes: int
    peak_bytes: dict[str, int]
    seconds: float
    without_commit: float = 0.0
    """The longest time without a commit while a minority was faulty, in election timeouts."""
    waited: float = 0.0
    """The longest time for which a client's command waited meanwhile, its retries included, in election timeouts."""


@dataclass
class Held:
    """How it went before all was healed, and how soon it went on after, in seconds."""

    recovery_s: float
    without_commit_s: float
    waited_s: float


@dataclass
class Watch:
    """What the nodes say and take while a scenario runs, noted by a thread."""

    cluster: Cluster
    seen: list[Seen] = field(default_factory=list)
    memory: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Generator[None]:
        """Note what is seen until the context ends."""
        threads = [threading.Thread(target=self._watch, args=(node,), daemon=True) for node in self.cluster]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join(DEADLINE_S)

    @property
    def peak(self) -> dict[str, int]:
        """The most memory that each node was seen to have."""
        peak: dict[str, int] = {}
        for (node_id, _), sizes in self.memory.items():
            peak[node_id] = max(peak.get(node_id, 0), *sizes)
        return peak

    @property
    def growth(self) -> dict[str, int]:
        """By how many bytes each node's memory grew above what it was first seen to be."""
        return {node_id: max(sizes) - sizes[0] for (node_id, _), sizes in self.memory.items()}

    def _watch(self, node: Node) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            process = node.process
            if process is None:
                continue
            with suppress(Unreachable, OSError, KeyError, AssertionError):
                status = node.status()
                self.memory.setdefault((node.node_id, process.pid), []).append(resident_bytes(process.pid))
                names = ("epoch", "serving", "commit_index", "applied_index")
                self.seen.append(Seen(node.node_id, process.pid, *(status[name] for name in names)))


class Ground:
    """A cluster in its mesh, on which scenarios run; made by `standing`."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        faults: Mapping[str, Faults],
        its_volumes: Mapping[str, Volume],
        election_timeout_s: float,
    ) -> None:
        self.cluster = cluster
        self.mesh = mesh
        self._faults = faults
        self._volumes = its_volumes
        self._election_timeout_s = election_timeout_s
        self._late: list[list[Command]] = []
        """What earlier scenarios sent and nobody knows the outcome of."""

    def run(self, scenario: Scenario) -> Outcome:
        """Run it to its verdict, but for how soon it recovered. Raises Wrong, NotLinearizable, NeverCame."""
        began = time.monotonic()
        cluster = self.cluster
        cluster.wait_for_equal()
        leader = cluster.elected()
        places = [leader, *(node for node in cluster if node is not leader and node.node_id != ARCHIVE)]
        start, before = self._end_of_log(), int(leader.local_state()["state"])
        epoch = leader.status()["epoch"]
        watch, actor = Watch(cluster), Actor(cluster, self.mesh, places, self._faults, self._volumes)
        addresses = [self.mesh.client_address(node.node_id) for node in places]
        with watch.watching(), self._traffic(scenario, addresses) as traffic:
            traffic.wait_until_all_were_answered(cluster, began)
            held = self._disturb(scenario, actor, traffic)
            traffic.end()
            # Of here all is judged, although another leader may begin its epoch while the logs are read.
            end = int(cluster.wait_for_equal()[cluster.leader.node_id]["highest_index"])
        check_progress(watch.seen)
        expiring = scenario.shape.expiring
        check_memory(watch.growth, INSTALL_GROWTH_BYTES if expiring else MEMORY_GROWTH_BYTES)
        states = {node.node_id: str(node.local_state()["state"]) for node in cluster}
        touched = {node.node_id for node in actor.recovery.touched}
        may_lack = set(cluster.nodes) - {ARCHIVE} if expiring else touched
        logs, history = self._logs(start, end, touched), traffic.history
        replay = check_logs(logs, history, Sum(before), states, late=self._late, may_lack=may_lack)
        check_linearizable(history.operations, before, step_sum)
        self._late += history.unknown
        self._judge_time(end)
        self._judge_nodes(actor.left_behind)
        return Outcome(
            acknowledged=history.acknowledged,
            operations=len(history.operations),
            retries=replay.retries,
            changes=cluster.elected().status()["epoch"] - epoch,
            recovery_s=held.recovery_s,
            growth_bytes=max(watch.growth.values()),
            peak_bytes=watch.peak,
            seconds=time.monotonic() - began,
            without_commit=held.without_commit_s / self._election_timeout_s,
            waited=held.waited_s / self._election_timeout_s,
        )

    def _traffic(self, scenario: Scenario, addresses: Sequence[str]) -> Traffic:
        bulk, caller = BULK if scenario.bulk else NO_BULK, self.cluster.caller
        return Traffic(addresses, caller, bulk=bulk, steady=bool(scenario.permanent))

    def _end_of_log(self) -> int:
        return int(self.cluster.leader.get("/index_bounds")["highest_index"])

    def _logs(self, start: int, end: int, touched: Collection[str]) -> dict[str, bytes]:
        """What each node's log holds of [start, end), one first of which nothing may be missing."""
        nodes = sorted(self.cluster, key=lambda node: (node.node_id != ARCHIVE, node.node_id in touched))
        return {node.node_id: self._log(node, start, end) for node in nodes}

    def _log(self, node: Node, start: int, end: int) -> bytes:
        def lowest_for_good() -> tuple[int] | None:
            status = node.status()
            return None if status["expiry"]["due"]["segments"] else (int(status["lowest_index"]),)

        [lowest] = self.cluster.wait_until(f"nothing of {node.node_id} is due to expire", lowest_for_good)
        return node.raw_frames(max(start, lowest), end)

    def _judge_time(self, end: int) -> None:
        """Timestamps never decrease, so the last one tells whether a wrong clock ever moved the log's time ahead."""
        reply = self.cluster.leader.call("GET", f"/records?from={end - 1}&to={end}&kinds=all")
        stamped, now = int(json.loads(reply.body.splitlines()[0])["timestamp"]), time.time_ns() // 1_000
        if stamped > now:
            raise Wrong(f"the record at {end - 1} is from {(stamped - now) / 1e6:.1f} s ahead")

    def _judge_nodes(self, left_behind: dict[str, int]) -> None:
        for node in self.cluster:
            end = time.monotonic() + DEADLINE_S
            while alarms := node.alarms():  # They may tell of what was healed for two election timeouts.
                if time.monotonic() > end:
                    raise Wrong(f"{node.node_id} has alarms: {alarms}")
            if node.status()["lowest_index"] <= (end_before := left_behind.get(node.node_id, -1)):
                raise Wrong(f"{node.node_id} was left behind at {end_before}, and goes on without a snapshot")

    def _disturb(self, scenario: Scenario, actor: Actor, traffic: Traffic) -> Held:
        """Do what the scenario says, heal, and wait until all is well."""
        cluster = self.cluster
        disturbed = began = time.monotonic()
        try:
            for step in scenario.steps:
                self._wait_until(began + step.at_s)
                before = time.monotonic()
                actor.act(step.action)
                if isinstance(step.action, LeaveBehind | AwaitInstall):
                    began += time.monotonic() - before
            self._wait_until(began + scenario.lasting_s)
            if scenario.permanent:
                self._await_commit(traffic, time.monotonic())
        finally:
            actor.heal()
        healed = time.monotonic()
        first = cluster.wait_until("a command is acknowledged", lambda: traffic.first_acknowledged(healed))
        actor.recovery.start_again()  # Not before: a majority is there, and needs no other.
        traffic.wait_until_all_were_answered(cluster, time.monotonic())
        self._wait_until(time.monotonic() + SETTLED_S)
        cluster.wait_until_ready()
        ends = [each.ended for each in traffic.history.answered]
        return Held(first - healed, longest_without(ends, disturbed, healed), traffic.longest_wait_s(disturbed, healed))

    def _await_commit(self, traffic: Traffic, since: float) -> None:
        """Return when a command is acknowledged that was not before; or when nobody would believe in it any more."""
        end = since + HELD_FOR_TIMEOUTS * self._election_timeout_s
        self.cluster.wait_until(
            "a command is acknowledged, or none will be",
            lambda: traffic.first_acknowledged(since) or time.monotonic() > end,
        )
        if traffic.first_acknowledged(since) is None:
            print(f"nothing is committed\n{self.cluster.describe()}")  # noqa: T201

    def _wait_until(self, at: float) -> None:
        self.cluster.wait_until("it is time", lambda: time.monotonic() >= at)


class Grounds:
    """Gives a ground for each scenario: the one of before, unless it has another shape or something failed on it."""

    def __init__(
        self, folder: Path, election_timeout_ms: int = ELECTION_TIMEOUT_MS, *, check_invariants: bool = True
    ) -> None:
        self._folder = folder
        self._election_timeout_s = election_timeout_ms / 1_000
        self._flags = (
            *("--election-timeout-ms", str(election_timeout_ms)),
            *tuned.flags(check_invariants=check_invariants),
        )
        self._made = 0
        self._standing: tuple[Ground, Shape] | None = None
        self._closing: list[Generator[Ground]] = []

    def run(self, scenario: Scenario) -> Outcome:
        """Run it, and once more where something came too late. Raises what `run_once` does; Wrong."""
        outcome = self.run_once(scenario)
        if outcome.recovery_s > HEALED_WITHIN_S or outcome.without_commit > COMMITS_WITHIN_TIMEOUTS:
            outcome = self.run_once(scenario)  # A machine's disk or processors may stand still for once; not for twice.
            with self._telling():
                check_recovery(outcome.recovery_s)
                check_commits(outcome.without_commit)
        return outcome

    def run_once(self, scenario: Scenario) -> Outcome:
        """Run it where it can be run. Raises what `Ground.run` does; the nodes' last words go to the output."""
        try:
            return self._run(scenario)
        except ToxiproxyError:
            # It may stand still for good as it takes toxics away, about once in some hundred scenarios. That says
            # nothing of quire; the next attempt has a new one.
            return self._run(scenario)

    def _run(self, scenario: Scenario) -> Outcome:
        ground = self._ground(scenario.shape)
        with self._telling():
            return ground.run(scenario)

    @contextmanager
    def _telling(self) -> Generator[None]:
        """Where something is wrong, tell the nodes' last words, and let the next scenario have a new cluster."""
        try:
            yield
        except BaseException:
            if self._standing is not None:
                print(self._standing[0].cluster.last_words())  # noqa: T201  # pytest shows it of a test that failed.
            self.close()
            raise

    def close(self) -> None:
        """End the cluster and its mesh, if there is one."""
        self._standing = None
        while self._closing:
            for _ in self._closing.pop():
                raise RuntimeError("a ground is made once")

    def _ground(self, shape: Shape) -> Ground:
        if self._standing is not None and self._standing[1] == shape:
            return self._standing[0]
        self.close()
        self._made += 1
        making = standing(self._folder / f"ground{self._made}", shape, self._flags, self._election_timeout_s)
        self._closing.append(making)
        ground = next(making)
        self._standing = (ground, shape)
        return ground


def cluster_of(folder: Path, shape: Shape, flags: Sequence[str]) -> Cluster:
    """Nodes of this shape, of which none runs yet; of two equal flags the last one counts."""
    voters = [f"n{number}" for number in range(1, shape.size + 1)]
    if shape.expiring:
        cluster = Cluster(folder, [*voters, ARCHIVE], initial=voters, flags=[*EXPIRING, *flags], locked=True)
        cluster[ARCHIVE].flags += KEEPING
        return cluster
    return Cluster(folder, voters, flags=[*ORDINARY, *(SMALL if shape.volumes else ()), *flags], locked=True)


def standing(folder: Path, shape: Shape, flags: Sequence[str], election_timeout_s: float) -> Generator[Ground]:
    """A cluster of this shape that runs in its mesh; all of it is gone afterwards."""
    cluster = cluster_of(folder, shape, flags)
    faults = {node.node_id: Faults(folder / f"faults-{node.node_id}").of(node) for node in cluster}
    with ExitStack() as stack:
        its_volumes = stack.enter_context(volumes(folder, faults)) if shape.volumes else {}
        for node_id, volume in its_volumes.items():
            cluster[node_id].data_dir = volume.folder / node_id
        mesh = stack.enter_context(meshed(cluster))
        stack.callback(cluster.close)
        cluster.start()
        yield Ground(cluster, mesh, faults, its_volumes, election_timeout_s)
