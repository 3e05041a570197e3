"""What a command costs before it does anything: processor time, as a ratio to what Python itself takes to start.

    python -m benchmarks.startup

Runs take turns, so that whatever else the machine does slows down all alike; each figure is the median of its own.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quire.log import FileDirectory, Log, LogOptions

ROUNDS = 15
NOTHING, LIBRARIES = "python -c pass", "python -c 'import typer, aiohttp'"


def main() -> None:
    """Print a table of commands, their milliseconds and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        log = Log.open(
            FileDirectory(Path(folder)),
            LogOptions(segment_bytes=1 << 20),
            cluster_id=bytes(16),
            clock=lambda: 1,
            standalone=True,
        )
        log.append([{"key": "value"}])
        log.close()
        quire = [str(Path(sys.executable).with_name("quire"))]
        nobody = ["--server", "127.0.0.1:1", "--timeout", "0.1"]
        commands: dict[str, Sequence[str]] = {
            NOTHING: [sys.executable, "-c", "pass"],
            LIBRARIES: [sys.executable, "-c", "import typer, aiohttp"],
            "quire --version": [*quire, "--version"],
            "quire --help": [*quire, "--help"],
            "quire state --help": [*quire, "state", "--help"],
            "quire aply (a usage error)": [*quire, "aply"],
            "quire log segments": [*quire, "log", "segments", folder],
            "quire log verify": [*quire, "log", "verify", folder],
            "quire state": [*quire, "state", *nobody],
            "quire apply": [*quire, "apply", "add", "3", *nobody],
        }
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS + 1):
            for name, command in commands.items():
                spent[name].append(_processor_ms(command))
    medians = {name: statistics.median(times[1:]) for name, times in spent.items()}  # The first one compiles.
    print(f"{'command':36} {'ms':>7} {'x pass':>7} {'x libraries':>12}")
    for name, median in medians.items():
        print(f"{name:36} {median:7.1f} {median / medians[NOTHING]:7.1f} {median / medians[LIBRARIES]:12.2f}")


def _processor_ms(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


if __name__ == "__main__":
    main()
