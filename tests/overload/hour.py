"""A hostile client beside well-behaved ones, on three real nodes.

The well-behaved ones use the shipped client with its retries, and send one command at a time, about one a second. Each
opens a client, sends some commands, closes it and opens another, so that a cluster that lets nobody in is noticed.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import quire
from quire.cluster.client import Client, ClientError, Unavailable
from tests.overload.hostile import TASKS
from tests.processes.cluster import DEADLINE_S, Cluster, Unreachable, environment
from tests.processes.crowd import Crowd
from tests.processes.meter import peak_bytes, processor_s, rank
from tests.verdict.bounds import check_leaders, check_memory, check_served, failures
from tests.verdict.verdict import check_counted

CLIENTS = 200
KEY = "well-behaved-"
PAUSE_S = (0.4, 1.6)  # Between two commands of one client: about one a second.
COMMANDS = (5, 30)  # Of one session.
PATIENCE_S = 30.0  # The shipped client's own.


@dataclass
class Served:
    """What became of their commands."""

    succeeded: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    unknown: Counter[int] = field(default_factory=Counter)
    """By client: how many of its commands may have been executed without an answer."""

    answers: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By client: what its counter was said to be."""

    @property
    def share(self) -> float:
        """Of all commands, those that succeeded."""
        total = self.succeeded + sum(self.failed.values())
        return self.succeeded / total if total else 0.0


class WellBehaved(Crowd):
    """So many of them, on these servers."""

    longest_s = 3 * PATIENCE_S

    def __init__(self, servers: list[str], clients: int, seed: int) -> None:
        super().__init__()
        self._servers = servers
        self._clients = clients
        self._seed = seed
        self.served = Served()

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._clients):
                tasks.create_task(self._one(number, random.Random(f"{self._seed} {number}")))

    async def _one(self, number: int, chance: random.Random) -> None:
        await self._pause(chance.uniform(*PAUSE_S))
        while not self.is_ending:
            servers = chance.sample(self._servers, len(self._servers))
            async with quire.connect(servers, timeout_s=PATIENCE_S) as cluster:
                left = chance.randint(*COMMANDS)
                while left and not self.is_ending:
                    left -= 1
                    await self._send(cluster, number)
                    await self._pause(chance.uniform(*PAUSE_S))

    async def _send(self, cluster: Client, number: int) -> None:
        began = time.monotonic()
        try:
            result = await cluster.apply(["incr", f"{KEY}{number}"])
        except ClientError as error:
            self.served.unknown[number] += not isinstance(error, Unavailable)
            self.served.failed[f"{type(error).__name__}: {error}"[:160]] += 1
        else:
            self.served.succeeded += 1
            self.served.waits_s.append(time.monotonic() - began)
            self.served.answers[number].append(int(str(result)))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), seconds)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, from which seed, and which kinds; `peak_bytes` is the most memory of a node."""

    seconds: float
    seed: int
    kinds: Sequence[str] = tuple(sorted(TASKS))
    clients: int = CLIENTS
    peak_bytes: int = 0


@contextmanager
def hostile(cluster: Cluster, plan: Plan) -> Generator[dict[str, Any]]:
    """A hostile client while the block runs; then the mapping holds what it was answered."""
    kinds = [argument for kind in plan.kinds for argument in ("--only", kind)]
    command = [sys.executable, "-m", "tests.overload.hostile", cluster.servers, "--seed", str(plan.seed), *kinds]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    answers: dict[str, Any] = {}
    try:
        yield answers
        output, _ = process.communicate(b"", timeout=DEADLINE_S)
        assert process.returncode == 0, f"the hostile client ended with {process.returncode}"
        answers.update(json.loads(output))
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def run(cluster: Cluster, plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Run the plan on a cluster that is ready; the figures, and what is wrong."""
    pids = {node.node_id: node.running.pid for node in cluster}
    before = {node.node_id: node.status()["leaders"] for node in cluster}
    spent = {node_id: processor_s(pid) for node_id, pid in pids.items()}
    servers = [node.address for node in cluster]
    with WellBehaved(servers, plan.clients, plan.seed) as clients, hostile(cluster, plan) as answers:
        end = time.monotonic() + plan.seconds

        def over() -> bool:
            clients.raise_failure()
            return time.monotonic() >= end

        cluster.wait_until("the time is over", over, plan.seconds + DEADLINE_S)
        clients.end()
    peaks = {node_id: peak_bytes(pid) for node_id, pid in pids.items()}
    after = {node.node_id: _leaders(cluster, node.node_id) for node in cluster}
    served = clients.served
    figures = {
        "seconds": plan.seconds,
        "seed": plan.seed,
        "kinds": list(plan.kinds),
        "succeeded": served.succeeded,
        "failed": dict(served.failed),
        "share": round(served.share, 5),
        "p50_s": round(rank(served.waits_s, 0.5), 3),
        "p99_s": round(rank(served.waits_s, 0.99), 3),
        "leader_changes": {node_id: after[node_id][len(before[node_id]) :] for node_id in after},
        "peak_mib": {node_id: peak >> 20 for node_id, peak in peaks.items()},
        "processor_s": {node_id: round(processor_s(pid) - spent[node_id], 1) for node_id, pid in pids.items()},
        "hostile": answers,
    }
    wrong = failures(
        partial(check_served, served.succeeded, sum(served.failed.values())),
        partial(check_leaders, before, after),
        partial(check_memory, peaks, plan.peak_bytes),
        partial(_check_counters, cluster, served),
    )
    return figures, wrong


def _check_counters(cluster: Cluster, served: Served) -> None:
    """All nodes agree, and have counted each client's commands once. Raises Wrong."""
    cluster.wait_for_equal_digests()
    for client, answers in served.answers.items():
        check_counted(answers, served.unknown[client], cluster.leader.query(["get", f"{KEY}{client}"]))


def _leaders(cluster: Cluster, node_id: str) -> list[Any]:
    def answered() -> list[Any] | None:
        try:
            leaders: list[Any] = cluster[node_id].status()["leaders"]
        except Unreachable:
            return None
        return leaders

    return cluster.wait_until(f"{node_id} says who led", answered)
