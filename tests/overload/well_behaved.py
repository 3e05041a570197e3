"""Well-behaved clients: the shipped client, one command at a time at a modest rate, retries as shipped.

Each opens a client of its own, sends some commands, closes it and opens another: a cluster that lets nobody in any more
is noticed, and not only one that serves those whom it has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import quire
from quire.cluster.client import Client, ClientError, OutcomeUnknown, Unavailable
from tests.processes.crowd import Crowd

CLIENTS = 200
PAUSE_S = (0.4, 1.6)  # Between two commands of one client: about one a second.
COMMANDS = (5, 30)  # Of one session.
PATIENCE_S = 30.0  # The shipped client's own.


@dataclass
class Served:
    """What became of their commands."""

    succeeded: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)

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
            await cluster.apply(["incr", f"well-behaved-{number}"])
        except (ClientError, OutcomeUnknown, Unavailable) as error:
            self.served.failed[f"{type(error).__name__}: {error}"[:160]] += 1
        else:
            self.served.succeeded += 1
            self.served.waits_s.append(time.monotonic() - began)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
