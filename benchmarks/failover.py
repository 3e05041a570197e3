"""The time from `kill -9` of a leader under load to the next leader's first acknowledged command; for etcd, too.

    python -m benchmarks.failover [--rounds 20] [--clients 4] [--etcd PROGRAM] [--json]

Runs three nodes on this machine with default settings. Each client sends its next batch when the previous one is
acknowledged. A round kills the leader, measures the time until a later epoch acknowledges a command, restarts the
killed node, and waits until it is ready. At the end, every acknowledged command is looked up in the log.

`--etcd` names an etcd program to measure in the same way, over its JSON gateway: three members with default settings
and the same number of clients, which try the next member when one fails. The time runs until a put is answered in a
later raft term. `tests/setup/go_tools.sh etcd` builds one.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console

from quire.cluster.client import connect
from quire.cluster.demo.failover import kill_leader
from quire.cluster.demo.nodes import DemoNodes
from quire.cluster.demo.writers import Writers

from .etcd import Etcd

READY_TIMEOUT_S = 60.0
BETWEEN_COMMANDS = 500  # Acknowledged between a restart and the next kill.


class Figures(NamedTuple):
    """The seconds of each round, and the number of lost commands."""

    name: str
    seconds: list[float]
    acknowledged: int
    lost: int | None

    def sentence(self) -> str:
        """The figures as a sentence."""
        seconds, middle = sorted(self.seconds), statistics.median(self.seconds)
        lost = "" if self.lost is None else f"; acknowledged commands lost: {self.lost} of {self.acknowledged:,}"
        return (
            f"{self.name}: median {middle:.3f} s, best {seconds[0]:.3f} s, worst {seconds[-1]:.3f} s of {len(seconds)}"
            f"{lost}"
        )


async def measure_quire(rounds: int, clients: int) -> Figures:
    """Failovers of three quire nodes in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="quire-failover-") as folder:
        nodes = DemoNodes(Path(folder))
        await nodes.start()
        try:
            async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
                await asyncio.gather(*map(client.ready, nodes.addresses.values()))
                writers = Writers(nodes.servers, clients)
                writing = tasks.create_task(writers.run())
                seconds: list[float] = []
                for _ in range(rounds):
                    await writers.acknowledged(BETWEEN_COMMANDS)
                    failover = await kill_leader(client, nodes, writers)
                    seconds.append(failover.seconds)
                    await nodes.start_node(failover.killed.node_id)
                    await client.ready(nodes.addresses[failover.killed.node_id])
                writers.end()
                await writing
                return Figures("quire", seconds, writers.commands, await writers.lost(client))
        finally:
            await nodes.stop()


async def measure_etcd(program: Path, rounds: int, clients: int) -> Figures:
    """Failovers of three etcd members in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="etcd-failover-") as folder:
        async with Etcd(program, Path(folder), clients) as etcd:
            seconds = [await etcd.fail_over() for _ in range(rounds)]
            return Figures(await etcd.version(), seconds, etcd.acknowledged, None)


async def run(arguments: argparse.Namespace) -> list[Figures]:
    """Measure quire, then etcd if it is given."""
    figures = [await measure_quire(arguments.rounds, arguments.clients)]
    if arguments.etcd is not None:
        figures.append(await measure_etcd(arguments.etcd, arguments.rounds, arguments.clients))
    return figures


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--etcd", type=Path, help="an etcd program to measure, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(run(arguments))
    if arguments.json:
        sys.stdout.write(json.dumps([row._asdict() for row in figures]) + "\n")
    for row in figures:
        Console(stderr=arguments.json).print(row.sentence(), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
