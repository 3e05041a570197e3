"""Runs a scenario on a cluster of real processes whose links all go through toxiproxy, and has it judged.

A cluster serves many scenarios, one after the other: each begins when its links are whole and its nodes equal, has
clients with sessions of its own, and is judged by its own stretch of the log. After one that failed, a new cluster is
made.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from tests.faults.judging import Seen, judge_history, judge_logs, judge_memory, judge_progress, judge_recovery
from tests.faults.mesh import Dialled, Mesh, meshed
from tests.faults.scenario import (
    Action,
    ClientsSaid,
    Cut,
    CutClients,
    Heal,
    Kill,
    Pair,
    Pause,
    Said,
    Scenario,
    Stop,
    Transfer,
)
from tests.faults.traffic import Traffic
from tests.faults.wrong import Late, Wrong
from tests.processes.cluster import DEADLINE_S, Cluster, Node, Unreachable

FLAGS = ("--machine", "tests.faults.adder:Adder", "--initial", "0", "--stream-window-bytes", str(1 << 20))
ELECTION_TIMEOUT_MS = 1000  # The default, which other process tests lengthen.
LOOK_EVERY_S = 0.05
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
    seconds: float


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
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                self.memory.setdefault((node.node_id, process.pid), []).append(pages * 4096)
                names = ("epoch", "serving", "commit_index", "applied_index")
                self.seen.append(Seen(node.node_id, process.pid, *(status[name] for name in names)))


class Ground:
    """A cluster in its mesh, on which scenarios run; made by `grounds`."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster = cluster
        self.mesh = mesh

    def run(self, scenario: Scenario) -> Outcome:
        """Run it to its verdict. Raises Wrong, NotLinearizable, NeverCame."""
        began = time.monotonic()
        cluster = self.cluster
        cluster.wait_for_equal()
        leader = cluster.elected()
        places = [leader, *(node for node in cluster if node is not leader)]
        start, before = self._end_of_log(), int(leader.local_state()["state"])
        epoch = leader.status()["epoch"]
        watch = Watch(cluster)
        addresses = [self.mesh.client_address(node.node_id) for node in places]
        with watch.watching(), Traffic(addresses, bulk=scenario.bulk) as traffic:
            traffic.wait_until_all_were_answered(cluster, began)
            recovery_s = self._disturb(scenario, places, traffic)
            traffic.end()
            cluster.wait_for_equal()
        judge_progress(watch.seen)
        judge_memory(watch.growth)
        states = {node.node_id: str(node.local_state()["state"]) for node in cluster}
        logs = {node.node_id: node.raw_frames(start) for node in cluster}
        replay = judge_logs(logs, traffic, before, states)
        judge_history(traffic, before)
        self._judge_alarms()
        judge_recovery(recovery_s)
        return Outcome(
            acknowledged=traffic.acknowledged,
            operations=len(traffic.history),
            retries=replay.retries,
            changes=cluster.elected().status()["epoch"] - epoch,
            recovery_s=recovery_s,
            growth_bytes=max(watch.growth.values()),
            seconds=time.monotonic() - began,
        )

    def _end_of_log(self) -> int:
        return int(self.cluster.leader.get("/index_bounds")["highest_index"])

    def _judge_alarms(self) -> None:
        for node in self.cluster:
            if alarms := node.status()["alarms"]:
                raise Wrong(f"{node.node_id} has alarms: {alarms}")

    def _disturb(self, scenario: Scenario, places: list[Node], traffic: Traffic) -> float:
        """Do what the scenario says, heal, and wait until all is well; seconds from healing to an acknowledgement."""
        cluster, began = self.cluster, time.monotonic()
        away: list[Node] = []
        try:
            for step in scenario.steps:
                self._wait_until(began + step.at_s)
                away += self._act(step.action, places)
            self._wait_until(began + scenario.lasting_s)
        finally:
            self.mesh.heal()
        for node in away:
            if node.process is not None:
                node.resume()
        healed = time.monotonic()
        first = cluster.wait_until("a command is acknowledged", lambda: traffic.first_acknowledged(healed))
        for node in away:
            if node.process is None:
                node.start()  # Not before: a majority is there, and needs no other.
        traffic.wait_until_all_were_answered(cluster, time.monotonic())
        self._wait_until(time.monotonic() + SETTLED_S)
        cluster.wait_until_ready()
        return first - healed

    def _wait_until(self, at: float) -> None:
        self.cluster.wait_until("it is time", lambda: time.monotonic() >= at)

    def _act(self, action: Action, places: list[Node]) -> list[Node]:
        """Do it; the nodes that are away from now on."""
        mesh = self.mesh
        match action:
            case Cut(dialled, channels):
                mesh.cut(_dialled(dialled, places), channels)
            case Said(pairs, kind, attributes, channels):
                mesh.poison(_dialled(pairs, places), kind, "upstream", attributes, channels)
                mesh.poison(_dialled(((b, a) for a, b in pairs), places), kind, "downstream", attributes, channels)
            case CutClients(those):
                mesh.cut_clients(places[place].node_id for place in those)
            case ClientsSaid(those, kind, direction, attributes):
                mesh.poison_clients([places[place].node_id for place in those], kind, direction, attributes)
            case Heal():
                mesh.heal()
            case Transfer(to):
                self._transfer(places[to])
            case Kill(place):
                places[place].kill()
                return [places[place]]
            case Stop(place):
                places[place].stop()
                return [places[place]]
            case Pause(place):
                places[place].pause()
                return [places[place]]
            case _:
                assert_never(action)
        return []

    def _transfer(self, target: Node) -> None:
        body = json.dumps({"target": target.node_id}).encode()

        def ask() -> None:
            with suppress(Unreachable):
                target.call("POST", "/admin/transfer", body, {"Content-Type": "application/json"})

        threading.Thread(target=ask, daemon=True).start()  # What else the scenario does, it does meanwhile.


