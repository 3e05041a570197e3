"""A history: callers and a nemesis on real nodes, drawn from a seed; then everything heals and is checked."""

import asyncio
import gc
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import structlog

import quire
from quire.cluster.client import ClientError, OutcomeUnknown
from quire.cluster.node.views.status import not_ready_reasons
from quire.log.simulated.faulty import Keep
from tests.cluster.running import applied_index
from tests.glue.checks import (
    COUNTER,
    Archive,
    Asked,
    Violation,
    check_asked,
    check_bounds,
    check_reads,
    check_released,
)
from tests.glue.cluster import Cluster, Host
from tests.glue.host import GlueDisk, below
from tests.glue.loop import run_until_end
from tests.glue.network import GlueLoop, Mood, Network
from tests.verdict.verdict import Answered, Replay, Values, Wrong, check_history
from tests.verdict.verdict import History as Told

CALLERS = 4

SESSION_COUNTER = "s"
SESSION = CALLERS
"""The number of the caller with a session."""
TROUBLE_S = 12.0
HISTORY_S = 300.0
LOOK_S = 0.05
WHOLE_S = 60.0
"""A cluster that is whole and left alone is whole again within this."""
CALL_S = 4.0
ATTEMPTS = 2
"""Of a whole cluster's node: its kept connections to the leader may be stale, and one write finds that out."""
SETTINGS: dict[str, Any] = {
    "machine": "kv",
    "request_timeout_ms": 2_000,
    "stream_window_bytes": 1 << 16,
    "snapshot_records": 150,
    "retention_bytes": 1 << 17,
    "retention_follower_bytes": 1 << 16,
}
EAGER_SETTINGS = SETTINGS | {"snapshot_records": 50, "retention_bytes": 1, "retention_follower_bytes": 0}
"""For every second seed: a node that was away for long needs a snapshot."""


