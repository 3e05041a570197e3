"""The comparison as one page of Markdown: what was measured, where, and by which settings; then the table."""

import os
import platform
import shlex
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .slices import Row, Slice
from .systems import System

HEAD = """\
| work | system | values/s | least - most | p50 ms | p99 ms | nodes us | load us | quire's rate is |
|---|---|---:|---:|---:|---:|---:|---:|---:|"""
OPTIMIZATIONS = ("--enable-optimizations", "--with-lto")


class Result(NamedTuple):
    """A row's slices by system, or the words with which a load failed."""

    row: Row
    taken: Mapping[str, Sequence[Slice] | str]

    def document(self) -> dict[str, object]:
        """The result as JSON takes it."""
        slices = {
            name: taken if isinstance(taken, str) else [figures._asdict() for figures in taken]
            for name, taken in self.taken.items()
        }
        return {"row": self.row.name, "slices": slices}

    def ratio(self, system: str, figure: Callable[[Slice], float]) -> float | None:
        """The median of the slices' ratios, quire's figure to the system's. None if either has no slices."""
        ours, theirs = self.taken.get("quire", "not measured"), self.taken[system]
        if isinstance(ours, str) or isinstance(theirs, str):
            return None
        pairs = [(figure(a), figure(b)) for a, b in zip(ours, theirs, strict=True)]
        return statistics.median(a / b for a, b in pairs if b)


def page(
    systems: Sequence[System], idle: Mapping[str, float], others: float, results: Sequence[Result], folder: Path
) -> str:
    """The whole page; `idle` and `others` are what idle nodes and other work took, in percent of a core."""
    facts = [f"- {_now()}; {_machine(folder)}; before the first row, other work took {others:.0f}% of a core"]
    facts += [f"- {_interpreter()}", *_settings(systems, idle)]
    return "\n".join([*facts, "", HEAD, *_lines(results), "", *_sums(systems, results)])


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _settings(systems: Sequence[System], idle: Mapping[str, float]) -> Iterator[str]:
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
    arguments = shlex.split(str(sysconfig.get_config_var("CONFIG_ARGS") or ""))
    missing = " or ".join(f"`{flag}`" for flag in OPTIMIZATIONS if flag not in arguments)
    options = " ".join(argument for argument in arguments if argument.startswith(("--enable", "--with")))
    built = f"`{options}`" if options else "no options"
    version = f"{sys.implementation.name} {platform.python_version()}, {platform.python_compiler()}"
    return f"{version}, configured with {built}{f', without {missing}' if missing else ''}"


def _lines(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        work = result.row.name
        for name, taken in result.taken.items():
            if isinstance(taken, str):
                yield f"| {work} | {name} | failed: {taken.replace('|', ' ')} | | | | | | |"
                continue
            middle = Slice(*map(statistics.median, zip(*taken, strict=True)))
            rates = [figures.rate for figures in taken]
            yield (
                f"| {work} | {name} | {middle.rate:,.0f} | {min(rates):,.0f} - {max(rates):,.0f} "
                f"| {middle.p50_ms:,.2f} | {middle.p99_ms:,.2f} | {middle.nodes_us:,.1f} | {middle.load_us:,.1f} "
                f"| {_verdict(result, name)} |"
            )
            work = ""


def _verdict(result: Result, name: str) -> str:
    ratio = None if name == "quire" else result.ratio(name, _rate)
    return "" if ratio is None else f"{ratio:.2f} x"


def _sums(systems: Sequence[System], results: Sequence[Result]) -> Iterator[str]:
    """A sentence for each other system, which names the rows where quire is worse."""
    for system in systems:
        if system.name == "quire":
            continue
        rates, waits = (_ratios(system.name, results, figure) for figure in (_rate, _p99_ms))
        slower = [f"{name} ({ratio:.2f} x)" for name, ratio in rates.items() if ratio < 1]
        longer = [f"{name} ({ratio:.2f} x)" for name, ratio in waits.items() if ratio > 1]
        yield f"- Against {system.name}, quire's rate is lower in {len(slower)} of {len(rates)} rows{_named(slower)}."
        yield f"  Its p99 is longer in {len(longer)} of {len(waits)} rows{_named(longer)}."


def _ratios(system: str, results: Sequence[Result], figure: Callable[[Slice], float]) -> dict[str, float]:
    ratios = {result.row.name: result.ratio(system, figure) for result in results}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _rate(figures: Slice) -> float:
    return figures.rate


def _p99_ms(figures: Slice) -> float:
    return figures.p99_ms


def _named(rows: Sequence[str]) -> str:
    return f": {'; '.join(rows)}" if rows else ""
