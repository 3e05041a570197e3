"""The write path: three nodes and their load on one machine; an answer means an fdatasync on a majority's disks.

    python -m benchmarks.write_path [--seconds 5] [--json]

The commands are the arithmetic machine's. The table has the processor time per command of the leader, a follower and
the load itself, which on a shared machine says more than the rate. The row "bare WebSocket" is an aiohttp server that
answers the same callers at once: the cost of the connections alone.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import aiohttp
import uvloop
from aiohttp import WSMsgType, web
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from quire.cluster.access.client_credentials import Shown
from quire.cluster.client import Client, connect
from quire.cluster.demo.nodes import DemoNodes
from quire.log import pack, unpack
from quire.log.packing import array_head

from .callers import PLAIN, WARM_S, CallFailed, Measured, measure
from .spent import Spent

COMMANDS = (["add", "3.25"], ["sub", 2], ["mul", "1.5"], ["div", "1.5"], ["add", 7], ["sub", "8.25"])
ANSWER_HEAD = b"\x95"  # [sequence, index, epoch, results, refused]
READY_TIMEOUT_S = 60.0
SUBMITTED = 8192  # How far the pipelining client runs ahead of the answers: a session's window.
TABLE_WIDTH = 132
WRK_THREADS = 1
WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"commands": [["add", 3]]}'
done = function(summary, latency)
  local wrong = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("\\nfigures %d %d %f %f %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), wrong))
end
"""


class Figure(NamedTuple):
    """A measurement: commands per second, waits in milliseconds, processor time in microseconds per command."""

    name: str
    goal: str
    rate: float
    median_ms: float | None
    p99_ms: float | None
    cpu_us: dict[str, float]

    @property
    def follower_us(self) -> float:
        """The mean of the followers' processor time."""
        followers = [us for name, us in self.cpu_us.items() if name not in ("leader", "load")]
        return sum(followers) / len(followers) if followers else 0.0


class Nodes(Protocol):
    """Three running nodes: `DemoNodes`, or others."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses, by node id."""
        ...

    @property
    def process_ids(self) -> Mapping[str, int]:
        """The process ids, by node id."""
        ...


class Batches:
    """The messages of a session, with a number of commands each."""

    def __init__(self, commands: int) -> None:
        self._commands = commands
        self._next_sequence = 1
        picked = [COMMANDS[at % len(COMMANDS)] for at in range(commands)]
        self._packed = array_head(commands) + b"".join(map(pack, picked))

    def next(self) -> bytes:
        """The next [sequence, commands]."""
        message = b"".join((b"\x92", pack(self._next_sequence), self._packed))
        self._next_sequence += self._commands
        return message

    def check(self, answer: bytes) -> None:
        """Raise CallFailed if the answer is a problem."""
        if not answer.startswith(ANSWER_HEAD):
            raise CallFailed(f"a problem: {unpack(answer)}")


