"""Callers that ask the leader for its longest answers, again and again and all at once, while one client writes.

Run as a program beside the nodes, so that it has an interpreter of its own; it prints what it was answered, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp

from tests.processes.cluster import DEADLINE_S, Cluster, Unreachable, environment
from tests.processes.meter import rank
from tests.verdict.bounds import check_leaders, failures
from tests.verdict.verdict import Wrong

CURSORS = 1_000
KEYS = 88_000
KEYS_AT_ONCE = 10_000
LONGEST_PATHS = ("/cursors?limit=1000", "/state", "/cluster", "/members", "/status", "/metrics", "/records?from=1")
WRITE_EVERY_S = 0.5
HARMLESS = (aiohttp.ClientError, OSError, TimeoutError)


def run(cluster: Cluster, callers: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
    """Ask for each path for so long; the figures of each, what is wrong."""
    _fill(cluster)
    before = {node.node_id: node.status()["leaders"] for node in cluster}
    figures: dict[str, Any] = {path: _asked(cluster, path, callers, seconds) for path in LONGEST_PATHS}
    after = {node.node_id: node.status()["leaders"] for node in cluster}
    wrong = failures(partial(check_leaders, before, after), partial(_check_writes, figures))
    return figures, wrong


def _fill(cluster: Cluster) -> None:
    """As many cursors as a page has, and a state as long as an answer may be."""
    program = [sys.executable, "-m", "tests.overload.asking", cluster.leader.address, "--fill"]
    subprocess.run(program, check=True, env=environment(), timeout=5 * DEADLINE_S)
    for first in range(0, KEYS, KEYS_AT_ONCE):
        cluster.leader.apply(*(["put", f"key-{number:06}", number] for number in range(first, first + KEYS_AT_ONCE)))


def _asked(cluster: Cluster, path: str, callers: int, seconds: float) -> dict[str, Any]:
    """What so many callers of a path were answered, what became of the writes, and the leader's longest turn."""
    lines = len(cluster.leader.output.read_text(errors="replace"))
    changes = _epoch(cluster)
    program = [sys.executable, "-m", "tests.overload.asking", cluster.leader.address]
    program += ["--path", path, "--callers", str(callers), "--seconds", str(seconds)]
    done = subprocess.run(
        program, stdout=subprocess.PIPE, text=True, check=True, env=environment(), timeout=seconds + 2 * DEADLINE_S
    )
    found: dict[str, Any] = json.loads(done.stdout)
    cluster.elected()
    long = [
        int(line.partition("cpu_ms=")[2].split()[0])
        for line in cluster.leader.output.read_text(errors="replace")[lines:].splitlines()
        if "long turn" in line
    ]
    return {**found, "elections": _epoch(cluster) - changes, "longest_turn_ms": max(long, default=0)}


def _epoch(cluster: Cluster) -> int:
    epochs = [0]
    for node in cluster:
        try:
            epochs.append(int(node.status()["epoch"]))
        except Unreachable:
            continue
    return max(epochs)


def _check_writes(figures: dict[str, Any]) -> None:
    """Every write beside the callers was acknowledged. Raises Wrong."""
    failed = {path: found["writes_failed"] for path, found in figures.items() if found["writes_failed"]}
    if failed:
        raise Wrong(f"writes failed: {failed}")


async def ask(server: str, path: str, callers: int, seconds: float) -> dict[str, Any]:
    """Ask so many times at once for so long, and write meanwhile; what was answered."""
    answers: Counter[str] = Counter()
    writes: Counter[str] = Counter()
    waits_s: list[float] = []
    until = time.monotonic() + seconds
    ended = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as readers,
        aiohttp.ClientSession(timeout=timeout) as writer,
    ):

        async def pause(seconds: float) -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), max(0.0, seconds))

        async def reads() -> None:
            while time.monotonic() < until:
                try:
                    async with readers.get(f"http://{server}{path}") as answer:
                        await answer.read()
                        answers[str(answer.status)] += 1
                        refused = answer.status != 200
                except HARMLESS as error:
                    answers[type(error).__name__] += 1
                    refused = True
                if refused:
                    await pause(WRITE_EVERY_S)

        async def write() -> None:
            number = 0
            while time.monotonic() < until:
                began, number = time.monotonic(), number + 1
                try:
                    async with writer.post(
                        f"http://{server}/commands", json={"commands": [["put", "written", number]]}
                    ) as answer:
                        writes[str(answer.status)] += 1
                except HARMLESS as error:
                    writes[type(error).__name__] += 1
                waits_s.append(time.monotonic() - began)
                await pause(began + WRITE_EVERY_S - time.monotonic())
            ended.set()

        await asyncio.gather(write(), *(reads() for _ in range(callers)))
    return {
        "answers": dict(answers),
        "writes": dict(writes),
        "writes_failed": writes.total() - writes["200"],
        "write_p50_s": round(rank(waits_s, 0.5), 3),
        "write_longest_s": round(max(waits_s, default=0.0), 3),
    }


async def fill(server: str) -> None:
    """Create the cursors."""
    async with aiohttp.ClientSession() as session:

        async def put(number: int) -> None:
            async with session.put(f"http://{server}/cursors/cursor-{number:04}", json={"index": 1}) as answer:
                assert answer.status == 200, await answer.text()

        await asyncio.gather(*map(put, range(CURSORS)))


def main() -> None:
    """`python -m tests.overload.asking SERVER`, beside the nodes."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload.asking", description=__doc__)
    parser.add_argument("server", help="HOST:PORT of the leader")
    parser.add_argument("--fill", action="store_true", help="only create the cursors")
    parser.add_argument("--path", default="/state")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    if arguments.fill:
        asyncio.run(fill(arguments.server))
        return
    found = asyncio.run(ask(arguments.server, arguments.path, arguments.callers, arguments.seconds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
