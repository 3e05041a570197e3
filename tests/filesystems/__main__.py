"""Whole lives on each file system that this machine can mount, and the cost of one client on each beside ext4.

python -m tests.filesystems             all: a part of `make soak`
python -m tests.filesystems btrfs sshfs these
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from quire import connect_sync

from .lives import HALTS_WHEN_FULL, SIZE, NodeLife, live_log
from .mounts import KINDS, mounted

COMMANDS = 1000


def cost_of(kind: str) -> float:
    """The median time of a command of one client that waits for each, in seconds."""
    with mounted(kind, SIZE) as at, TemporaryDirectory() as output:
        life = NodeLife(at, Path(output))
        with life.running() as node, connect_sync(node.address) as client:
            times = []
            for _ in range(COMMANDS):
                began = time.perf_counter()
                client.apply(["add", 1])
                times.append(time.perf_counter() - began)
    return statistics.median(times)


def lives_on(kind: str) -> bool:
    """Run both lives; print what happened, and return whether nothing failed."""
    try:
        with mounted(kind, SIZE) as at, TemporaryDirectory() as output:
            halts = kind in HALTS_WHEN_FULL
            if not halts:  # In this process an error would leave the log locked.
                live_log(at / "log")
            NodeLife(at, Path(output), halts_when_full=halts).run()
    except Exception:  # noqa: BLE001  # Whatever it is, the others are tried, too.
        print(f"{kind}: failed", flush=True)
        traceback.print_exc()
        return False
    return True


def main() -> int:
    """Run them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    kinds = parser.parse_args().kinds
    failed = []
    for kind in kinds:
        try:
            with mounted(kind, SIZE):
                pass
        except RuntimeError as error:
            print(f"{kind}: not run, this machine cannot mount it: {' '.join(str(error).split())}", flush=True)
            continue
        if lives_on(kind):
            of_ext4, here = cost_of("ext4"), cost_of(kind)
            times = f"{1000 * here:.2f} ms, on ext4 {1000 * of_ext4:.2f} ms: {here / of_ext4:.1f} times"
            print(f"{kind}: whole lives; a command of one client takes {times}", flush=True)
        else:
            failed.append(kind)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