class Cluster:
    """The measurements on three nodes, each of which takes `seconds`.

    `shown` is what the callers of `streams` show; the other measurements are of nodes that speak plain HTTP.
    """

    def __init__(self, nodes: Nodes, leader_id: str, seconds: float, shown: Shown = PLAIN) -> None:
        self.address = nodes.addresses[leader_id]
        self.seconds = seconds
        self.spent = Spent({("leader" if node == leader_id else node): pid for node, pid in nodes.process_ids.items()})
        self._servers = ",".join(nodes.addresses.values())
        self._shown = shown

    async def streams(self, name: str, goal: str, callers: int, commands: int, depth: int) -> Figure:
        """Callers with a stream and a session each, and `depth` messages of `commands` in flight."""
        shown = self._shown
        context, server_name = shown.context or True, shown.server_name
        async with aiohttp.ClientSession(headers=shown.headers) as http:
            paths = []
            url = shown.url(self.address, "/sessions")
            for _ in range(callers):
                async with http.post(url, json={}, ssl=context, server_hostname=server_name) as reply:
                    paths.append(f"/commands/stream?session={(await reply.json())['session']}")
        host, _, port = self.address.rpartition(":")
        calling = [(path, Batches(commands)) for path in paths]
        measured = await measure(host, int(port), calling, depth, self.seconds, self.spent.watch, shown)
        return self._figure(name, goal, measured, commands)

    async def pipelined(self, name: str, goal: str) -> Figure:
        """The Python client: one caller submits commands and takes the answers in order, thousands later."""
        async with connect(self._servers) as client:
            rate, count = await _submit_for(client, self.seconds, self.spent.watch)
        return Figure(name, goal, rate, None, None, self.spent.us_for(count))

    async def one_at_a_time(self, name: str, goal: str, command: Sequence[object] = ("add", 1)) -> Figure:
        """The Python client: one caller awaits each answer."""
        waits: list[float] = []
        async with connect(self._servers) as client:
            await client.apply(command)
            self.spent.watch()
            began = now = time.perf_counter()
            while now < began + self.seconds:
                await client.apply(command)
                waits.append(time.perf_counter() - now)
                now += waits[-1]
            self.spent.watch()
        return self._figure(name, goal, Measured(len(waits), now - began, sorted(waits)), 1)

    async def posts(self, name: str, goal: str, clients: int) -> Figure | None:
        """POST /commands by wrk; None if it is not installed."""
        wrk = shutil.which("wrk")
        if wrk is None:
            return None
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(WRK_SCRIPT)
            script.flush()
            arguments = [f"-t{WRK_THREADS}", f"-c{clients}", f"-d{max(1, round(self.seconds))}s", "-s", script.name]
            self.spent.watch()
            process = await asyncio.create_subprocess_exec(
                wrk, *arguments, f"http://{self.address}/commands", stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            self.spent.watch()
        line = next(line for line in output.decode().splitlines() if line.startswith("figures"))
        requests, micros, median, p99, wrong = map(float, line.split()[1:])
        if wrong:
            raise CallFailed(f"{wrong:.0f} of {requests:.0f} requests were not answered with 200")
        return Figure(name, goal, requests / micros * 1e6, median / 1000, p99 / 1000, self.spent.us_for(requests))

    def _figure(self, name: str, goal: str, measured: Measured, commands: int) -> Figure:
        count = measured.messages * commands
        cpu_us = self.spent.us_for(count)
        return Figure(name, goal, count / measured.seconds, measured.wait_ms(0.5), measured.wait_ms(0.99), cpu_us)


async def _submit_for(client: Client, seconds: float, watch: Callable[[], None]) -> tuple[float, int]:
    """The commands per second, and their number."""
    under_way: deque[asyncio.Future[Any]] = deque()

    async def submit_until(end: float) -> int:
        submitted = 0
        while time.perf_counter() < end:
            for command in COMMANDS:
                under_way.append(await client.submit(command))
            submitted += len(COMMANDS)
            while len(under_way) > SUBMITTED:
                await under_way.popleft()
        return submitted

    await submit_until(time.perf_counter() + WARM_S)
    watch()
    began = time.perf_counter()
    submitted = await submit_until(began + seconds)
    took = time.perf_counter() - began
    watch()
    await asyncio.gather(*under_way)
    return submitted / took, submitted


async def bare_websocket(name: str, callers: int, seconds: float) -> Figure:
    """Aiohttp alone, in a separate process: an answer of the same length to every message."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.write_path", "--bare", stdout=asyncio.subprocess.PIPE
    )
    try:
        port = int(await cast("asyncio.StreamReader", process.stdout).readline())
        spent = Spent({"leader": process.pid})
        calling = [("/", Batches(1)) for _ in range(callers)]
        measured = await measure("127.0.0.1", port, calling, 1, seconds, spent.watch)
    finally:
        process.terminate()
        await process.wait()
    rate = measured.messages / measured.seconds
    return Figure(name, "", rate, measured.wait_ms(0.5), measured.wait_ms(0.99), spent.us_for(measured.messages))


async def _serve_bare() -> None:
    answer = pack([1, 1_000_000, 1, ["45.25"], []])

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        while (message := await socket.receive()).type is WSMsgType.BINARY:
            unpack(message.data)
            await socket.send_bytes(answer)
        return socket

    app = web.Application()
    app.router.add_get("/", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def _measurements(cluster: Cluster) -> list[Callable[[], Awaitable[Figure | None]]]:
    return [
        lambda: cluster.streams("batches of 100, 8 streams", "600,000/s", 8, 100, 16),
        lambda: cluster.pipelined("singles without waiting, one Python client", "200,000/s"),
        lambda: cluster.streams("singles, 500 clients", "25,000/s", 500, 1, 1),
        lambda: bare_websocket("bare WebSocket, 500 clients", 500, cluster.seconds),
        lambda: cluster.streams("singles, 64 clients", "15,000/s", 64, 1, 1),
        lambda: cluster.posts("POST /commands, 64 clients (wrk)", "6,000/s", 64),
        lambda: cluster.streams("one client alone", "median 0.9 ms", 1, 1, 1),
        lambda: cluster.one_at_a_time("one Python client alone", ""),
    ]


async def _measure_all(seconds: float, console: Console) -> list[Figure]:
    directory = Path(tempfile.mkdtemp(prefix="quire-benchmark-"))
    nodes = DemoNodes(directory)
    figures: list[Figure] = []
    try:
        await nodes.start()
        async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
            await asyncio.gather(*map(client.ready, nodes.addresses.values()))
            leader = str((await client.status())["leader"])
        for measurement in _measurements(Cluster(nodes, leader, seconds)):
            figure = await measurement()
            if figure is None:
                console.print("wrk is not installed (Debian: apt install wrk); POST /commands is not measured")
            else:
                figures.append(figure)
                console.print(f"{figure.name}: {figure.rate:,.0f}/s", highlight=False)
    finally:
        await nodes.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return figures


def _table(figures: list[Figure]) -> Table:
    table = Table(
        "", "commands/s", "goal", "median ms", "p99 ms", "leader us", "follower us", "load us", box=SIMPLE_HEAD
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.rate:,.0f}",
            figure.goal,
            *(f"{ms:.2f}" if ms is not None else "" for ms in (figure.median_ms, figure.p99_ms)),
            f"{figure.cpu_us['leader']:.2f}",
            f"{figure.follower_us:.2f}" if figure.follower_us else "",
            f"{figure.cpu_us['load']:.2f}",
        )
    return table


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        uvloop.run(_serve_bare())
        return
    console = Console(stderr=True)
    figures = uvloop.run(_measure_all(arguments.seconds, console))
    if arguments.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
    else:
        Console(width=TABLE_WIDTH).print(_table(figures))


if __name__ == "__main__":
    main()
