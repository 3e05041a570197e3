"""Workers that share a log: each consumes its share, notes what it was given, and commits. They and leaders are killed.

A worker's notes are lines of text: the index of each record that it was given, and a line `committed INDEX` once a
commit returned. A note may be lost with a killed worker, and so a delivery may count less often than it took place.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import quire
from tests.processes.cluster import DEADLINE_S, Cluster, ending_clusters, environment
from tests.processes.load import Load, running_load, unique_commands

NAME, WORKERS = "mail", 4
WORKER_KILLS, LEADER_KILLS, IDLE_S = 10, 5, 60
FLAGS = ("--election-timeout-ms", "1000")
ON_THE_WAY = 200  # How many records a worker notes between two kills.
COMMITTED = "committed"
POLL_MS = 1_000


class Wrong(AssertionError):
    """What the workers were given, or where their cursors were, is not what it must be."""


class Workers:
    """One process for each share, and where its cursor was seen."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._notes = [folder / f"worker-{shard}" for shard in range(WORKERS)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * WORKERS
        self._seen: dict[str, int] = {}
        self._client = quire.connect_sync(cluster.servers, timeout_s=DEADLINE_S)
        for note in self._notes:
            note.touch()

    def __enter__(self) -> Self:
        self._client.__enter__()
        for shard in range(WORKERS):
            self.start(shard)
        return self

    def __exit__(self, *ended: object) -> None:
        for shard in range(WORKERS):
            self.kill(shard)
        self._client.__exit__(None, None, None)

    def start(self, shard: int) -> None:
        """Start the worker of a share, with a new token."""
        command = [sys.executable, "-m", "tests.processes.workers", "--work", str(shard), str(self._notes[shard])]
        self._processes[shard] = subprocess.Popen([*command, self._cluster.servers], env=environment())

    def kill(self, shard: int) -> None:
        """SIGKILL to a worker."""
        process, self._processes[shard] = self._processes[shard], None
        if process is not None:
            process.kill()
            process.wait(DEADLINE_S)

    def kill_before_a_commit(self, shard: int) -> None:
        """SIGKILL to a worker that was given a batch and has not noted its commit."""

        def is_between() -> bool:
            with self._notes[shard].open("rb") as notes:
                notes.seek(max(0, notes.seek(0, os.SEEK_END) - len(COMMITTED) - 24))
                last = notes.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
            return bool(last) and not last.startswith(COMMITTED.encode())

        self._cluster.wait_until(f"worker {shard} is before a commit", is_between)
        self.kill(shard)

    def noted(self, shard: int) -> list[int]:
        """The indices that the workers of a share were given, in the order in which they were."""
        lines = self._notes[shard].read_text().split("\n")[:-1]  # The last one may be half written.
        return [int(line) for line in lines if not line.startswith(COMMITTED)]

    def wait_for_more(self, records: int = ON_THE_WAY) -> None:
        """Return when every share was given so many records more."""
        goals = [len(self.noted(shard)) + records for shard in range(WORKERS)]

        def went_on() -> bool:
            self.look()
            for shard, process in enumerate(self._processes):
                if process is not None and process.poll() is not None:
                    raise Wrong(f"worker {shard} ended with {process.returncode}")
            return all(len(self.noted(shard)) >= goal for shard, goal in enumerate(goals))

        self._cluster.wait_until(f"every share is given {records} records more", went_on)

    def look(self) -> None:
        """Check that no cursor went back since it was last seen. Raises Wrong."""
        for row in self._client.cursors.all(NAME):
            before = self._seen.get(row["name"], 0)
            if row["index"] < before:
                raise Wrong(f"the cursor {row['name']} was at {before}, and is at {row['index']}")
            self._seen[row["name"]] = row["index"]

    def wait_until_level(self) -> None:
        """Return when every cursor's lag is 0."""

        def are_level() -> bool:
            self.look()
            return all(row["lag"] == {"records": 0, "seconds": 0.0} for row in self._client.cursors.all(NAME))

        self._cluster.wait_until("all cursors are level", are_level)

    def check(self) -> dict[str, int]:
        """Every record was given to its share at least once, and nothing before what its cursor said. The figures."""
        records = [record.index for record in self._client.read_range()]
        deliveries = Counter[int]()
        for shard in range(WORKERS):
            lines = self._notes[shard].read_text().split("\n")[:-1]
            committed = 0
            for line in lines:
                if line.startswith(COMMITTED):
                    index = int(line.split()[1])
                    if index < committed:
                        raise Wrong(f"share {shard} committed {committed}, and then {index}")
                    committed = index
                elif int(line) < committed or int(line) % WORKERS != shard:
                    raise Wrong(f"share {shard} committed {committed}, and was given {line} then")
            deliveries.update(self.noted(shard))
        if missing := set(records) - set(deliveries):
            raise Wrong(f"{len(missing)} of {len(records)} records were given to nobody, as that at {min(missing)}")
        return {
            "records": len(records),
            "deliveries": deliveries.total(),
            "delivered_again": sum(count > 1 for count in deliveries.values()),
            "most_often": max(deliveries.values()),
        }

    def stay_idle(self, seconds: int) -> None:
        """Check that nothing at all is added to the log in that time. Raises Wrong."""
        leader = self._cluster.elected()
        end = int(leader.get("/index_bounds?consistency=linearizable")["highest_index"])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            reply = leader.call("GET", f"/records?from={end}&kinds=all&wait_ms={POLL_MS}")
            if reply.status != 200 or reply.body:
                raise Wrong(f"the log grew after {end}: {reply.status} {reply.body[:200]!r}")


