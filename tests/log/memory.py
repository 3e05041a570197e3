"""The peak memory of this process.

`getrusage` is of no use: its maximum survives exec, so a child of a large process seems to be as large from the start.
"""

from __future__ import annotations

from pathlib import Path


def peak_kib() -> int:
    """Return the most KiB that this process has had resident since it was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
