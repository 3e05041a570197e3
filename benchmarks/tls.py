"""What TLS and tokens cost on the write path: a plain cluster and one with both, in alternating slices of one run.

    python -m benchmarks.tls [--slices 12] [--seconds 1] [--load alone,64,500,batch] [--json]

Each side is three nodes with default settings; both are under the same load, which this process generates. The figures
are medians of the slices, and the last column is the median of the slices' ratios: a machine's speed changes during a
run.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console

from quire.cluster.access.certificates import make_ca, make_node
from quire.cluster.access.client_credentials import ClientCredentials
from quire.cluster.access.roles import Role
from quire.cluster.access.tokens import add_token
from quire.cluster.client import connect
from quire.cluster.demo.nodes import NODE_IDS, DemoNodes

from .paired import LOADS, Pair, alternate, table
from .write_path import Cluster

READY_TIMEOUT_S = 60.0


class Loaded(NamedTuple):
    """A cluster, as a side of the comparison."""

    cluster: Cluster

    async def measure(self, load: str) -> dict[str, float]:
        figure = await self.cluster.streams(load, "", *LOADS[load])
        return {"commands/s": figure.rate, "leader us": figure.cpu_us["leader"], "follower us": figure.follower_us}


async def compare(
    plain_folder: Path, tls_folder: Path, loads: Sequence[str], slices: int, seconds: float
) -> list[Pair]:
    """The figures of each load: commands per second, and processor microseconds per command."""
    async with running(plain_folder, None, seconds) as plain, running(tls_folder, "benchmark", seconds) as tls:
        pairs = [await alternate(Loaded(plain), Loaded(tls), load, slices) for load in loads]
    return [pair for of_load in pairs for pair in of_load]


@asynccontextmanager
async def running(folder: Path, cluster: str | None, seconds: float) -> AsyncGenerator[Cluster]:
    """Three nodes that are ready; with a cluster's name they have certificates and tokens."""
    token, ca, flags = (None, None, None) if cluster is None else _locked(folder, cluster)
    nodes = DemoNodes(folder, flags=flags)
    try:
        await nodes.start()
        async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S, token=token, ca=ca) as client:
            await asyncio.gather(*map(client.ready, nodes.addresses.values()))
            leader = str((await client.status())["leader"])
        yield Cluster(nodes, leader, seconds, ClientCredentials(token, ca).shown())
    finally:
        await nodes.stop()


def _locked(folder: Path, cluster: str) -> tuple[str, Path, dict[str, list[str]]]:
    """A token that may write, the CA, and each node's flags."""
    certs, tokens = folder / "certs", folder / "tokens"
    make_ca(certs, cluster)
    for node_id in NODE_IDS:
        make_node(certs, node_id)
    token = add_token(tokens, "benchmark", Role.WRITE, None)
    ca = certs / "ca.crt"
    flags = {
        node_id: [
            *("--tls-cert", str(certs / f"{node_id}.crt"), "--tls-key", str(certs / f"{node_id}.key")),
            *("--tls-ca", str(ca), "--tokens", str(tokens)),
        ]
        for node_id in NODE_IDS
    }
    return token, ca, flags


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slices", type=int, default=12, help="of each side and load")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a slice")
    parser.add_argument("--load", default=",".join(LOADS), help="some of %(default)s")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as tls:
        loads = arguments.load.split(",")
        pairs = uvloop.run(compare(Path(plain), Path(tls), loads, arguments.slices, arguments.seconds))
    if arguments.json:
        print(json.dumps([pair._asdict() for pair in pairs], indent=2))
    else:
        Console().print(table(pairs, "plain", "TLS and tokens"))


if __name__ == "__main__":
    main()
