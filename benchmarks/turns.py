"""The longest turn of the event loop, by kind of work: `python -m benchmarks.turns`, in a checkout.

Each kind of work has a new cluster of three real nodes. The figures are the nodes' own, the metric
`quire_loop_turn_longest_seconds`: processor time since the node was ready, less up to 10 ms.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes.cluster import Cluster, Node

MIB = 1 << 20
SECONDS = 5.0
CALLERS = 32
PASSES = 5
VALUE_BYTES = 60_000
VALUES = 4_000
A_BATCH = 15
SETTLED_S = 1.0
"""Longer than a node needs to notice that it is ready, or that a turn is over."""
LONGEST = re.compile(r'^quire_loop_turn_longest_seconds\{what="(?P<what>.*)"\} (?P<seconds>\S+)$', re.MULTILINE)
JSON = {"Content-Type": "application/json"}


class Kind(NamedTuple):
    """A kind of work, its size in words, and what does it; `work` returns what is to be said of how it went."""

    name: str
    size: str
    work: Callable[[Cluster], str]
    machine: str = "kv"


def post(cluster: Cluster, body: bytes) -> str:
    """Send one body PASSES times; the statuses of the answers."""
    return said([cluster.leader.call("POST", "/commands", body, JSON).status for _ in range(PASSES)])


def said(statuses: list[int]) -> str:
    """How many answers had each status."""
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


def body_of(command: list[Any], most: int) -> bytes:
    """A request of at most `most` times the command, and less than 1 MiB."""
    text = json.dumps(command)
    number = min(most, (MIB - 100) // (len(text) + 2))
    return json.dumps({"commands": [command] * number}).encode()


def idle(_: Cluster) -> str:
    """Nothing."""
    time.sleep(SECONDS)
    return ""


def singles(cluster: Cluster) -> str:
    """Callers that each send one command after another."""
    end, body = time.monotonic() + SECONDS, body_of(["incr", "n"], 1)

    def call(_: int) -> list[int]:
        statuses = []
        while time.monotonic() < end:
            statuses.append(cluster.leader.call("POST", "/commands", body, JSON).status)
        return statuses

    with ThreadPoolExecutor(CALLERS) as callers:
        return said([status for statuses in callers.map(call, range(CALLERS)) for status in statuses])


def most_commands(cluster: Cluster) -> str:
    """As many commands as a request may have."""
    return post(cluster, body_of(["incr", "n"], 10_000))


def containers(cluster: Cluster) -> str:
    """One command of many empty arrays."""
    return post(cluster, json.dumps({"commands": [[[]] * 31_000]}).encode())


def wide_integers(cluster: Cluster) -> str:
    """One command of many long integers."""
    return post(cluster, json.dumps({"commands": [[2**64 - 1] * 47_000]}).encode())


def quotes(cluster: Cluster) -> str:
    """One command of escaped quotes."""
    return post(cluster, json.dumps({"commands": ['"' * 500_000]}).encode())


def gets(cluster: Cluster) -> str:
    """A batch whose results are as large as a node answers, about."""
    cluster.leader.apply(["put", "k", "x" * 800])
    return post(cluster, body_of(["get", "k"], 10_000))


def large_state(cluster: Cluster) -> str:
    """Fill a large state, then take a snapshot and ask every node for its status."""
    filled = []
    for first in range(0, VALUES, A_BATCH):
        puts = [["put", f"k{number}", "x" * VALUE_BYTES] for number in range(first, first + A_BATCH)]
        filled.append(cluster.leader.call("POST", "/commands", json.dumps({"commands": puts}).encode(), JSON).status)
    taken = cluster.leader.call("POST", "/admin/snapshot").status
    asked = [node.call("GET", "/status").status for node in cluster for _ in range(PASSES)]
    return f"puts {said(filled)}; snapshot {taken}; status {said(asked)}"


KINDS = (
    Kind("idle", "5 s", idle),
    Kind("single commands", "32 callers, 5 s", singles),
    Kind("largest batch", "10,000 commands, 5 times", most_commands),
    Kind("many containers", "31,000, 5 times", containers, "log"),
    Kind("wide integers", "47,000 of 20 digits, 5 times", wide_integers, "log"),
    Kind("escaped quotes", "500,000, 5 times", quotes, "log"),
    Kind("batch of gets", "10,000 of 800 bytes, 5 times", gets),
    Kind("large state: filled, snapshot asked for, status", "240 MB", large_state),
)


def longest(node: Node) -> tuple[float, str]:
    """The node's longest turn in ms, and what ran."""
    found = LONGEST.search(node.call("GET", "/metrics").body.decode())
    if found is None:
        raise SystemExit(f"{node.node_id} shows no longest turn")
    return float(found["seconds"]) * 1000, found["what"]


def measure(kind: Kind) -> None:
    """Print the row of one kind of work."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), flags=("--machine", kind.machine))
        try:
            cluster.start()
            time.sleep(SETTLED_S)
            answers = kind.work(cluster)
            time.sleep(SETTLED_S)
            leader, ran = longest(cluster.leader)
            follower, there = max(longest(node) for node in cluster.followers)
        finally:
            cluster.close()
    what = "; ".join(f"`{name}`" for name in dict.fromkeys((ran, there)) if name)
    print(f"| {kind.name} | {kind.size} | {answers} | {leader:.0f} | {follower:.0f} | {what} |", flush=True)


def main() -> None:
    """Measure every kind of work, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of a kind of work")
    only = parser.parse_args().only
    print("| kind of work | size | answers | leader ms | follower ms | what ran, from 50 ms on |")
    print("|---|---|---|---:|---:|---|")
    for kind in KINDS:
        if only in kind.name:
            measure(kind)


if __name__ == "__main__":
    main()
