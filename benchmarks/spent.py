"""The processor time of a measurement: of this process, its exited children, and the nodes."""

import os
import resource
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
USER_TICKS, SYSTEM_TICKS = 11, 12  # Fields of /proc/PID/stat after the name.


class Spent:
    """Samples the processor time of named processes, and compares the last two samples. Linux only."""

    def __init__(self, process_ids: dict[str, int]) -> None:
        self._process_ids = process_ids
        self._samples: list[dict[str, float]] = []

    def watch(self) -> None:
        """Take a sample."""
        sample = {name: _seconds_of(pid) for name, pid in self._process_ids.items()}
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        sample["load"] = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        self._samples = [*self._samples[-1:], sample]

    def us_for(self, commands: float) -> dict[str, float]:
        """Microseconds per command between the last two samples, by name; `load` is this process and its children."""
        before, after = self._samples
        return {name: (seconds - before[name]) / commands * 1e6 for name, seconds in after.items()}


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / TICKS
