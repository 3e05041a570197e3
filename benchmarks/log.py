"""The log's speed, compared with laminarmq's in the same run.

    python benchmarks/log.py [--laminarmq PROGRAM] [--values 10000,1000000] [--sizes 12,140,...] [--folder DIR]

The workloads are laminarmq's: values of 12 to 11,760 bytes, segments of 10 MB, no flushes; append all values, then read
them in order. `--laminarmq` names the program of benchmarks/laminarmq (see its Cargo.toml); without it, the published
medians are printed below the table. Workloads of more than `--most-bytes` are skipped. Since other work on the machine
distorts the figures, the passes alternate, and the best one counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from quire.log import FLUSH_NEVER, FileDirectory, Log, LogOptions

SIZES = (12, 140, 560, 1120, 2940, 11760)
VALUES = (10_000, 1_000_000)
SEGMENT_BYTES = 10_000_000
BATCH = 100
FLUSHES = 200
FLUSH_BYTES = 1 << 20
RANDOM_READS = 20_000
PASSES = 6
# 10,000 values of 1,120 bytes: 68 to 100 ms to append, 116 to 292 ms to read, by laminarmq's README.
PUBLISHED = "10,000 x 1,120 B on an i5-7200U (published): append 100,000-147,000/s, read 34,000-86,000/s"


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


@contextmanager
def new_log(folder: Path, options: LogOptions) -> Generator[Log]:
    """Yield a log in a new folder, and remove it."""
    place = tempfile.mkdtemp(dir=folder)
    log = open_log(place, options)
    try:
        yield log
    finally:
        log.remove()
        shutil.rmtree(place)


def open_log(place: str | Path, options: LogOptions) -> Log:
    """Open a standalone log."""
    return Log.open(
        FileDirectory(place),
        options,
        cluster_id=bytes(16),
        clock=lambda: time.time_ns() // 1000,
        standalone=True,
    )


def rate(count: int, seconds: float) -> str:
    """Return a number per second as text, rounded."""
    each = count / seconds
    return f"{round(each, -3):,.0f}" if each >= 10_000 else f"{each:,.0f}"


def workload(folder: Path, size: int, values: int, batch: int, now: Clock) -> tuple[float, float]:
    """Return the seconds to append and to read `values` values of `size` bytes in frames of `batch`."""
    # A string and its msgpack head take `size` bytes in the frame.
    frame = ["x" * (size - (1 if size < 33 else 2 if size < 258 else 3))] * batch
    options = LogOptions(segment_bytes=SEGMENT_BYTES, index_bytes=SEGMENT_BYTES, flush_policy=FLUSH_NEVER)
    with new_log(folder, options) as log:
        start = now()
        for _ in range(values // batch):
            log.append(frame)
        appended = now()
        read = sum(frame.header.count for frame in log.reader.stream_unbounded())
        done = now()
        if read != values:
            raise ValueError(f"{read} of {values} values were read")
        return appended - start, done - appended


def laminarmq(program: str, folder: Path, size: int, values: int, now: Clock) -> tuple[float, float, int]:
    """Return laminarmq's seconds for the same workload, and how many values it read."""
    done = subprocess.run([program, str(folder), f"{size}x{values}"], check=True, capture_output=True, text=True)
    _, _, append, read, append_cpu, read_cpu, count = done.stdout.split()
    if now is time.process_time:
        append, read = append_cpu, read_cpu
    return float(append), float(read), int(count)


