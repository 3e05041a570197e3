"""A hostile client beside well-behaved ones, on three real nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.overload.hostile import TASKS
from tests.overload.judging import MemoryOf, Verdict, leader_changes, served_well, within_memory
from tests.overload.meter import peak_bytes, processor_s, rank, resident_bytes
from tests.overload.well_behaved import CLIENTS, WellBehaved
from tests.processes.cluster import DEADLINE_S, Cluster, Unreachable, environment

SAMPLE_S = 5.0


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


def run(cluster: Cluster, plan: Plan) -> tuple[dict[str, Any], list[Verdict]]:
    """Run the plan on a cluster that is ready; the figures, and the verdicts."""
    pids = {node.node_id: node.running.pid for node in cluster}
    before = {node.node_id: node.status()["leaders"] for node in cluster}
    spent = {node_id: processor_s(pid) for node_id, pid in pids.items()}
    memory = {node_id: MemoryOf() for node_id in pids}
    servers = [node.address for node in cluster]
    with WellBehaved(servers, plan.clients, plan.seed) as clients, hostile(cluster, plan) as answers:
        end = time.monotonic() + plan.seconds
        sampled = 0.0

        def over() -> bool:
            nonlocal sampled
            clients.raise_failure()
            if time.monotonic() >= sampled + SAMPLE_S:
                sampled = time.monotonic()
                for node_id, pid in pids.items():
                    memory[node_id].resident_bytes.append(resident_bytes(pid))
            return time.monotonic() >= end

        cluster.wait_until("the time is over", over, plan.seconds + DEADLINE_S)
        clients.end()
    for node_id, pid in pids.items():
        memory[node_id].peak_bytes = peak_bytes(pid)
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
        "peak_mib": {node_id: of.peak_bytes >> 20 for node_id, of in memory.items()},
        "processor_s": {node_id: round(processor_s(pid) - spent[node_id], 1) for node_id, pid in pids.items()},
        "hostile": answers,
    }
    verdicts = [
        served_well(served.succeeded, sum(served.failed.values())),
        leader_changes(before, after),
        within_memory({node_id: of.peak_bytes for node_id, of in memory.items()}, plan.peak_bytes),
    ]
    return figures, verdicts


def _leaders(cluster: Cluster, node_id: str) -> list[Any]:
    def answered() -> list[Any] | None:
        try:
            leaders: list[Any] = cluster[node_id].status()["leaders"]
        except Unreachable:
            return None
        return leaders

    return cluster.wait_until(f"{node_id} says who led", answered)
