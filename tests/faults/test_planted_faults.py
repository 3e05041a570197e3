"""Mistakes, planted one at a time in a copy of the tree: each of two named scenarios finds them, or one illness."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.faults.illness import ILLNESSES
from tests.faults.scenarios import named
from tests.planted.mistake import Copy, Mistake, copy_of_the_tree, read

FOLDER = Path(__file__).parent / "planted"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
TRIES = 12  # What a fault does may need luck: a read while two believe that they lead comes in every second try.
ELECTION_TIMEOUT_MS = 3_000
OF_ILLNESSES_MS = 1_000  # The verdict waits for a commit for twenty of them, twice.
DEADLINE_S = 240.0

# What is said of each: by the verdict, by a session's client, or by a node that halts. A cluster that merely does not
# work is no finding.
SAID = {
    "acknowledged-before-a-majority": r"below commit_index|SEQUENCE_GAP|acknowledged and lost|NotLinearizable",
    "commit-index-falls": r"Wrong .*commit_index went from",
    "retry-executes-again": r"Wrong .*(each once, comes to|was answered)|NotLinearizable",
    "read-without-asking-a-majority": r"NotLinearizable",
    "unbounded-stream-buffer": r"Wrong .*the memory of",
    "ill-leader-stays": r"Wrong .*nothing was committed for [0-9.]+ election timeouts",
    "lost-identity-begins-anew": r"Wrong .*lost its identity, and is the same member with a log that ends at",
}


def faults() -> list[Mistake]:
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def run_in(copy: Copy, name: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "QUIRE_"))}
    kept |= {"PYTHONPATH": f"{copy.top / 'src'}{os.pathsep}{copy.top}", "PYTHONDONTWRITEBYTECODE": "1"}
    # A leader that lost its links leads for another election timeout: a long one, so that there is time to notice it.
    # The verdict is under test, so the nodes do not check their invariants: those would halt them first.
    timeout_ms = OF_ILLNESSES_MS if name in ILLNESSES else ELECTION_TIMEOUT_MS
    flags = ["--tries", str(TRIES), "--election-timeout-ms", str(timeout_ms), "--unchecked"]
    command = [sys.executable, "-m", "tests.faults", *flags, name]
    return subprocess.run(
        command, cwd=copy.top, env=kept, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_every_planted_fault_has_its_words_and_two_scenarios_or_an_illness() -> None:
    assert {fault.name for fault in faults()} == set(SAID)
    for fault in faults():
        names = {named(name).name for name in fault.finder.split("; ")}
        assert len(names) == 2 or names <= set(ILLNESSES)


def test_every_planted_fault_applies_to_the_code_as_it_is() -> None:
    with copy_of_the_tree() as copy:
        for fault in faults():
            with copy.planted(fault):
                for path in fault.files:
                    compile((copy.top / path).read_text(), path, "exec")


@pytest.mark.full
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_its_scenarios_find_a_planted_fault(fault: Mistake) -> None:
    names = fault.finder.split("; ")
    with copy_of_the_tree() as copy, copy.planted(fault):
        (copy.top / ".cache").symlink_to(CACHE)  # toxiproxy's server
        with ThreadPoolExecutor(len(names)) as side_by_side:  # They wait most of the time.
            runs = dict(zip(names, side_by_side.map(partial(run_in, copy), names), strict=True))

    for name, ran in runs.items():
        assert ran.returncode == 1, f"{name}: {ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
        _, _, told = f"\n{ran.stdout}".partition(f"\n{name}: ")
        assert re.search(SAID[fault.name], told), f"{name}: {ran.stdout[-3000:]}"
