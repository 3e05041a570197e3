"""Two commits under the same load, in alternating slices of one run: medians of the slices' ratios.

    make bench-commits OLD=commit [LOAD=alone,64,500,batch,idle] [SLICES=12]
    python -m benchmarks.commits OLD [NEW] [--load alone,64] [--slices 12] [--seconds 0.5] [--json]

Without NEW, the checkout is compared with OLD. Each is installed into an environment of its own, and runs three nodes
with default settings. Per command, or per second for `idle`: processor time and context switches of the leader and of
a follower, and system calls if `strace` is installed; those are counted in slices of their own, which are not timed.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import mean
from typing import NamedTuple, cast

import uvloop
from rich.console import Console

from quire.cluster.client import connect

from ..paired import LOADS, Pair, alternate, table
from ..write_path import TABLE_WIDTH, Cluster
from .builds import BuildFailed, commit_of, installed

IDLE = "idle"
IDLE_SLICES = 3
IDLE_SECONDS = 3.0
TRACED_S = 1.0
TRACED_SLICES = 1
READY_TIMEOUT_S = 120.0
POLL_S = 0.05


class Running(NamedTuple):
    """Nodes that `benchmarks.commits.nodes` runs."""

    leader: str
    addresses: Mapping[str, str]
    process_ids: Mapping[str, int]


class Commit:
    """The nodes of a commit, as a side of the comparison."""

    def __init__(self, running: Running, seconds: float) -> None:
        self._cluster = Cluster(running, running.leader, seconds)
        followers = [pid for node, pid in running.process_ids.items() if node != running.leader]
        self._traced_ids = running.process_ids[running.leader], followers[0]

    async def measure(self, load: str) -> Mapping[str, float]:
        if load == IDLE:
            return await self._idle()
        figure = await self._cluster.streams(load, "", *LOADS[load])
        switches = _by_role(self._cluster.spent.switches_for(figure.rate * self._cluster.seconds))
        return {
            "commands/s": figure.rate,
            "p50 ms": figure.median_ms or 0.0,
            "leader us": figure.cpu_us["leader"],
            "follower us": figure.follower_us,
            "leader switches": switches[0],
            "follower switches": switches[1],
        }

    async def _idle(self) -> dict[str, float]:
        spent = self._cluster.spent
        spent.watch()
        await asyncio.sleep(IDLE_SECONDS)
        spent.watch()
        us, switches = _by_role(spent.us_for(IDLE_SECONDS)), _by_role(spent.switches_for(IDLE_SECONDS))
        return {
            "leader % of a core": us[0] / 1e4,
            "follower % of a core": us[1] / 1e4,
            "leader switches/s": switches[0],
            "follower switches/s": switches[1],
        }

    async def calls(self, load: str) -> Mapping[str, float]:
        """System calls of the leader and of one follower: per command, or per second if idle."""
        if load == IDLE:
            (leader, follower), _ = await self._traced()
            return {"leader calls/s": leader / TRACED_S, "follower calls/s": follower / TRACED_S}
        self._cluster.seconds, seconds = 3 * TRACED_S, self._cluster.seconds
        loading = asyncio.create_task(self._cluster.streams(load, "", *LOADS[load]))
        await self._under(load)
        (leader, follower), commands = await self._traced()
        await loading
        self._cluster.seconds = seconds
        return {"leader calls": leader / commands, "follower calls": follower / commands}

    async def _under(self, load: str) -> None:
        """Wait until every caller has a session and was answered."""
        callers, commands, _ = LOADS[load]
        async with connect(self._cluster.address) as client:
            before = (await client.bounds()).highest_index
            while (await client.bounds()).highest_index < before + 2 * callers * commands:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def _traced(self) -> tuple[tuple[int, int], int]:
        """The system calls of the leader and of one follower, and the log's records meanwhile."""
        async with connect(self._cluster.address) as client:
            tracers = [await _Tracer.attached(pid) for pid in self._traced_ids]
            before = (await client.bounds()).highest_index
            await asyncio.sleep(TRACED_S)
            after = (await client.bounds()).highest_index
            leader, follower = [await tracer.calls() for tracer in tracers]
        return (leader, follower), after - before


class Calls(NamedTuple):
    """A commit's system calls, as a side of the comparison."""

    commit: Commit

    async def measure(self, load: str) -> Mapping[str, float]:
        return await self.commit.calls(load)


class _Tracer:
    """An `strace` that counts a process's system calls."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def attached(cls, pid: int) -> "_Tracer":
        process = await asyncio.create_subprocess_exec(
            *("strace", "-f", "-c", "-U", "calls,name", "-p", str(pid)), stderr=asyncio.subprocess.PIPE
        )
        await cast("asyncio.StreamReader", process.stderr).readline()  # That it is attached.
        return cls(process)

    async def calls(self) -> int:
        """Detach; return their number."""
        self._process.terminate()
        _, said = await self._process.communicate()
        lines = [line.split() for line in said.decode().splitlines()]
        return next((int(words[0]) for words in lines if words[1:] == ["total"]), 0)


def _by_role(figures: Mapping[str, float]) -> tuple[float, float]:
    """The leader's figure, and the mean of the followers'."""
    return figures["leader"], mean(figure for name, figure in figures.items() if name not in ("leader", "load"))


@asynccontextmanager
async def running(commit: str, seconds: float) -> AsyncGenerator[Commit]:
    """Three nodes of a commit that are ready."""
    with tempfile.TemporaryDirectory(dir=".cache") as folder:
        process = await asyncio.create_subprocess_exec(
            await asyncio.to_thread(installed, commit),
            *("-m", "benchmarks.commits.nodes", folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await cast("asyncio.StreamReader", process.stdout).readline()
            if not line:
                raise BuildFailed(f"the nodes of {commit} did not start")
            yield Commit(Running(**json.loads(line)), seconds)
        finally:
            cast("asyncio.StreamWriter", process.stdin).close()
            await process.wait()


async def compare(old: str, new: str, loads: Sequence[str], slices: int, seconds: float) -> list[Pair]:
    """The figures of each load, `new` on the right."""
    pairs: list[Pair] = []
    async with running(old, seconds) as left, running(new, seconds) as right:
        for load in loads:
            pairs += await alternate(left, right, load, IDLE_SLICES if load == IDLE else slices)
            if shutil.which("strace"):
                pairs += await alternate(Calls(left), Calls(right), load, TRACED_SLICES)
    return pairs


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", default="", help="a commit; default: the checkout")
    parser.add_argument("--load", default=",".join([*LOADS, IDLE]), help="some of %(default)s")
    parser.add_argument("--slices", type=int, default=12, help="of each side and load")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of a slice")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    try:
        old, new = commit_of(arguments.old), commit_of(arguments.new)
        comparing = compare(old, new, arguments.load.split(","), arguments.slices, arguments.seconds)
        pairs = uvloop.run(comparing)
    except BuildFailed as error:
        sys.exit(str(error))
    if arguments.json:
        print(json.dumps([pair._asdict() for pair in pairs], indent=2))
    else:
        Console(width=TABLE_WIDTH).print(table(pairs, arguments.old, arguments.new or "checkout"))


if __name__ == "__main__":
    main()
