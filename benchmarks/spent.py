"""Processor time that a measurement took: of this process, of its ended children, and of the nodes."""

import os
import resource
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
USER_TICKS, SYSTEM_TICKS = 11, 12  # Of /proc/PID/stat, behind the name in parentheses.


class Spent:
    """Watches processes by name; the last two looks say what was spent between them. Linux only."""

    def __init__(self, process_ids: dict[str, int]) -> None:
        self._process_ids = process_ids
        self._looks: list[dict[str, float]] = []

    def watch(self) -> None:
        """Look now."""
        looked = {name: _seconds_of(pid) for name, pid in self._process_ids.items()}
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        looked["load"] = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        self._looks = [*self._looks[-1:], looked]

    def us_for(self, commands: float) -> dict[str, float]:
        """Microseconds for each of so many commands, by name; `load` is this process and its ended children."""
        before, after = self._looks
        return {name: (seconds - before[name]) / commands * 1e6 for name, seconds in after.items()}


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / TICKS
