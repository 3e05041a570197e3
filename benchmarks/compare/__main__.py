"""Quire beside etcd, NATS and Kafka: three durable nodes of each on this machine, the same work in alternating slices.

    make bench [BENCH=quick]
    python -m benchmarks.compare [--quick] [--systems quire,etcd] [--rows TEXT ...] [--json]

All systems run at the same time, on the same disk, and one of them is under load at a time; what the idle ones take is on
the page. One load generator, benchmarks/load, drives all of them. Compare only within one run: a machine's speed changes.
Of the machine `kv` and of etcd, a value is a put to one of 1,000 keys; of NATS, a message of a stream; of Kafka, a
record of a topic with one partition.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console

from ..write_path import Cluster, Figure
from .report import Result, page
from .slices import QUICK_ROWS, ROWS, Row, idle_percent, take_turns
from .systems import Etcd, Nats, Quire, System, SystemFailed

CACHE = Path(".cache")
LOAD = CACHE / "bin/load"
SETTLE_S = 3.0
IDLE_S = 5.0


class Pace(NamedTuple):
    """The rows, and the slices of each."""

    rows: Sequence[Row]
    slices: int
    seconds: float


QUICK = Pace(QUICK_ROWS, 5, 1.0)
FULL = Pace(ROWS, 10, 2.0)


def _systems(folder: Path, names: Sequence[str]) -> Iterator[System]:
    """The systems of these names whose programs are there, each with a folder."""
    for kind, program in ((Quire, None), (Etcd, "etcd"), (Nats, "nats-server")):
        own = folder / kind.name
        if kind.name in names:
            own.mkdir()
            yield Quire(own) if program is None else kind(CACHE.absolute() / "bin" / program, own)