def work(shard: int, notes: Path, servers: str) -> None:
    """Consume a share until killed."""
    with notes.open("a") as noted, quire.connect_sync(servers, timeout_s=DEADLINE_S) as cluster:
        while True:
            with suppress(quire.CursorTaken):  # By what the worker before it sent, and was still on its way.
                for batch in cluster.consume(NAME, shard=(shard, WORKERS)):
                    for record in batch.records:
                        noted.write(f"{record.index}\n")
                        noted.flush()
                        os.fsync(noted.fileno())  # A delivery takes its time, and a worker may be killed in it.
                    batch.commit()
                    noted.write(f"{COMMITTED} {batch.next_index}\n")
                    noted.flush()


def kill_a_leader(cluster: Cluster, workers: Workers, load: Load) -> None:
    """Kill the leader; all go on without it; start it again."""
    killed = cluster.elected()
    killed.kill()
    load.wait_for_more(cluster, ON_THE_WAY)
    workers.wait_for_more()
    cluster.start_again(killed)


def run(cluster: Cluster, folder: Path, worker_kills: int, leader_kills: int, idle_s: int) -> dict[str, int]:
    """Kill workers and leaders, one after the other, while clients write; check; the figures."""
    kills = ["worker"] * worker_kills + ["leader"] * leader_kills
    chance = random.Random(worker_kills)
    chance.shuffle(kills)
    with Workers(cluster, folder) as workers:
        with running_load(cluster, commands_of=unique_commands, batch=20) as load:
            for kill in kills:
                workers.wait_for_more()
                if kill == "leader":
                    kill_a_leader(cluster, workers, load)
                else:
                    shard = chance.randrange(WORKERS)
                    workers.kill_before_a_commit(shard)
                    workers.start(shard)
            workers.wait_for_more()
        workers.wait_until_level()
        workers.stay_idle(idle_s)
        return workers.check()


def main() -> int:
    """`python -m tests.processes.workers`: the full size."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.workers", description=__doc__)
    parser.add_argument("--worker-kills", type=int, default=WORKER_KILLS)
    parser.add_argument("--leader-kills", type=int, default=LEADER_KILLS)
    parser.add_argument("--idle-s", type=int, default=IDLE_S, help="for how long the log must not grow at the end")
    parser.add_argument("--work", nargs=3, metavar=("SHARD", "NOTES", "SERVERS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        shard, notes, servers = arguments.work
        work(int(shard), Path(notes), servers)
        return 0
    sizes = arguments.worker_kills, arguments.leader_kills, arguments.idle_s
    began = time.monotonic()
    with TemporaryDirectory(prefix="workers-") as folder, ending_clusters(Path(folder)) as clusters:
        figures = run(clusters.formed(flags=FLAGS), Path(folder), *sizes)
    sys.stdout.write(json.dumps({**figures, "seconds": round(time.monotonic() - began)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
