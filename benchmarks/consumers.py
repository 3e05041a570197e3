"""How fast consumers read a log that is there, beside `tail`: `python -m benchmarks.consumers`, in a checkout.

Three real nodes have the records. A run reads all of them: by `tail`, by one consumer, or by four that share them; each
reader is a process, and a consumer commits every batch. Runs take turns, so that whatever else the machine does slows
down all alike; the figures are medians, and ratios to `tail`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from pathlib import Path

import quire
from tests.processes.cluster import Cluster

RECORDS, BATCH, VALUE = 400_000, 2_000, "x" * 100
ROUNDS = 5
SHARES = 4


def main() -> None:
    """Print a table of readers, their records a second and their processor time a record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consumers", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(SHARES) as readers:
        cluster = Cluster(Path(folder), flags=["--machine", "log"])
        try:
            cluster.start()
            asyncio.run(fill(cluster.servers, arguments.records))
            measure(cluster, readers, arguments.records, arguments.rounds)
        finally:
            cluster.close()


async def fill(servers: str, records: int) -> None:
    """Append the records."""
    async with quire.connect(servers) as client:
        for _ in range(records // BATCH):
            await client.append_batch([VALUE] * BATCH)


def measure(cluster: Cluster, readers: ProcessPoolExecutor, records: int, rounds: int) -> None:
    """Let all readers take turns; print what they did."""
    leader = cluster.leader.running.pid
    kinds: dict[str, list[tuple[int, int] | None]] = {
        "tail": [None],
        "one consumer": [(0, 1)],
        f"{SHARES} consumers": [(shard, SHARES) for shard in range(SHARES)],
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):  # The first one warms up.
        for kind, shards in kinds.items():
            began, before = time.monotonic(), processor_s(leader)
            name = f"{kind.replace(' ', '-')}-{number}"
            reading = [readers.submit(read, cluster.servers, name, records, shard) for shard in shards]
            counts = [each.result() for each in reading]
            took_s = time.monotonic() - began
            if sum(counts) != records:
                raise SystemExit(f"{kind} read {counts}, which are not {records} records")
            if number:
                rates[kind].append(records / took_s)
                spent[kind].append((processor_s(leader) - before) / records * 1_000_000)
    base = statistics.median(rates["tail"])
    sys.stdout.write(f"{'':14} {'records/s':>10} {'x tail':>7} {'leader us a record':>19}\n")
    for kind, found in rates.items():
        rate = statistics.median(found)
        sys.stdout.write(f"{kind:14} {rate:10,.0f} {rate / base:7.2f} {statistics.median(spent[kind]):19.2f}\n")


def processor_s(pid: int) -> float:
    """The processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(servers: str, name: str, records: int, shard: tuple[int, int] | None) -> int:
    """Read all records of a share, or of the log for None; return how many there were."""
    return asyncio.run(_tailed(servers, records) if shard is None else _consumed(servers, name, shard))


async def _tailed(servers: str, records: int) -> int:
    count = 0
    async with quire.connect(servers) as client, aclosing(client.pages.tail(0)) as pages:
        async for page in pages:
            count += len(page)
            if count == records:
                break
    return count


async def _consumed(servers: str, name: str, shard: tuple[int, int]) -> int:
    count = 0
    async with quire.connect(servers) as client:
        until = (await client.bounds()).highest_index
        async for batch in client.consume(name, shard=None if shard == (0, 1) else shard, until=until):
            count += len(batch.records)
            await batch.commit()
    return count


if __name__ == "__main__":
    main()