def best(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the fewest seconds of several runs: other work on the machine can only add to them."""
    return min(append for append, _ in runs), min(read for _, read in runs)


def workloads(
    folder: Path, program: str | None, sizes: list[int], counts: list[int], most_bytes: int, passes: int, now: Clock
) -> None:
    """Print the table of the workloads."""
    print(
        "| value bytes | values | append, frames of 1 | of 100 | laminarmq | read, frames of 1 | of 100 | laminarmq |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for values in counts:
        for size in sizes:
            if size * values > most_bytes:
                continue
            singles: list[tuple[float, float]] = []
            batches: list[tuple[float, float]] = []
            others: list[tuple[float, float, int]] = []
            for _ in range(passes):
                # Alternating, so that all see the same machine.
                singles.append(workload(folder, size, values, 1, now))
                batches.append(workload(folder, size, values, BATCH, now))
                if program is not None:
                    others.append(laminarmq(program, folder, size, values, now))
            single, batched, append, read = best(singles), best(batches), "-", "-"
            if others:
                other, count = best([run[:2] for run in others]), others[0][2]
                missing = "" if count == values else f" ({count - values:+,})"
                append, read = rate(values, other[0]), rate(count, other[1]) + missing
            cells = [rate(values, single[0]), rate(values, batched[0]), append]
            cells += [rate(values, single[1]), rate(values, batched[1]), read]
            print(f"| {size:,} | {values:,} | {' | '.join(cells)} |", flush=True)
    left_out = f"Workloads above {most_bytes:,} bytes are skipped."
    print(f"\nRecords a second. {left_out}" + ("" if program else f" laminarmq was not run here. {PUBLISHED}."))


def flush_always(folder: Path) -> None:
    """Print how the log's flushes compare with a bare loop of the same writes."""
    raw = os.urandom(FLUSH_BYTES)
    descriptor = os.open(folder / "bare", os.O_CREAT | os.O_RDWR)
    total = FLUSHES * FLUSH_BYTES
    os.posix_fallocate(descriptor, 0, total)
    bare: list[float] = []
    through: list[float] = []
    with new_log(folder, LogOptions(segment_bytes=2 * total)) as log:
        for k in range(FLUSHES):
            # Alternating, so that both see the same device; the median, because its latency varies.
            start = time.perf_counter()
            os.pwrite(descriptor, raw, k * FLUSH_BYTES)
            os.fdatasync(descriptor)
            between = time.perf_counter()
            log.append([raw])
            log.flush()
            through.append(time.perf_counter() - between)
            bare.append(between - start)
    os.close(descriptor)
    os.unlink(folder / "bare")
    ours, theirs = statistics.median(through), statistics.median(bare)
    rates = f"{FLUSH_BYTES / ours / 1e6:,.0f} MB/s", f"{FLUSH_BYTES / theirs / 1e6:,.0f} MB/s"
    share = f"{100 * theirs / ours:.0f}%"
    text = f"{rates[0]}: {share} of a bare loop of write and fdatasync, {rates[1]} (wall, medians)"
    print(f"| flush `always`, 1 MiB waiting | {text} |", flush=True)


def random_reads(folder: Path, segments: int, now: Clock) -> None:
    """Print the cost of a random read in a log of that many segments, and the time to open it."""
    place = tempfile.mkdtemp(dir=folder)
    options = LogOptions(segment_bytes=50_000, cached_indexes=None)
    large = LogOptions()
    log = open_log(place, large if segments == 1 else options)
    values = 240 * max(segments, 100)
    for _ in range(values):
        log.append(["x" * 138])
    log.flush()
    found = len(log.segments.bases)
    chosen = random.Random(1)
    indexes = [chosen.randrange(values) for _ in range(RANDOM_READS)]
    passes: list[float] = []
    for _ in range(PASSES):
        start = now()
        for index in indexes:
            log.read(index)
        passes.append(now() - start)
    each = min(passes) / RANDOM_READS * 1e6
    log.close()
    start = now()
    open_log(place, LogOptions()).close()
    opening = (now() - start) * 1e3
    shutil.rmtree(place)
    print(f"| random read of 140 B, {found:,} segments | {each:.1f} us |")
    print(f"| clean open and close, {found:,} segments | {opening:.0f} ms |", flush=True)


def growth(folder: Path) -> None:
    """Print the cost of an append as the log grows."""
    costs: list[float] = []
    options = LogOptions(segment_bytes=1_000_000, flush_policy=FLUSH_NEVER)
    with new_log(folder, options) as log:
        for _ in range(10):
            start = time.process_time()
            for _ in range(50_000):
                log.append(["x" * 138])
            costs.append((time.process_time() - start) / 50_000 * 1e6)
        segments = len(log.segments.bases)
    shown = ", ".join(f"{cost:.1f}" for cost in costs)
    print(f"| CPU us per append of 140 B, each tenth of 500,000, {segments} segments | {shown} |", flush=True)


def main() -> None:
    """Run all benchmarks and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laminarmq", metavar="PROGRAM", help="benchmarks/laminarmq, built")
    parser.add_argument("--values", default=",".join(map(str, VALUES)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--most-bytes", type=int, default=1 << 30, help="skip larger workloads")
    parser.add_argument("--passes", type=int, default=3, help="passes of each workload; the best one counts")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time of all threads, for a busy machine"
    )
    parser.add_argument(
        "--folder", type=Path, help="parent of the logs' folder; default: the system's temporary folder"
    )
    chosen = parser.parse_args()
    now = CLOCKS[chosen.clock]
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    sizes, counts = [[int(part) for part in text.split(",")] for text in (chosen.sizes, chosen.values)]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; {chosen.clock} time\n")
    try:
        workloads(folder, chosen.laminarmq, sizes, counts, chosen.most_bytes, chosen.passes, now)
        print("\n| | |\n|---|---|")
        flush_always(folder)
        for segments in (1, 1_000):
            random_reads(folder, segments, now)
        growth(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