@dataclass
class Outcome:
    """How a history ended."""

    seed: int
    failure: str = ""
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class History:
    """One history."""

    def __init__(self, seed: int, cluster: Cluster, outcome: Outcome, trouble_s: float) -> None:
        self.cluster = cluster
        self._trouble_s = trouble_s
        self.loop = cluster.loop
        self.random = Random(f"{seed}/history")
        self.outcome = outcome
        self.archive = Archive()
        self.told = Told()
        self.writes = 0
        self.asked: list[Asked] = []
        self.reads: list[tuple[int, int]] = []
        self.acknowledged = 0
        self.is_over = False
        self.stage = ""
        self.values = self.random.choice((100, 3_000, 12_000))

    def note(self, what: str) -> None:
        """A line of the trace."""
        self.outcome.trace.append(f"{self.loop.time():10.6f} {what}")

    async def run(self) -> None:
        """Run it to its end. Raises Violation."""
        cluster = self.cluster
        cluster.add_hosts(4, 3)
        await cluster.open()
        try:
            async with asyncio.timeout(HISTORY_S):
                await self._lived()
        except TimeoutError:
            raise Violation("a history ends", self.stage, *(self._shown(host) for host in self.hosts)) from None
        finally:
            await cluster.session.close()

    async def _lived(self) -> None:
        cluster = self.cluster
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.hosts))
        await self._until(
            "the cluster forms", lambda: any(host.node and host.node.leadership.is_leader for host in self.hosts)
        )
        looking = asyncio.create_task(self._look())
        callers = [asyncio.create_task(self._call(number)) for number in range(CALLERS)]
        callers.append(asyncio.create_task(self._count()))
        self.stage = "trouble"
        await self._trouble()
        await self._heal()
        self.is_over = True
        self.stage = "callers"
        await asyncio.gather(*callers)
        await cluster.session.close()  # Its kept connections may be stale as well, and each costs it a write.
        await cluster.open()
        self.stage = "whole"
        await self._until("a whole cluster is whole again", self._is_whole)
        for node_id in cluster.hosts:
            await self._served(node_id)
        await self._until("a whole cluster is whole again", self._is_whole)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        if not looking.cancelled() and (error := looking.exception()) is not None:
            raise error
        await self._check()
        self.stage = "stop"
        for node_id in cluster.hosts:
            await self._stopped(node_id)

    @property
    def hosts(self) -> list[Host]:
        """All hosts."""
        return list(self.cluster.hosts.values())

    # The end

    async def _check(self) -> None:
        for host in self.hosts:
            self.archive.look(host)
        check_reads(self.reads, self.archive)
        values = Values()
        check_history(Replay(values).take(self.archive.in_order), self.told)
        check_asked(self.asked, self.archive)
        for host in self.hosts:
            await self._check_counts(host.node_id, values)
        for host in self.hosts:
            if host.node is not None:
                check_released(host.node, self.cluster.hosts.keys() - {host.node_id})
        digests = {host.node.components.applying.digest for host in self.hosts if host.node is not None}
        if len(digests) != 1:
            raise Violation("digests are equal", *(digest.hex() for digest in digests))

    async def _check_counts(self, node_id: str, values: Values) -> None:
        for counter in (COUNTER, SESSION_COUNTER):
            answer = await self.cluster.ask(node_id, "/query", {"request": ["get", counter]}, CALL_S)
            if answer.document["answer"] != values.state.get(counter):
                raise Violation("a node answers what its log comes to", node_id, answer.document, counter)

    async def _stopped(self, node_id: str) -> None:
        process = self.cluster.hosts[node_id].process
        await self.cluster.stop(node_id)
        await self.loop.after(1.0)
        if process is not None and (process.owner.tasks or process.owner.threads):
            left = sorted(task.get_name() for task in process.owner.tasks)
            raise Violation("nothing runs after a stop", node_id, left, len(process.owner.threads))

    async def _until(self, rule: str, is_so: Callable[[], bool]) -> None:
        deadline = self.loop.time() + WHOLE_S
        while not is_so():
            if self.loop.time() > deadline:
                raise Violation(rule, *(self._shown(host) for host in self.hosts))
            await self.loop.after(LOOK_S)

    def _shown(self, host: Host) -> str:
        node = host.node
        if node is None:
            return f"{host.node_id} is down"
        reasons = not_ready_reasons(node)
        role, failure = node.leadership.role, node.health.failure or ""
        return f"{host.node_id} {role} {applied_index(node)} {failure} {reasons}"

    def _is_whole(self) -> bool:
        nodes = [host.node for host in self.hosts]
        if any(node is None or not_ready_reasons(node) for node in nodes):
            return False
        return len({applied_index(node) for node in nodes if node is not None}) == 1

    async def _look(self) -> None:
        while True:
            for host in self.hosts:
                self.archive.look(host)
                if host.node is not None and host.node.health.failure is not None:
                    raise Violation("no node halts", host.node_id, host.node.health.failure)
            check_bounds(self.cluster)
            await self.loop.after(LOOK_S)

    # Callers

    async def _call(self, caller: int) -> None:
        random = Random(f"{self.outcome.seed}/caller {caller}")
        while not self.is_over:
            node_id = random.choice(list(self.cluster.hosts))
            if random.random() < 0.8:
                await self._write(node_id)
            else:  # Two that overlap, mostly.
                await asyncio.gather(self._read(node_id), self._read(random.choice((node_id, *self.cluster.hosts))))
            await self.loop.after(random.expovariate(1 / 0.1))

    async def _served(self, node_id: str) -> None:
        told = ""
        for _ in range(ATTEMPTS):
            if (told := await self._write(node_id)).startswith("200"):
                return
        raise Violation("a whole cluster takes a write of any node", node_id, told)

    async def _write(self, node_id: str) -> str:
        number = self.writes
        self.writes += 1
        size = self.random.randint(0, self.values)
        commands = [["put", f"k{number % 20}", [number, "x" * size]], ["incr", COUNTER]]
        if number % 2:  # So that a read that counts the record at its index, or lacks the one below, is seen.
            commands.reverse()
        path = self.random.choice(("/commands", "/commands", "/records"))
        document: Any = {"commands": commands} if path == "/commands" else commands
        try:
            answer = await self.cluster.ask(node_id, path, document, CALL_S)
        except (aiohttp.ClientError, OSError) as error:
            told = type(error).__name__
            self.told.unknown.append(commands)
        else:
            told = f"{answer.status} {answer.problem}".strip()
            if answer.status == 200:
                answered = answer.document
                index = answered["index"] if path == "/commands" else answered["write_index"]
                told += f" at {index}"
                self.acknowledged = max(self.acknowledged, index + len(commands))
                self.told.answered.append(Answered(commands, answered.get("results", []), index, answered.get("epoch")))
            elif answer.status in (500, 504) and answer.problem != "check-failed":
                self.told.unknown.append(commands)
        self.note(f"{path} {number} by {node_id}: {told}")
        self.outcome.counts[f"write {told.partition(' at ')[0]}"] += 1
        return told

    async def _count(self) -> None:
        """Count up under a session, through the shipped client."""
        servers = [Network.address(host.number) for host in self.hosts]
        async with quire.connect(servers, timeout_s=CALL_S) as client:
            while not self.is_over:
                commands = [["incr", SESSION_COUNTER]]
                try:
                    reply = await client.apply_batch(commands)
                except OutcomeUnknown:
                    self.told.unknown.append(commands)
                    told = "unknown"
                except ClientError as error:
                    told = type(error).__name__
                else:
                    self.told.answered.append(Answered(commands, reply.results, reply.index, reply.epoch, SESSION))
                    told = str(reply.results[0])
                self.note(f"session: {told}")
                self.outcome.counts[f"session {'answered' if told.isdigit() else told}"] += 1
                await self.loop.after(0.05)

    async def _read(self, node_id: str) -> None:
        acknowledged = self.acknowledged
        try:
            answer = await self.cluster.ask(node_id, "/query", {"request": ["get", COUNTER]}, CALL_S)
        except (aiohttp.ClientError, OSError) as error:
            told = type(error).__name__
        else:
            told = f"{answer.status} {answer.problem}".strip()
            if answer.status == 200:
                applied_index = answer.document["applied_index"]
                if applied_index < acknowledged:
                    raise Violation("a read sees what was answered before", node_id, answer.document, acknowledged)
                self.reads.append((applied_index, answer.document["answer"] or 0))
        self.note(f"read by {node_id}: {told}")
        self.outcome.counts[f"read {told}"] += 1

    # Trouble

    async def _trouble(self) -> None:
        end = self.loop.time() + self._trouble_s
        kinds: list[Callable[[Random], Awaitable[None]]] = [
            self._cut, self._silence, self._lose_flows, self._crash, self._crash, self._restart, self._slow_disk,
            self._transfer, self._promote, self._snapshot, self._freeze, self._full_disk, self._long_outage,
        ]  # fmt: skip
        running: list[asyncio.Task[None]] = []
        while self.loop.time() < end:
            kind = self.random.choice(kinds)
            running.append(asyncio.create_task(self._one(kind)))
            await self.loop.after(self.random.expovariate(1 / 1.0))
        await asyncio.gather(*running)

    async def _one(self, kind: Callable[[Random], Awaitable[None]]) -> None:
        await kind(self.random)

    def _pair(self, random: Random) -> tuple[Host, Host]:
        one, other = random.sample(self.hosts, 2)
        return one, other

    async def _cut(self, random: Random) -> None:
        one, other = self._pair(random)
        self.note(f"cut {one.node_id} {other.node_id}")
        network = self.loop.network
        for source, target in ((one.number, other.number), (other.number, one.number)):
            network.set_mood(source, target, Mood.REFUSES)
        network.reset(one.number, other.number)
        await self.loop.after(random.uniform(0.05, 3.0))
        for source, target in ((one.number, other.number), (other.number, one.number)):
            network.set_mood(source, target, Mood.UP)

    async def _silence(self, random: Random) -> None:
        one, other = self._pair(random)
        ways = [(one.number, other.number), (other.number, one.number)][: random.choice((1, 2))]
        self.note(f"silence {ways}")
        for source, target in ways:
            self.loop.network.set_mood(source, target, Mood.SILENT)
        await self.loop.after(random.uniform(0.05, 3.0))
        for source, target in ways:
            self.loop.network.set_mood(source, target, Mood.UP)

    async def _lose_flows(self, random: Random) -> None:
        one, other = self._pair(random)
        self.note(f"lose flows {one.node_id} {other.node_id}")
        self.loop.network.forget(one.number, other.number)

    async def _crash(self, random: Random, longer_s: float = 0.0) -> None:
        host = random.choice(self.hosts)
        keep = random.choice((None, Keep.NOTHING, Keep.SOME))
        down_s = longer_s + random.uniform(0.0, 3.0)
        if host.process is None or host.is_busy:
            return
        host.is_busy = True
        self.note(f"crash {host.node_id} {keep}")
        self.cluster.crash(host.node_id, keep)
        await self.loop.after(down_s)
        await self._start(host)

    async def _restart(self, random: Random) -> None:
        host = random.choice(self.hosts)
        if host.process is None or host.is_busy:
            return
        host.is_busy = True
        self.note(f"stop {host.node_id}")
        await self.cluster.stop(host.node_id)
        await self._start(host)

    async def _start(self, host: Host) -> None:
        self.note(f"start {host.node_id}")
        await self.cluster.start(host.node_id)
        host.is_busy = False

    async def _slow_disk(self, random: Random) -> None:
        host = random.choice(self.hosts)
        most = random.choice((20_000, 200_000, 1_000_000))
        self.note(f"slow disk {host.node_id} {most}")
        host.disk.highest_us = most
        await self.loop.after(random.uniform(0.5, 3.0))
        host.disk.highest_us = GlueDisk.HIGHEST_US

    async def _full_disk(self, random: Random) -> None:
        host = random.choice(self.hosts)
        if host.node is None or host.node.formed is None:
            return  # A node that cannot store its genesis ends, and says so.
        self.note(f"full disk {host.node_id}")
        host.disk.full = True
        await self.loop.after(random.uniform(0.5, 3.0))
        host.disk.full = False

    async def _freeze(self, random: Random) -> None:
        process = random.choice(self.hosts).process
        if process is None or process.owner.frozen is not None:
            return
        self.note(f"freeze {process.owner.name}")
        self.loop.freeze(process.owner)
        await self.loop.after(random.uniform(0.1, 3.0))
        if not process.owner.is_dead:
            self.loop.resume(process.owner)

    async def _long_outage(self, random: Random) -> None:
        await self._crash(random, 5.0)

    async def _transfer(self, random: Random) -> None:
        node_id, target = (host.node_id for host in self._pair(random))
        await self._ask(node_id, "/admin/transfer", {"target": target})

    async def _promote(self, random: Random) -> None:
        node_id, target = (host.node_id for host in self._pair(random))
        await self._ask(node_id, f"/members/{target}", {"role": "voter"}, "PATCH")

    async def _snapshot(self, random: Random) -> None:
        await self._ask(random.choice(self.hosts).node_id, "/admin/snapshot", None)

    async def _ask(self, node_id: str, path: str, document: Any, method: str = "POST") -> None:
        try:
            answer = await self.cluster.ask(node_id, path, document, CALL_S, method)
        except (aiohttp.ClientError, OSError) as error:
            told = type(error).__name__
        else:
            told = f"{answer.status} {answer.body.decode()}" if answer.status == 200 else answer.problem
            if answer.status == 200:
                self.asked.append(Asked(path, (document or {}).get("target"), answer.document))
        self.note(f"{path} {document} by {node_id}: {told}")
        self.outcome.counts[f"{path} {told.partition(' ')[0]}"] += 1

    async def _heal(self) -> None:
        for source in self.hosts:
            source.disk.highest_us, source.disk.full = GlueDisk.HIGHEST_US, False
            for target in self.hosts:
                self.loop.network.set_mood(source.number, target.number, Mood.UP)


