"""Backup, verify and restore beside a bare copy, and what a writer feels: `python -m benchmarks.backup`.

Three nodes on this machine, whose log is filled with records of 1 KiB. Each command runs as its own process; its
processor time and its largest memory are those that the kernel counted. The bare copy is `cp` of the backup's frames,
synced. The writer sends one command after the other, before and while a follower is backed up.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import quire
from quire.cluster.client import Client, connect

MIB = 1 << 20
SIZES_MIB = (256, 1024)
RECORD_BYTES, BATCH = 1024, 200
PORTS = (7701, 7702, 7703)
BEFORE_S = 10.0
QUIRE = (sys.executable, "-m", "quire.cluster.cli.main")


class Ran(NamedTuple):
    """A command that ran: wall and processor time in seconds, its largest memory in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(command: Sequence[str]) -> Ran:
    """Run a command to its end. Raises RuntimeError if it fails."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(command)} failed")
    return Ran(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@contextmanager
def nodes(folder: Path) -> Generator[str]:
    """Three nodes; their addresses."""
    members = ",".join(f"n{number}=127.0.0.1:{port}" for number, port in enumerate(PORTS, 1))
    started = []
    for number, port in enumerate(PORTS, 1):
        own = ["--node", f"n{number}", "--listen", f"127.0.0.1:{port}", "--data-dir", str(folder / f"n{number}")]
        with (folder / f"n{number}.log").open("wb") as output:
            arguments = [*QUIRE, "serve", *own, "--members", members, "--machine", "log"]
            started.append(subprocess.Popen(arguments, stdout=output, stderr=output))
    try:
        yield ",".join(f"127.0.0.1:{port}" for port in PORTS)
    finally:
        for process in started:
            process.kill()
            process.wait()


async def fill(client: Client, size: int) -> None:
    """Append records until the log has grown to this size."""
    await client.apply(b"first")  # Waits until the cluster is formed.
    while (await client.status())["log_bytes"] < size:
        batch = [os.urandom(RECORD_BYTES)] * BATCH
        await asyncio.gather(*(client.apply_batch(batch) for _ in range(32)))


async def latencies(client: Client, until: asyncio.Event) -> list[float]:
    """Milliseconds of one command after the other."""
    taken: list[float] = []
    while not until.is_set():
        began = time.perf_counter()
        await client.apply(b"x")
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def told(taken: list[float]) -> str:
    """The median and the 99th percentile of latencies."""
    parts = statistics.quantiles(taken, n=100)
    return f"p50 {parts[49]:.2f} ms, p99 {parts[98]:.2f} ms of {len(taken):,} commands"


async def felt(servers: str, backup: Sequence[str]) -> tuple[Ran, str, str]:
    """Back up while a writer writes; return what the backup took, and what the writer felt before and meanwhile."""
    async with connect(servers) as client:
        before, during = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(BEFORE_S, before.set)
        first = await latencies(client, before)
        ran = asyncio.create_task(asyncio.to_thread(run, backup))
        ran.add_done_callback(lambda _: during.set())
        second = await latencies(client, during)
        return await ran, told(first), told(second)


def row(name: str, ran: Ran, size: int) -> None:
    """Print a line of the table."""
    rate = size / MIB / ran.wall_s
    print(f"{name:28} {rate:8.0f} MiB/s  {ran.cpu_s:6.1f} s of processor time  {ran.peak_mib:6.0f} MiB at most")


async def grow(servers: str, size: int) -> None:
    """Fill the log."""
    async with connect(servers) as client:
        await fill(client, size)


def measure(folder: Path, servers: str, size: int, to: Path) -> None:
    """One size: grow the log, then run each command once; backups are written to `to`."""
    asyncio.run(grow(servers, size))
    backup, again, copy, restored = to / "backup", to / "again", folder / "copy", folder / "restored"
    for old in (backup, copy, restored):
        shutil.rmtree(old, ignore_errors=True)
    ran, before, during = asyncio.run(felt(servers, [*QUIRE, "backup", str(backup), "--server", servers]))
    held = sum(path.stat().st_size for path in (backup / "frames").iterdir())
    print(f"\n{held / MIB:,.0f} MiB of frames")
    row("backup, beside the writer", ran, held)
    row("backup, alone", run([*QUIRE, "backup", str(again), "--server", servers]), held)
    shutil.rmtree(again)
    row("verify", run([*QUIRE, "backup", "verify", str(backup)]), held)
    row("restore", run([*QUIRE, "restore", str(backup), "--data-dir", str(restored), "--new-history"]), held)
    row("bare copy", run(["sh", "-c", f"cp -r {backup}/frames {copy} && sync -f {copy}"]), held)
    print(f"writer before: {before}\nwriter meanwhile: {during}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backup", description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=list(SIZES_MIB), help="sizes of the log, ascending")
    parser.add_argument(
        "--to", type=Path, help="an empty folder for the backups, as of another disk; default: the nodes'"
    )
    arguments = parser.parse_args()
    print(f"quire {quire.__version__}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder, nodes(Path(folder)) as servers:
        for size in arguments.mib:
            measure(Path(folder), servers, size * MIB, arguments.to or Path(folder))


if __name__ == "__main__":
    main()
