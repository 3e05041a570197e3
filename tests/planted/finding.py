"""Whether a planted mistake is found: by the simulator, seed after seed, or by the test that is named."""

import json
import os
import subprocess
import sys

from tests.planted.mistake import Copy, Mistake

DEADLINE_S = 1_800
TESTS_FAILED = 1
"""pytest's exit status when tests ran and failed; others say that they could not run."""


class NotFound(Exception):
    """Nobody noticed; or the mistake broke the program so that no rule was looked at."""


def find(mistake: Mistake, copy: Copy, seeds: int) -> str:
    """Plant a mistake in a copy, look for it, take it out; return who found it. Raises `NotFound`, `NotPlanted`."""
    with copy.planted(mistake):
        if mistake.is_for_simulator:
            return _by_simulator(mistake, copy, seeds)
        return _by_test(mistake, copy)


def _run(copy: Copy, *arguments: str) -> "subprocess.CompletedProcess[str]":
    left_out = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment |= {"PYTHONPATH": f"{copy.top / 'src'}{os.pathsep}{copy.top}"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=copy.top, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def _by_simulator(mistake: Mistake, copy: Copy, seeds: int) -> str:
    ran = _run(copy, "-m", "tests.planted.seek", str(seeds), mistake.fault)
    if ran.returncode:
        raise NotFound(f"{mistake.name}: the simulator did not run: {ran.stderr[-500:]}")
    found = json.loads(ran.stdout)
    if found is None:
        raise NotFound(f"{mistake.name}: no rule broke in {seeds} seeds")
    if not found["is_rule"]:
        raise NotFound(f"{mistake.name}: seed {found['seed']} ends with an error that is no rule's: {found['failure']}")
    return f"the simulator after {found['after']} seeds: {found['rule']}"


def _by_test(mistake: Mistake, copy: Copy) -> str:
    ran = _run(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", mistake.finder)
    if ran.returncode != TESTS_FAILED or f"FAILED {mistake.finder}" not in ran.stdout:
        raise NotFound(f"{mistake.name}: {mistake.finder} ended with {ran.returncode}: {ran.stdout[-500:]}")
    return mistake.finder
