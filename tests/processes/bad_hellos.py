"""Strangers at the peers' paths of a cluster: each kind of bad hello many times, and then as many times again."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop

from quire.replication.net.hello import PATHS
from tests.processes.cluster import Cluster, Clusters, Node, ending_clusters
from tests.processes.meter import resident_bytes
from tests.replication.strangers import BAD_HELLOS, opened, rest

AT_ONCE = 32
"""Fewer than the node has places for in a hello: none is ended because it is the oldest."""
COUNT = 20_000
GROWTH_BYTES = 5 << 20
"""What a node may have more after the second time than after the first."""
TURN_S = 0.05
"""The longest turn of a node's loop, in processor time."""
SECRET = "a secret that no stranger knows"


class Figures(NamedTuple):
    """What a kind did to a node: by how much its memory grew each time, and the longest turn so far."""

    grown_bytes: list[int]
    longest_turn_s: float


def formed(clusters: Clusters, folder: Path) -> Cluster:
    """A cluster of three with a peer secret."""
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return clusters.formed(flags=["--peer-secret-file", str(file)])


async def send(address: str, path: str, kind: str, count: int) -> None:
    """Open so many connections, some at once, and send a bad hello on each."""
    bad, left = BAD_HELLOS[kind], iter(range(count))
    data = bad.data()

    async def stranger() -> None:
        for _ in left:
            async with opened(address, path) as (reader, writer, _):
                writer.write(data)
                if bad.is_ended:
                    await rest(reader)

    await asyncio.gather(*[stranger() for _ in range(AT_ONCE)])


def run(cluster: Cluster, kinds: Sequence[str], count: int, path: str) -> dict[str, Figures]:
    """Send each kind so many times to the leader, twice; the figures. The cluster must go on as before."""
    node, before = cluster.leader, led(cluster)
    figures: dict[str, Figures] = {}
    for kind in kinds:
        sizes = [resident_bytes(node.running.pid)]
        for _ in range(2):
            uvloop.run(send(node.address, path, kind, count))
            cluster.wait_until("the strangers are gone", lambda: metric(node, "quire_http_connections") < AT_ONCE)
            sizes.append(resident_bytes(node.running.pid))
        grown = [sizes[1] - sizes[0], sizes[2] - sizes[1]]
        figures[kind] = Figures(grown, metric(node, r"quire_loop_turn_longest_seconds\{.*\}"))
    assert led(cluster) == before, "a stranger moved leadership"
    return figures


def led(cluster: Cluster) -> list[tuple[int, str]]:
    """Epoch and leader, as each node says."""
    return [(status["epoch"], status["leader"]) for status in (node.status() for node in cluster)]


def metric(node: Node, name: str) -> float:
    """The value of a metric; `name` is a regular expression."""
    found = re.search(rf"^{name} (\S+)$", node.call("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def main() -> int:
    """`python -m tests.processes.bad_hellos`: 0 if the second time adds little and no turn is long."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.bad_hellos", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="connections of each kind, each time")
    parser.add_argument("--only", action="append", choices=sorted(BAD_HELLOS), help="a kind; by default, all")
    parser.add_argument("--purpose", choices=sorted(PATHS), default="peer", help="of the connections")
    arguments = parser.parse_args()
    kinds, path = arguments.only or list(BAD_HELLOS), PATHS[arguments.purpose]
    with TemporaryDirectory(prefix="hellos-") as folder, ending_clusters(Path(folder)) as clusters:
        figures = run(formed(clusters, Path(folder)), kinds, arguments.count, path)
    sys.stdout.write(json.dumps({kind: each._asdict() for kind, each in figures.items()}, indent=2) + "\n")
    return (
        1 if any(each.grown_bytes[1] > GROWTH_BYTES or each.longest_turn_s > TURN_S for each in figures.values()) else 0
    )


if __name__ == "__main__":
    sys.exit(main())
