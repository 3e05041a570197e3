"""Clients that retry blindly: each command goes to any node, and again to another, until one answers.

They know of no leader and draw no conclusion from a failure but that they have not been answered. Now and then they
send again what was answered, with what was answered before it. Each has a session and one command under way, so what it
knows is plain: answered, or given up and unknown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from quire.log import Frame, Kind, Run, decode_runs, walk_frames
from tests.processes.cluster import DEADLINE_S, Cluster, ending_clusters
from tests.processes.crowd import Crowd

CLIENTS, FAILOVERS = 20, 3
MANY_CLIENTS, MANY_FAILOVERS = 200, 10
COUNTER = "counter"
PATIENCE_S = 2.0  # For one answer; then the next node is asked.
GIVEN_UP_S = 60.0  # For all attempts together; the outcome is unknown then, and its session is left.
ANSWERED_S = 300.0  # For as many as are waited for; a busy machine answers 200 clients a hundred commands a second.
AGAIN_EVERY = 5  # Every so many answered commands are sent again, with the one before.
FLAGS = ("--machine", "kv", "--election-timeout-ms", "1000")


@dataclass
class Tried:
    """What became of all commands; `answers` are what the counter was said to be, by (session, sequence)."""

    answers: dict[tuple[int, int], int]
    attempts: int = 0
    again: int = 0
    unknown: int = 0


class Retriers(Crowd):
    """So many of them, on all these servers."""

    longest_s = GIVEN_UP_S + DEADLINE_S

    def __init__(self, servers: list[str], clients: int) -> None:
        super().__init__()
        self._servers = servers
        self._clients = clients
        self.tried = Tried({})

    def wait_for_more(self, cluster: Cluster, commands: int) -> None:
        """Return when so many more were answered, and a command of every client among all."""
        goal = len(self.tried.answers) + commands

        def went_on() -> bool:
            self.raise_failure()
            answers = self.tried.answers
            return len(answers) >= goal and len({session for session, _ in list(answers)}) >= self._clients

        cluster.wait_until(f"{goal} commands are answered", went_on, ANSWERED_S)

    async def _all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            await asyncio.gather(*(self._one(http, random.Random(number)) for number in range(self._clients)))

    async def _one(self, http: aiohttp.ClientSession, chance: random.Random) -> None:
        while not self.is_ending:
            opened = await self._until_answered(http, chance, "/sessions", {}, {})
            if opened is not None:
                await self._count(http, chance, opened["session"])

    async def _count(self, http: aiohttp.ClientSession, chance: random.Random, session: int) -> None:
        """Count up under a session, until the end or until an outcome is unknown."""
        sequence, tried = 0, self.tried
        while not self.is_ending:
            sequence += 1
            answered = await self._send(http, chance, session, sequence, 1)
            if answered is None:
                tried.unknown += 1
                return
            assert (session, sequence) not in tried.answers
            tried.answers[session, sequence] = answered[0]
            if sequence % AGAIN_EVERY == 0:
                again = await self._send(http, chance, session, sequence - 1, 2)
                known = [tried.answers[session, sequence - 1], tried.answers[session, sequence]]
                assert again in (None, known), f"session {session}, sequence {sequence}: {known}, and again {again}"
                tried.again += 1

    async def _send(
        self, http: aiohttp.ClientSession, chance: random.Random, session: int, sequence: int, count: int
    ) -> list[int] | None:
        headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
        body = {"commands": [["incr", COUNTER]] * count}
        document = await self._until_answered(http, chance, "/commands", body, headers)
        return None if document is None else document["results"]

    async def _until_answered(
        self, http: aiohttp.ClientSession, chance: random.Random, path: str, body: Any, headers: dict[str, str]
    ) -> dict[str, Any] | None:
        """The document of a 200, however often that takes; None where there was none for too long."""
        until = time.monotonic() + GIVEN_UP_S
        while time.monotonic() < until:
            self.tried.attempts += 1
            try:
                async with http.post(
                    f"http://{chance.choice(self._servers)}{path}", json=body, headers=headers
                ) as reply:
                    if reply.status == 200:
                        document: dict[str, Any] = await reply.json()
                        return document
                    assert reply.status in (429, 503, 504), f"{path}: {reply.status} {await reply.text()}"
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0)
        return None


def sequences_in(frames: Iterable[Frame]) -> list[tuple[int, int]]:
    """(session, sequence) of every record of a session, as they stand in the log."""
    found: list[tuple[int, int]] = []
    for frame in frames:
        header = frame.header
        runs = [Run(header.session, header.sequence, header.count)]
        if header.kind == Kind.RUNS:
            runs = decode_runs(frame.payload, header.count)[0]
        found += [(session, first + at) for session, first, count in runs if session for at in range(count)]
    return found


def check_counted(cluster: Cluster, tried: Tried) -> int:
    """What was answered and what every node has counted agree. Returns the count."""
    cluster.wait_for_equal()
    [counted] = {node.local_state()["state"][COUNTER] for node in cluster}
    acknowledged, answers = len(tried.answers), sorted(tried.answers.values())

    known = f"{acknowledged} acknowledged, {tried.unknown} unknown"
    assert acknowledged <= counted <= acknowledged + tried.unknown, f"{known}, and {counted} were counted"
    assert len(set(answers)) == acknowledged, "two commands were given one place in the count"
    return int(counted)


def check(cluster: Cluster, tried: Tried) -> dict[str, int]:
    """What was answered, what every node has counted, and what the log holds agree. Returns the figures."""
    counted = check_counted(cluster, tried)
    logs = [sequences_in(walk_frames(node.raw_frames())) for node in cluster]
    assert logs[0] == logs[1] == logs[2], "the logs differ"
    distinct = set(logs[0])
    assert set(tried.answers) <= distinct, "what was acknowledged stands in no log"
    # Each execution counts up by one: were one (session, sequence) executed twice, there would be more than they are.
    assert counted == len(distinct), f"{len(distinct)} different commands stand in the log and {counted} were executed"
    return {
        "acknowledged": len(tried.answers),
        "unknown": tried.unknown,
        "counted": counted,
        "attempts": tried.attempts,
        "sent_again_on_purpose": tried.again,
        "records_in_the_log": len(logs[0]),
        "of_them_retries": len(logs[0]) - len(distinct),
    }


def run(cluster: Cluster, clients: int, failovers: int, commands: int) -> dict[str, int]:
    """Count up through so many failovers, with so many answered commands around each; check; the figures."""
    with Retriers([node.address for node in cluster], clients) as retriers:
        for _ in range(failovers):
            retriers.wait_for_more(cluster, commands)
            killed = cluster.elected()
            killed.kill()
            retriers.wait_for_more(cluster, commands)
            cluster.start_again(killed)
        retriers.wait_for_more(cluster, commands)
        retriers.end()
        return check(cluster, retriers.tried)


def main() -> int:
    """`python -m tests.processes.retriers`: the full size."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.retriers", description=__doc__)
    parser.add_argument("--clients", type=int, default=MANY_CLIENTS)
    parser.add_argument("--failovers", type=int, default=MANY_FAILOVERS)
    parser.add_argument("--commands", type=int, default=1_000, help="answered before and after each failover")
    arguments = parser.parse_args()
    began = time.monotonic()
    with TemporaryDirectory(prefix="retriers-") as folder, ending_clusters(Path(folder)) as clusters:
        figures = run(clusters.formed(flags=FLAGS), arguments.clients, arguments.failovers, arguments.commands)
    figures = {**vars(arguments), **figures, "seconds": round(time.monotonic() - began)}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
