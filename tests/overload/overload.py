"""Four times the load that a leader can take: what it does per second of processor time must not fall."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.overload.pressing import COMMANDS, KEY
from tests.processes.cluster import DEADLINE_S, Cluster, Node, environment
from tests.processes.meter import peak_bytes
from tests.verdict.bounds import check_goodput, check_leaders, check_level_memory, check_waits, failures
from tests.verdict.verdict import Wrong

FACTOR = 4


@dataclass(frozen=True, slots=True)
class Load:
    """How long the peak is looked for and the node pressed, through so many connections; what must be kept."""

    peak_s: float
    pressed_s: float
    slice_s: float
    peak_connections: int
    connections: int
    kept_share: float
    p99_s: float
    growth_bytes: int
    commands: int = COMMANDS


def run(cluster: Cluster, load: Load) -> tuple[dict[str, Any], list[str]]:
    """Find the peak, then press the leader with four times as many requests a second; the figures, what is wrong."""
    before = {node.node_id: node.status()["leaders"] for node in cluster}
    found = _press(cluster.leader, load.commands, load.peak_connections, load.peak_s, load.slice_s)
    rate = FACTOR * max(each["accepted"] / each["seconds"] for each in found)
    # The connections are open, and the buffers as large as they will be, after the first slice.
    pressed_s = load.pressed_s + load.slice_s
    all_pressed = _press(cluster.leader, load.commands, load.connections, pressed_s, load.slice_s, rate)
    pressed = all_pressed[1:]
    after = {node.node_id: node.status()["leaders"] for node in cluster}
    figures = {
        "commands_in_a_request": load.commands,
        "offered_per_s": round(rate),
        "peak": found,
        "pressed": pressed,
        "peak_mib": {node.node_id: peak_bytes(node.running.pid) >> 20 for node in cluster},
    }
    accepted = load.commands * int(sum(each["accepted"] for each in [*found, *all_pressed]))
    wrong = failures(
        partial(check_goodput, _goodput(found), _goodput(pressed), load.kept_share),
        partial(check_waits, [each["p99_s"] for each in pressed], load.p99_s),
        partial(check_level_memory, [int(each["resident_bytes"]) for each in pressed], load.growth_bytes),
        partial(check_leaders, before, after),
        partial(_check_kept, cluster, accepted),
    )
    return figures, wrong


def _check_kept(cluster: Cluster, accepted: int) -> None:
    """All nodes agree, and have counted all that was acknowledged. Raises Wrong."""
    cluster.wait_for_equal()
    counts = {key: count for key, count in cluster.leader.local_state()["state"].items() if key.startswith(KEY)}
    if sum(counts.values()) < accepted:
        raise Wrong(f"{accepted} commands were acknowledged, and {sum(counts.values())} were counted")


def _goodput(slices: Sequence[dict[str, float]]) -> float:
    """Accepted requests in a second of the leader's processor time."""
    return sum(each["accepted"] for each in slices) / max(1e-9, sum(each["processor_s"] for each in slices))


def _press(
    node: Node, commands: int, connections: int, seconds: float, slice_s: float, rate: float | None = None
) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "tests.overload.pressing", node.address, str(node.running.pid)]
    # Half a slice more: the last one is whole.
    command += ["--connections", str(connections), "--seconds", str(seconds + slice_s / 2), "--slice-s", str(slice_s)]
    command += ["--commands", str(commands)]
    if rate is not None:
        command += ["--rate", str(rate)]
    timeout_s = 2 * seconds + DEADLINE_S
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment(), timeout=timeout_s)
    slices: list[dict[str, float]] = [json.loads(line) for line in run.stdout.splitlines()]
    assert slices, "no slice of time came to its end"
    return slices
