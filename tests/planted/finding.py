"""Whether a planted mistake is found: by the simulator, seed after seed, or by the test that is named."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.planted.mistake import BY_SIMULATOR, Mistake, copy_of_the_tree, plant

DEADLINE_S = 1_800
TESTS_FAILED = 1
"""pytest's exit status when tests ran and failed; others say that they could not run."""


@dataclass(frozen=True)
class Finding:
    """Who found a mistake: a test, or the simulator by a rule, after so many seeds (0: by a test)."""

    found_by: str
    after: int


class NotFound(Exception):
    """Nobody noticed; or the mistake broke the program so that no rule was looked at."""


def find(mistake: Mistake, seeds: int) -> Finding:
    """Plant a mistake in a copy and look for it. Raises `NotFound`, `NotPlanted`."""
    with copy_of_the_tree() as copy:
        plant(mistake, copy)
        if mistake.finder == BY_SIMULATOR:
            return _by_simulator(mistake, copy, seeds)
        return _by_test(mistake, copy)


def _run(copy: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def _by_simulator(mistake: Mistake, copy: Path, seeds: int) -> Finding:
    ran = _run(copy, "-m", "tests.planted.seek", str(seeds))
    if ran.returncode:
        raise NotFound(f"{mistake.name}: the simulator did not run: {ran.stderr[-500:]}")
    found = json.loads(ran.stdout)
    if found is None:
        raise NotFound(f"{mistake.name}: no rule broke in {seeds} seeds")
    if not found["is_rule"]:
        raise NotFound(f"{mistake.name}: seed {found['seed']} ends with an error that is no rule's: {found['failure']}")
    return Finding(found["rule"], found["seed"] + 1)


def _by_test(mistake: Mistake, copy: Path) -> Finding:
    ran = _run(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mistake.finder)
    if ran.returncode != TESTS_FAILED or f"FAILED {mistake.finder}" not in ran.stdout:
        raise NotFound(f"{mistake.name}: {mistake.finder} ended with {ran.returncode}: {ran.stdout[-500:]}")
    return Finding(mistake.finder, 0)
