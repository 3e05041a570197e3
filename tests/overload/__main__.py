"""Run a hostile client's hour, or an overload; print the figures and what is wrong.

python -m tests.overload hostile --minutes 60 --seed 1                    all kinds at once
python -m tests.overload hostile --minutes 1 --only answers --only takers   these
python -m tests.overload load --minutes 5                                 four times what the leader can take
python -m tests.overload mutated --messages 200000                        mutated messages of a peer and of clients
python -m tests.overload reads --minutes 2 --callers 200                  many callers of the longest answers at once
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.overload import asking, hour, mutated, overload
from tests.overload.hostile import TASKS
from tests.overload.hour import CLIENTS
from tests.overload.pressing import COMMANDS
from tests.processes.cluster import Clusters

FLAGS = ("--machine", "kv", "--election-timeout-ms", "1000", "--retention-bytes", str(1 << 30))
SHOWN = 5
MEMORY = "/dev/shm"
PEAK_BYTES = 640 << 20
"""Of a node under every kind at once: what may be held by the limits of docs/limits.md, and what Python keeps."""


def load_of(minutes: float, commands: int) -> overload.Load:
    """The overload of so many minutes: the bounds of a machine that does nothing else."""
    return overload.Load(
        peak_s=30,
        pressed_s=60 * minutes,
        slice_s=10,
        peak_connections=512 if commands <= COMMANDS else 8,
        connections=2048,
        kept_share=0.9,
        p99_s=5,
        growth_bytes=32 << 20,
        commands=commands,
    )


def in_memory() -> str | None:
    """A folder whose disk never hangs: one that hangs for an election timeout deposes a leader, rightly."""
    return MEMORY if Path(MEMORY).is_dir() and shutil.disk_usage(MEMORY).free > 8 << 30 else None


def longest_of(lines: list[str]) -> dict[str, Any]:
    """How many long turns there were, and the longest of them with what ran."""
    by_length = sorted(lines, key=lambda line: -int(line.partition("cpu_ms=")[2].split()[0]))
    return {"count": len(lines), "longest": [line.partition("cpu_ms=")[2] for line in by_length[:SHOWN]]}


def main() -> int:
    """0 if nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("hostile", "load", "mutated", "reads"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--messages", type=int, default=200_000, help="of mutated ones, half from a peer")
    parser.add_argument("--seed", type=int, default=1, help="of the hostile client and of the well-behaved ones")
    parser.add_argument("--only", action="append", choices=sorted(TASKS), help="a kind of hostility; by default, all")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="well-behaved ones")
    parser.add_argument("--commands", type=int, default=COMMANDS, help="of the load, in each request")
    parser.add_argument("--callers", type=int, default=200, help="of the longest answers, at once")
    parser.add_argument("--folder", default=in_memory(), help="of the nodes; by default in memory where 8 GiB are free")
    arguments = parser.parse_args()
    figures: dict[str, Any]
    wrong: list[str]
    folder = TemporaryDirectory(prefix="overload-", dir=arguments.folder)
    with folder, closing(Clusters(Path(folder.name))) as clusters:
        mutates = arguments.what == "mutated"
        cluster = mutated.formed(clusters, Path(folder.name)) if mutates else clusters.formed(flags=FLAGS)
        if mutates:
            figures, wrong = mutated.run(cluster, arguments.messages, arguments.seed)
        elif arguments.what == "load":
            figures, wrong = overload.run(cluster, load_of(arguments.minutes, arguments.commands))
        elif arguments.what == "reads":
            seconds = 60 * arguments.minutes / len(asking.LONGEST_PATHS)
            figures, wrong = asking.run(cluster, arguments.callers, seconds)
        else:
            kinds = tuple(arguments.only or sorted(TASKS))
            plan = hour.Plan(60 * arguments.minutes, arguments.seed, kinds, arguments.clients, PEAK_BYTES)
            figures, wrong = hour.run(cluster, plan)
        figures["long_turns"] = {node.node_id: longest_of(node.long_turns()) for node in cluster}
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    for what in wrong:
        sys.stdout.write(f"BROKEN: {what}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
