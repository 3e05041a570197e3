"""Failover as a client sees it: its longest wait when the leader is lost, and when another led.

Each system has its own client, with default settings and the addresses of all nodes. It puts one value after another,
and goes on after an error. A put is given up after 5 s by those of etcd and NATS, after 30 s by quire's.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import aiohttp
from rich.console import Console

from quire.cluster.client import ClientError, connect

from . import cutting
from .systems import Quire, System

NAME = "failover as a client sees it"
KINDS = ("dropped packets", "SIGSTOP", "kill -9")  # The last one's nodes start again outside their cgroups.
BETWEEN_S = 0.002
LOOK_TIMEOUT_S = 0.25
STEADY_PUTS, STEADY_S = 100, 0.5
LONGEST_S = 20.0
WHOLE_TIMEOUT_S = 120.0
SETTLE_S = 3.0
HEAD = """\
| the leader is lost by | system | the client waits s, median | least - most | another leads after s, median |
|---|---|---:|---:|---:|"""


class Failover(NamedTuple):
    """Seconds: between two answers to the client, at most; and from the loss until a node names another leader."""

    gap_s: float
    led_s: float


class Watch(ABC):
    """A client of a system, and what each node says of the leader."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.leaders: dict[str, str] = {}
        self._answered_at: list[float] = []
        self._changed = asyncio.Event()

    @abstractmethod
    async def run(self) -> None:
        """Put and look, until it is cancelled."""

    def put(self) -> None:
        """A put was answered."""
        self._answered_at.append(time.monotonic())
        self._changed.set()

    def leads(self, node: str, leader: str) -> None:
        """What a node says."""
        self.leaders[node] = leader
        self._changed.set()

    async def lose(self, kind: str) -> Failover:
        """Lose the leader in this way, and get it back. Raises TimeoutError: the system does not become whole."""
        async with asyncio.timeout(WHOLE_TIMEOUT_S):
            while len(self.leaders) < len(self.system.servers) or len(set(self.leaders.values())) != 1:
                await self._change()
            await asyncio.sleep(SETTLE_S)
            settled = time.monotonic()
            while not self._is_steady(settled):
                await self._change()
        leader = next(iter(self.leaders.values()))
        name, process_id = f"{self.system.name}-{leader}", self.system.process_ids[leader]
        del self._answered_at[:-1]
        began = time.monotonic()
        if kind == "dropped packets":
            cutting.cut(name)
        elif kind == "SIGSTOP":
            os.kill(process_id, signal.SIGSTOP)
        else:
            await self.system.kill(leader)
        try:
            return await self._failover(leader, began)
        finally:
            if kind == "dropped packets":
                cutting.heal(name)
            elif kind == "SIGSTOP":
                os.kill(process_id, signal.SIGCONT)
            else:
                await self.system.start_node(leader)

    async def _failover(self, lost: str, began: float) -> Failover:
        """Wait until another leads and the client gets its answers in a row."""
        led_s = LONGEST_S
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while not any(node != lost and leader not in (lost, "-") for node, leader in self.leaders.items()):
                    await self._change()
                led_s = time.monotonic() - began
                while not self._is_steady(began + led_s):
                    await self._change()
        waits = [*self._answered_at, time.monotonic()]
        return Failover(max(after - before for before, after in pairwise(waits)), led_s)

    def _is_steady(self, since: float) -> bool:
        last = [at for at in self._answered_at[-STEADY_PUTS:] if at > since]
        return len(last) == STEADY_PUTS and all(after - before < STEADY_S for before, after in pairwise(last))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class WatchedByLoad(Watch):
    """A system with a client in Go: the load generator has it."""

    def __init__(self, system: System, program: Path) -> None:
        super().__init__(system)
        self._program = program

    async def run(self) -> None:
        servers = ",".join(map("=".join, self.system.servers.items()))
        process = await asyncio.create_subprocess_exec(
            self._program,
            *("-system", self.system.name, "-servers", servers, "-watch"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            while line := await cast("asyncio.StreamReader", process.stdout).readline():
                match line.decode().split():
                    case [node, leader]:
                        self.leads(node, leader)
                    case _:
                        self.put()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class WatchedQuire(Watch):
    """Quire, with its Python client."""

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for node, address in self.system.servers.items():
                tasks.create_task(self._look(session, node, address))
            tasks.create_task(self._put())

    async def _look(self, session: aiohttp.ClientSession, node: str, address: str) -> None:
        while True:
            leader = "-"
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get(f"http://{address}/status") as answer:
                    status = await answer.json()
                    if status["leader"] != node or status["serving"]:
                        leader = status["leader"] or "-"
            self.leads(node, leader)
            await asyncio.sleep(BETWEEN_S * 5)  # A status is a long document.

    async def _put(self) -> None:
        async with connect(",".join(self.system.servers.values())) as client:
            while True:
                with suppress(ClientError):
                    await client.apply(["put", "key", b"value"])
                    self.put()
                await asyncio.sleep(BETWEEN_S)


@asynccontextmanager
async def _watching(system: System, program: Path) -> AsyncGenerator[Watch]:
    watch = WatchedQuire(system) if isinstance(system, Quire) else WatchedByLoad(system, program)
    running = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def lose_leaders(
    program: Path, systems: Sequence[System], rounds: int, told: Console
) -> dict[tuple[str, str], list[Failover]]:
    """The failovers by kind and system; one system after another, so that no two are without a leader at once."""
    found: dict[tuple[str, str], list[Failover]] = {}
    for kind in KINDS:
        if kind == "dropped packets" and cutting.CGROUPS is None:
            continue
        for system in systems:
            try:
                async with _watching(system, program) as watch:
                    found[kind, system.name] = [await watch.lose(kind) for _ in range(rounds)]
            except (TimeoutError, subprocess.CalledProcessError) as error:
                told.print(f"{kind}, {system.name}: left out ({type(error).__name__})", highlight=False)
            else:
                told.print(f"{kind}, {system.name}: {rounds} times", highlight=False)
    return found


def lines_of(found: Mapping[tuple[str, str], Sequence[Failover]]) -> Iterator[str]:
    """The table, as Markdown."""
    rounds = len(next(iter(found.values()), ()))
    yield f"{NAME[0].upper()}{NAME[1:]}: {rounds} times each. {' '.join((__doc__ or '').splitlines()[2:]).strip()}"
    if cutting.CGROUPS is None:
        yield "Dropped packets are left out: that needs root, nft and version 2 of cgroups."
    yield from ("", HEAD)
    for (kind, system), failovers in found.items():
        gaps, led = zip(*failovers, strict=True)
        yield (
            f"| {kind} | {system} | {statistics.median(gaps):.2f} | {min(gaps):.2f} - {max(gaps):.2f} "
            f"| {statistics.median(led):.2f} |"
        )
