"""What a measurement took: processor time and context switches of nodes, and processor time of the load."""

import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CPU_CLOCK = 2  # Of Linux's kinds of process clocks the one that counts what the scheduler gave, in nanoseconds.
SWITCHES = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


class _Sample(NamedTuple):
    seconds: dict[str, float]
    switches: dict[str, int]


class Spent:
    """Samples named processes, and compares the last two samples. Linux only."""

    def __init__(self, process_ids: Mapping[str, int]) -> None:
        self._process_ids = process_ids
        self._samples: list[_Sample] = []

    def watch(self) -> None:
        """Take a sample."""
        seconds = {name: _seconds_of(pid) for name, pid in self._process_ids.items()}
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds["load"] = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        switches = {name: _switches_of(pid) for name, pid in self._process_ids.items()}
        self._samples = [*self._samples[-1:], _Sample(seconds, switches)]

    def us_for(self, commands: float) -> dict[str, float]:
        """Microseconds per command between the last two samples, by name; `load` is this process and its children."""
        before, after = self._samples
        return {name: (seconds - before.seconds[name]) / commands * 1e6 for name, seconds in after.seconds.items()}

    def switches_for(self, commands: float) -> dict[str, float]:
        """Context switches per command between the last two samples, by name, of threads that still run."""
        before, after = self._samples
        return {name: (switches - before.switches[name]) / commands for name, switches in after.switches.items()}


def _seconds_of(pid: int) -> float:
    # As clock_getcpuclockid(3), which Python lacks for other processes: threads that exited count, too.
    return time.clock_gettime(~pid << 3 | CPU_CLOCK)


def _switches_of(pid: int) -> int:
    lines = (line for file in Path(f"/proc/{pid}/task").glob("*/status") for line in file.read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith(SWITCHES))