def run(seed: int, trouble_s: float = TROUBLE_S) -> Outcome:
    """Run a history with trouble for so long."""
    with warnings.catch_warnings():
        # A process that was killed closes nothing. The collector finds that at any time: all of it before this returns.
        warnings.simplefilter("ignore", ResourceWarning)
        outcome = _run(seed, trouble_s)
        gc.collect()
    return outcome


def _run(seed: int, trouble_s: float) -> Outcome:
    outcome = Outcome(seed)
    loop = GlueLoop(Random(f"{seed}/loop"))
    disks: dict[str, GlueDisk] = {}
    settings = EAGER_SETTINGS if seed % 2 else SETTINGS
    history = History(seed, Cluster(loop, str(seed), disks, settings), outcome, trouble_s)
    with below(loop, disks, str(seed)), structlog.testing.capture_logs() as journal:
        try:
            run_until_end(loop, history.run())
        except Wrong as wrong:
            outcome.failure = str(wrong)
    outcome.counts.update(str(line["event"]) for line in journal if line["log_level"] == "info")
    faults = [f"{line['event']} {line.get('exc_info')!r}" for line in journal if line.get("exc_info")]
    # What a crashed process left open is found later, whoever's turn it is then.
    unexpected = [fault for fault in loop.faults if "Unclosed" not in fault]
    if not outcome.failure and (faults or unexpected):
        outcome.failure = f"no code raises what nobody expects: {[*faults, *unexpected]}"
    return outcome
