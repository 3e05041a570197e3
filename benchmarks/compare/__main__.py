"""Quire beside etcd, NATS and Kafka: three durable nodes of each on this machine, the same work in alternating slices.

    make bench [BENCH=quick]
    python -m benchmarks.compare [--quick] [--systems quire,etcd] [--rows TEXT ...] [--json]

All systems run at the same time, on the same disk, and one at a time is under load; the page says what the others take
meanwhile. One load generator, benchmarks/load, drives all of them. Compare only within one run: a machine's speed
changes. In quire's machine `kv` and in etcd, a value is a put to one of 1,000 keys; in NATS, a message of a stream; in
Kafka, a record of a topic with one partition. At the end, each but Kafka loses its leader (`failovers.py`).
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from rich.console import Console

from . import cutting, failovers
from .report import Result, page
from .slices import QUICK_ROWS, ROWS, Row, idle_percent, take_turns
from .systems import Etcd, Kafka, Nats, Quire, System, SystemFailed

CACHE = Path(".cache")
LOAD = CACHE / "bin/load"
SETTLE_S = 3.0
IDLE_S = 5.0


class Pace(NamedTuple):
    """The rows, and the slices of each."""

    rows: Sequence[Row]
    slices: int
    seconds: float
    failovers: int
    """How often each system loses its leader in each way."""


QUICK = Pace(QUICK_ROWS, 4, 1.0, 3)
FULL = Pace(ROWS, 10, 2.0, 10)


PROGRAMS = ((Etcd, "bin/etcd"), (Nats, "bin/nats-server"), (Kafka, "kafka"))
NAMES = [Quire.name, *(kind.name for kind, _ in PROGRAMS)]


def _systems(folder: Path, names: Sequence[str]) -> Iterator[System]:
    """The systems of these names whose programs are there, each with a folder."""
    for name in names:
        (folder / name).mkdir()
    if Quire.name in names:
        yield Quire(folder / Quire.name)
    for kind, program in PROGRAMS:
        if kind.name in names:
            yield kind(CACHE.absolute() / program, folder / kind.name)


async def compare(folder: Path, names: Sequence[str], pace: Pace, told: Console) -> tuple[str, list[Result]]:
    """The page, and the results that are in its table. The nodes' data is below `folder`."""
    systems = list(_systems(folder, names))
    async with AsyncExitStack() as stack:
        stack.callback(cutting.remove)
        for system in systems:
            stack.push_async_callback(system.stop)
            await system.start()
        await asyncio.sleep(SETTLE_S)
        psutil.cpu_percent()  # From here.
        shares = await asyncio.gather(*(idle_percent(system, IDLE_S) for system in systems))
        idle = {system.name: share for system, share in zip(systems, shares, strict=True)}
        others = max(0.0, psutil.cpu_percent() * (os.cpu_count() or 1) - sum(shares))
        results: list[Result] = []
        for number, row in enumerate(pace.rows, 1):
            taken = await take_turns(LOAD, row, systems, pace.slices, pace.seconds)
            results.append(Result(row, taken))
            told.print(f"{number} of {len(pace.rows)}: {row.name}", highlight=False)
        text = page(systems, idle, others, results, folder)
        if pace.failovers:
            losing = [system for system in systems if not isinstance(system, Kafka)]
            lost = await failovers.lose_leaders(LOAD, losing, pace.failovers, told)
            text = "\n".join([text, "", *failovers.lines_of(lost)])
        return text, results


def main() -> None:
    """Compare, and print the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and slices, in a quarter of an hour")
    parser.add_argument("--systems", default=",".join(NAMES), help="some of %(default)s")
    parser.add_argument("--rows", nargs="+", default=[""], metavar="TEXT", help="only rows whose name has such a text")
    parser.add_argument("--json", action="store_true", help="print the slices as JSON")
    arguments = parser.parse_args()
    pace = QUICK if arguments.quick else FULL
    if not any(text in failovers.NAME for text in arguments.rows):
        pace = pace._replace(failovers=0)
    rows = [row for row in pace.rows if any(text in row.name for text in arguments.rows)]
    if not rows and not pace.failovers:
        parser.error(f"--rows: no row's name has {' or '.join(arguments.rows)}")
    told = Console(stderr=True)
    names = arguments.systems.split(",")
    if unknown := set(names).difference(NAMES):
        parser.error(f"--systems: there is no {' or '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    missing = [kind.name for kind, program in PROGRAMS if kind.name in names and not (CACHE / program).exists()]
    if missing:
        told.print(f"Not there, so left out: {', '.join(missing)}. Run make bench, which gets them.")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        here = [name for name in names if name not in missing]
        try:
            text, results = uvloop.run(compare(Path(folder).absolute(), here, pace._replace(rows=rows), told))
        except SystemFailed as error:
            sys.exit(str(error))
    print(json.dumps([result.document() for result in results], indent=2) if arguments.json else text)


if __name__ == "__main__":
    main()
