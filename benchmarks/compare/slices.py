"""Rows of the comparison, and their slices: the systems take turns under the same work."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from ..spent import Spent
from ..write_path import Cluster
from .systems import Quire, System

ANSWER_TIMEOUT_S = 120.0  # Of the load generator's next line, beyond the length of a slice.
WARM_S = 0.2
KIB = 1024
REQUEST_BYTES = 1 << 20
"""The longest request that quire takes; etcd takes 1.5 MiB."""
GENERATOR = "generator"


class Row(NamedTuple):
    """A kind of work: clients, each with `depth` requests of `batch` values in flight."""

    shape: str
    clients: int
    depth: int
    batch: int
    value_bytes: int

    @property
    def name(self) -> str:
        """The work and the size of a value."""
        size = f"{self.value_bytes // KIB} KiB" if self.value_bytes >= KIB else f"{self.value_bytes} B"
        return f"{self.shape}, {size}"


class Slice(NamedTuple):
    """Figures of a slice: values per second, waits of requests, processor time per value of all nodes and the load."""

    rate: float
    p50_ms: float
    p99_ms: float
    nodes_us: float
    load_us: float


class LoadFailed(Exception):
    """The load generator ended; the text is what it said."""


SHAPES = (
    ("1 client", 1, 1, 1),
    ("64 clients", 64, 1, 1),
    ("500 clients", 500, 1, 1),
    ("1 client, 1,024 in flight", 1, 1024, 1),
    ("8 clients, 256 in flight each", 8, 256, 1),
    ("batches of 10, 8 clients, 16 in flight each", 8, 16, 10),
    ("batches of 100, 8 clients, 16 in flight each", 8, 16, 100),
    ("batches of 1,000, 8 clients, 4 in flight each", 8, 4, 1000),
)
SIZES = (16, KIB, 16 * KIB)
ROWS = tuple(
    row for size in SIZES for shape in SHAPES if (row := Row(*shape, size)).batch * row.value_bytes < REQUEST_BYTES
)
QUICK_ROWS = tuple(
    row
    for row in ROWS
    if row.value_bytes == SIZES[0]
    or (row.value_bytes == KIB and (row.clients == 64 or row.depth == 256 or row.batch == 100))
    or (row.value_bytes == 16 * KIB and (row.clients == 64 or row.batch == 10))
)


class Load:
    """A load generator that is connected to a system. Linux only, as `Spent`."""

    def __init__(self, process: asyncio.subprocess.Process, system: System, seconds: float) -> None:
        self._process = process
        self._seconds = seconds
        self._nodes = tuple(system.process_ids)
        self._spent = Spent({**system.process_ids, GENERATOR: process.pid})

    @classmethod
    async def connected(cls, program: Path, system: System, row: Row, seconds: float) -> "Load":
        """A load generator whose clients are all connected; its slices last `seconds`."""
        process = await asyncio.create_subprocess_exec(
            program,
            *("-system", system.name, "-servers", ",".join(map("=".join, system.servers.items()))),
            *("-clients", str(row.clients), "-depth", str(row.depth), "-batch", str(row.batch)),
            *("-bytes", str(row.value_bytes), "-warm", f"{WARM_S}s", "-slice", f"{seconds}s"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        load = cls(process, system, seconds)
        try:
            await load._line(0)
        except BaseException:
            await load.close()
            raise
        return load

    async def slice(self) -> Slice:
        """Load the system, after a warm-up.

        Raises:
            LoadFailed: a client got another answer than the expected one.
        """
        cast("asyncio.StreamWriter", self._process.stdin).write(b"slice\n")
        await self._line(0)
        self._spent.watch()
        await self._line(self._seconds)
        self._spent.watch()
        figures: Mapping[str, float] = json.loads(await self._line(0))
        spent = self._spent.us_for(figures["commands"] or 1)
        return Slice(
            figures["commands"] / figures["seconds"],
            figures["p50_ms"],
            figures["p99_ms"],
            sum(spent[node] for node in self._nodes),
            spent[GENERATOR],
        )

    async def close(self) -> None:
        """Disconnect."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _line(self, seconds: float) -> str:
        async with asyncio.timeout(seconds + ANSWER_TIMEOUT_S):
            line = await cast("asyncio.StreamReader", self._process.stdout).readline()
            if not line:
                said = await cast("asyncio.StreamReader", self._process.stderr).read()
                raise LoadFailed(said.decode(errors="replace").strip()[-200:])
            return line.decode()


class PythonClient:
    """Quire's Python client, which awaits each answer: what a program gets beside the load generator."""

    name = "quire, its Python client"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @classmethod
    async def connected(cls, quire: Quire, seconds: float) -> "PythonClient":
        """A client of the nodes."""
        return cls(Cluster(quire.nodes, await quire.leader(), seconds))

    async def slice(self) -> Slice:
        figure = await self._cluster.one_at_a_time("", "", ["put", "key", bytes(SIZES[0])])
        nodes_us = sum(us for name, us in figure.cpu_us.items() if name != "load")
        return Slice(figure.rate, figure.median_ms or 0.0, figure.p99_ms or 0.0, nodes_us, figure.cpu_us["load"])

    async def close(self) -> None:
        pass


async def take_turns(
    program: Path, row: Row, systems: Sequence[System], slices: int, seconds: float
) -> dict[str, list[Slice] | str]:
    """Each system's slices of a row, or the words with which its load failed.

    The order rotates from turn to turn. The first turn is not counted: a JVM compiles what is new to it. In the first
    row of all, quire's Python client takes part.
    """
    loads: dict[str, Load | PythonClient] = {}
    taken: dict[str, list[Slice] | str] = {}
    try:
        for system in systems:
            taken[system.name] = []
            try:
                loads[system.name] = await Load.connected(program, system, row, seconds)
            except (LoadFailed, TimeoutError) as error:
                taken[system.name] = f"no connection: {error}"
            if row == ROWS[0] and isinstance(system, Quire):
                loads[PythonClient.name] = await PythonClient.connected(system, seconds)
                taken[PythonClient.name] = []
        for number in range(slices + 1):
            order = deque(loads)
            order.rotate(-number)
            for name in order:
                figures = taken[name]
                if isinstance(figures, str):
                    continue
                try:
                    figures.append(await loads[name].slice())
                except (LoadFailed, TimeoutError) as error:
                    taken[name] = str(error) or "no answer"
    finally:
        for load in loads.values():
            await load.close()
    return {name: figures if isinstance(figures, str) else figures[1:] for name, figures in taken.items()}


async def idle_percent(system: System, seconds: float) -> float:
    """The processor time that a system's nodes take together without any load, in percent of one core."""
    spent = Spent(dict(system.process_ids))
    spent.watch()
    await asyncio.sleep(seconds)
    spent.watch()
    return sum(spent.us_for(seconds)[node] for node in system.process_ids) / 1e6 * 100