def _dialled(pairs: Iterable[Pair], places: list[Node]) -> list[Dialled]:
    return [Dialled(places[a].node_id, places[b].node_id) for a, b in sorted(pairs)]


class Grounds:
    """Gives a ground for each scenario: the one of before, unless that is of another size or something failed on it."""

    def __init__(self, folder: Path, election_timeout_ms: int = ELECTION_TIMEOUT_MS) -> None:
        self._folder = folder
        self._flags = [*FLAGS, "--election-timeout-ms", str(election_timeout_ms)]
        self._made = 0
        self._standing: tuple[Ground, int] | None = None
        self._closing: list[Generator[Ground]] = []

    def run(self, scenario: Scenario) -> Outcome:
        """Run it where it can be run. Raises what `Ground.run` does; the nodes' last words go to the output."""
        ground = self._ground(scenario.size)
        try:
            try:
                return ground.run(scenario)
            except Late:
                return ground.run(scenario)  # A machine's disk or processors may stand still for once; not for twice.
        except BaseException:
            print(ground.cluster.last_words())  # noqa: T201  # pytest shows it of a test that failed.
            self.close()
            raise

    def close(self) -> None:
        """End the cluster and its mesh, if there is one."""
        self._standing = None
        while self._closing:
            for _ in self._closing.pop():
                raise RuntimeError("a ground is made once")

    def _ground(self, size: int) -> Ground:
        if self._standing is not None and self._standing[1] == size:
            return self._standing[0]
        self.close()
        self._made += 1
        making = standing(self._folder / f"ground{self._made}", size, self._flags)
        self._closing.append(making)
        ground = next(making)
        self._standing = (ground, size)
        return ground


def standing(folder: Path, size: int, flags: Sequence[str]) -> Generator[Ground]:
    """A cluster of this size that runs in its mesh; all of it is gone afterwards."""
    cluster = Cluster(folder, [f"n{number}" for number in range(1, size + 1)], flags=flags)
    with meshed(cluster) as mesh:
        try:
            cluster.start()
            yield Ground(cluster, mesh)
        finally:
            cluster.close()
