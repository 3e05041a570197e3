"""What a node's process has cost, by the kernel's figures."""

from __future__ import annotations

import os
import re
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """The processor time of all its threads, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """The memory that it has now."""
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most memory that it ever had."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found, f"process {pid} has no {name}: has it ended?"
    return int(found[1]) << 10


def rank(values: list[float], share: float) -> float:
    """The value below which such a share of them lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
