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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from tests.processes.cluster import DEADLINE_S, Cluster, ending_clusters
from tests.processes.crowd import Crowd
from tests.verdict.verdict import Answered, Values, Wrong, check_counted

CLIENTS, FAILOVERS = 200, 10
COUNTER = "counter"
COUNT = ["incr", COUNTER]
PATIENCE_S = 2.0  # For one answer; then the next node is asked.
GIVEN_UP_S = 60.0  # For all attempts together; the outcome is unknown then, and its session is left.
ANSWERED_S = 300.0  # For as many as are waited for; a busy machine answers 200 clients a hundred commands a second.
AGAIN_EVERY = 5  # Every so many answered commands are sent again, with the one before.
FLAGS = ("--machine", "kv", "--election-timeout-ms", "1000")


class Retriers(Crowd):
    """So many of them, on all these servers."""

    longest_s = GIVEN_UP_S + DEADLINE_S

    def __init__(self, servers: list[str], clients: int) -> None:
        super().__init__()
        self._servers = servers
        self._clients = clients
        self.attempts = 0
        self.again = 0

    def wait_for_more(self, cluster: Cluster, commands: int) -> None:
        """Return when so many more were answered, and a command of every client among all."""
        answered = self.history.answered
        goal = len(answered) + commands

        def went_on() -> bool:
            self.raise_failure()
            return len(answered) >= goal and len({each.session for each in list(answered)}) >= self._clients

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
        sequence, results = 0, list[int]()
        while not self.is_ending:
            sequence += 1
            answered = await self._send(http, chance, session, sequence, 1)
            if answered is None:
                self.history.unknown.append([COUNT])
                return
            results += answered
            told = Answered([COUNT], answered, session=session, sequence=sequence)
            self.history.answered.append(told)
            if sequence % AGAIN_EVERY == 0:
                again = await self._send(http, chance, session, sequence - 1, 2)
                if again not in (None, results[-2:]):
                    raise Wrong(f"session {session}, sequence {sequence}: {results[-2:]}, and again {again}")
                self.again += 1

    async def _send(
        self, http: aiohttp.ClientSession, chance: random.Random, session: int, sequence: int, count: int
    ) -> list[int] | None:
        headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
        body = {"commands": [COUNT] * count}
        document = await self._until_answered(http, chance, "/commands", body, headers)
        return None if document is None else document["results"]

    async def _until_answered(
        self, http: aiohttp.ClientSession, chance: random.Random, path: str, body: Any, headers: dict[str, str]
    ) -> dict[str, Any] | None:
        """The document of a 200, however often that takes; None where there was none for too long."""
        until = time.monotonic() + GIVEN_UP_S
        while time.monotonic() < until:
            self.attempts += 1
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


def check_count(cluster: Cluster, retriers: Retriers) -> int:
    """What was answered and what every node has counted agree. Returns the count. Raises Wrong."""
    cluster.wait_for_equal()
    [counted] = {node.local_state()["state"][COUNTER] for node in cluster}
    answers = [each.results[0] for each in retriers.history.answered]
    check_counted(answers, len(retriers.history.unknown), counted)
    return int(counted)


def check(cluster: Cluster, retriers: Retriers) -> dict[str, int]:
    """What was answered, what every node has counted, and what the log holds agree. Returns the figures."""
    replay = cluster.check(retriers.history, Values())
    assert replay.retries, "nothing was sent again"
    return {
        "acknowledged": retriers.history.acknowledged,
        "unknown": len(retriers.history.unknown),
        "counted": check_count(cluster, retriers),
        "attempts": retriers.attempts,
        "sent_again_on_purpose": retriers.again,
        "records_in_the_log": len(replay.records),
        "of_them_retries": replay.retries,
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
        return check(cluster, retriers)


def main() -> int:
    """`python -m tests.processes.retriers`: the full size."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.retriers", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--failovers", type=int, default=FAILOVERS)
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
