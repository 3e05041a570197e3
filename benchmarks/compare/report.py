"""The comparison as one page of Markdown: what was measured, where, and by which settings; then the table."""

import os
import platform
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .slices import Row, Slice
from .systems import System

HEAD = """\
| work | system | values/s | least - most | p50 ms | p99 ms | nodes us | load us | quire is |
|---|---|---:|---:|---:|---:|---:|---:|---:|"""
BUILD_FLAGS = ("--enable-optimizations", "--with-lto")


class Result(NamedTuple):
    """A row's slices by system, or the words with which a load failed."""

    row: Row
    taken: Mapping[str, Sequence[Slice] | str]

    def ratio(self, system: str) -> float | None:
        """The median of the slices' ratios of rates: quire's to the system's. None if either has none."""
        ours, theirs = self.taken.get("quire", "not measured"), self.taken[system]
        if isinstance(ours, str) or isinstance(theirs, str):
            return None
        return statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True) if b.rate)


def page(systems: Sequence[System], idle: Mapping[str, float], results: Sequence[Result], folder: Path) -> str:
    """The whole page."""
    return "\n".join([*_facts(systems, idle, folder), "", HEAD, *_lines(results), "", *_sums(systems, results)])


def _facts(systems: Sequence[System], idle: Mapping[str, float], folder: Path) -> Iterator[str]:
    yield f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {_machine(folder)}"
    yield f"- {_interpreter()}"
    for system in systems:
        yield f"- {system.name} {system.version()}: {system.settings}; idle, {idle[system.name]:.1f}% of a core"


def _machine(folder: Path) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    found = subprocess.run(["df", "--output=fstype", folder], capture_output=True, text=True, check=False)
    file_system = found.stdout.split()[-1] if found.returncode == 0 else "unknown file system"
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, {file_system}"


def _interpreter() -> str:
    """Which Python the nodes run, and whether it was built with optimizations."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    flags = "; ".join(f"{'with' if flag in arguments else 'without'} `{flag}`" for flag in BUILD_FLAGS)
    version = f"{sys.implementation.name} {platform.python_version()}"
    return f"{version}, {platform.python_compiler()}, built {flags} (its `CONFIG_ARGS`: `{arguments or 'none'}`)"


def _lines(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        for name, taken in result.taken.items():
            if isinstance(taken, str):
                yield f"| {result.row.name} | {name} | failed: {taken.replace('|', ' ')} | | | | | | |"
                continue
            middle = Slice(*map(statistics.median, zip(*taken, strict=True)))
            rates = [figures.rate for figures in taken]
            yield (
                f"| {result.row.name} | {name} | {middle.rate:,.0f} | {min(rates):,.0f} - {max(rates):,.0f} "
                f"| {middle.p50_ms:,.2f} | {middle.p99_ms:,.2f} | {middle.nodes_us:,.1f} | {middle.load_us:,.1f} "
                f"| {_verdict(result, name)} |"
            )


def _verdict(result: Result, name: str) -> str:
    ratio = None if name == "quire" else result.ratio(name)
    return "" if ratio is None else f"{ratio:.2f} x"


def _sums(systems: Sequence[System], results: Sequence[Result]) -> Iterator[str]:
    """A sentence for each other system, which names the rows where quire is slower."""
    for system in systems:
        ratios = {result.row.name: result.ratio(system.name) for result in results if system.name in result.taken}
        found = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if system.name == "quire" or not found:
            continue
        slower = [f"{name} ({ratio:.2f} x)" for name, ratio in found.items() if ratio < 1]
        yield f"Slower than {system.name} in {len(slower)} of {len(found)} rows{': ' if slower else ''}{'; '.join(slower)}."
        yield ""
