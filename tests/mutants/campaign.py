"""Whether anything finds a mistake, ring by ring: the tests that run its lines, simulated histories, more tests.

Each ring has a limit of processor time and of time. A mistake that makes a ring run into it, by a loop without end for
example, counts as found, and is counted by itself besides.
"""

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.cluster.simulator.permanent.illness import KINDS
from tests.mutants.mistake import Mistake, Tree

CPU_S = 90
WALL_S = 240
NEAREST_S = 6.0
"""Processor time of the nearest tests, as measured when the map was made: those that take least come first."""
FOLDERS = {"log": "tests/log", "sm": "tests/sm", "replication": "tests/replication", "cluster": "tests/cluster"}
"""Whose tests without `slow` and `full` are the last ring."""
NEED_A_CHECKOUT = ("tests/cluster/test_command_pages.py",)
"""They fail in a copy without a mistake, so they are left out."""
NOTHING_SELECTED = 5
"""Pytest's exit status if all tests of a file are `slow` or `full`."""
HISTORIES = 20
ORDEALS = 2
"""Histories of each kind of illness that stays."""
SIMULATED = ("replication/core/", "replication/", "log/", "sm/")
NOT_SIMULATED = ("replication/net/", "log/offline/", "sm/testing")
FILES = {
    "log/flusher": "test_flush_policy",
    "log/segment/mark": "test_open test_device_errors test_flush_policy",
    "log/change/truncation": "test_log test_truncate_inside test_crashes",
    "log/change/recovery": "test_open test_crashes",
    "log/change/expiry": "test_expiry test_ages",
    "log/change/ages": "test_ages",
    "log/change/reset": "test_reset test_log",
    "log/offline": "test_verify test_repair test_log",
    "log/payload": "test_payload test_log test_streaming",
    "log/segment": "test_log test_open test_caching test_streaming test_sequential",
    "log": "test_log test_open test_expiry test_reset test_full_disk test_device_errors",
    "sm/sessions": "test_sessions test_retries test_session_bytes",
    "sm/snapshots": "test_snapshot_store test_snapshot",
    "sm/applier": "test_applier test_features test_retries",
    "sm/machines/arithmetic": "test_arithmetic",
    "sm/machines/kv": "test_kv test_key_order",
    "sm/testing": "test_kit",
    "sm": "test_applier test_registry test_kv test_arithmetic test_log_machine",
    "replication/net/hello": "test_hello test_hello_servers",
    "replication/net/network": "test_network test_features test_links",
    "replication/net": "test_links test_streams test_network test_sockets",
    "replication/core/fitness": "test_fitness test_flows test_whole_replicas",
    "replication/driver": "test_writer test_replica test_status test_fitness test_whole_replicas",
    "replication/replica": "test_replica test_status test_writer test_whole_replicas",
    "cluster/node/applying": "test_applying test_pending test_threads test_program_faults",
    "cluster/node/components": "test_config test_machine test_writers",
    "cluster/node/fitness": "test_fitness test_ill_leaders",
    "cluster/node/leadership": "test_transfer test_nominations test_members",
    "cluster/node/reading": "test_reading test_query",
    "cluster/node": "test_machine test_writers test_standalone",
}
"""Test files by where a mistake is, the first that fits: in place of the map, which takes long to make for them."""
TESTS, SIMULATOR, MORE = "tests", "histories", "more tests"
RINGS = (TESTS, SIMULATOR, MORE)
TIMED = "tests/cluster/"
"""Tests that start nodes: on a busy machine one might fail by itself, so what it finds it has to find twice."""
FINDER = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How a ring ended: what found the mistake ("" if nothing did), in how many seconds, and whether time ran out."""

    found_by: str
    seconds: float
    ran_out: bool = False


class Map:
    """Which tests run a line, and what they take."""

    def __init__(self, *paths: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._by_line: dict[str, dict[int, set[str]]] = {}
        for path in paths:
            covered = json.loads(path.read_text())
            names = list(covered["seconds"])
            self._seconds |= covered["seconds"]
            for file, lines in covered["lines"].items():
                known = self._by_line.setdefault(file, {})
                for line, tests in lines.items():
                    known.setdefault(int(line), set()).update(names[at] for at in tests)

    def of_lines(self, file: str, lines: Sequence[int]) -> list[str]:
        """The tests that run one of the lines, those that take least first."""
        known = self._by_line.get(file, {})
        tests = set[str]().union(*(known.get(line, set()) for line in lines))
        return sorted(tests, key=lambda test: (self._seconds[test], test))

    def of_mistake(self, mistake: Mistake, source: str) -> list[str]:
        """The nearest tests: those that run its statement, else its function, else its module; the quickest of them."""
        if files := next((files for start, files in FILES.items() if mistake.file.startswith(start)), ""):
            top = mistake.file.partition("/")[0]
            return [*(f"tests/{top}/{name}.py" for name in files.split()), "-m", "not slow and not full"]
        for lines in _around(mistake, source):
            if nearest := self.of_lines(mistake.file, lines):
                return self._within(nearest, NEAREST_S)
        return []

    def _within(self, tests: list[str], limit_s: float) -> list[str]:
        spent = 0.0
        for at, test in enumerate(tests):
            spent += self._seconds[test]
            if spent > limit_s and at:
                return tests[:at]
        return tests


def _around(mistake: Mistake, source: str) -> list[range]:
    """The lines of the mistake's statements, of its function, of the whole file."""
    last = mistake.line + mistake.old.count("\n")
    holders = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= last and (node.end_lineno or 0) >= mistake.line
    ]
    inner = sorted(holders, key=len)
    return [range(mistake.line, last + 1), *inner, range(1, source.count("\n") + 2)]


def _limited(tree: Tree, *arguments: str) -> tuple[int, str, float]:
    """A Python program in the copy: its exit status, negative if it was killed; what it wrote; its processor time."""
    left_out = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment |= {"PYTHONPATH": f"{tree.top / 'src'}{os.pathsep}{tree.top}", "TESTS_PROFILE": "ci"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree.top,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    resource.prlimit(running.pid, resource.RLIMIT_CPU, (CPU_S, CPU_S))
    os.setpriority(os.PRIO_PROCESS, running.pid, 10)
    try:
        written, _ = running.communicate(timeout=WALL_S)
        status = running.returncode
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, 9)
        written, _ = running.communicate()
        status = -9
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return status, written, round(spent, 1)


def run_tests(tree: Tree, tests: Sequence[str]) -> Outcome:
    """Run tests until one fails."""
    if not tests:
        return Outcome("", 0.0)
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
    status, written, seconds = _limited(tree, "-m", "pytest", *options, *tests)
    if status in (0, NOTHING_SELECTED):
        return Outcome("", seconds)
    if status < 0:
        return Outcome("the limit of time", seconds, ran_out=True)
    failed = FINDER.search(written)
    name = failed[1] if failed else "the start of the tests"
    return Outcome(name, seconds)


def run_histories(tree: Tree) -> Outcome:
    """Run histories until one breaks a rule or fails: any, then some in which a minority stays ill, of each kind."""
    spent = 0.0
    for illness in ("", *KINDS):
        asked = [str(ORDEALS), illness] if illness else [str(HISTORIES)]
        status, written, seconds = _limited(tree, "-m", "tests.planted.seek", *asked)
        spent += seconds
        if status < 0:
            return Outcome("the limit of time", spent, ran_out=True)
        if status:
            return Outcome("the simulator does not start", spent)
        if (found := json.loads(written.splitlines()[-1])) is not None:
            return Outcome(f"{found['rule'] or 'an error'}, seed {found['seed']}", spent)
    return Outcome("", spent)


def run_folder(tree: Tree, folder: str) -> Outcome:
    """Run a folder's tests, file by file since each run has the limit of time, until one fails."""
    spent = 0.0
    for file in sorted((tree.top / folder).glob("test_*.py")):
        name = file.relative_to(tree.top).as_posix()
        if name in NEED_A_CHECKOUT:
            continue
        outcome = run_tests(tree, [name, "-m", "not slow and not full"])
        spent += outcome.seconds
        if outcome.found_by:
            return replace(outcome, seconds=spent)
    return Outcome("", spent)


def _fails_without(tree: Tree, test: str) -> bool:
    """Whether what found a mistake is a test that fails without one, too: such a test would find every mistake."""
    return test.startswith("tests/") and bool(run_tests(tree, [test]).found_by)


def look_for(mistake: Mistake, tree: Tree, covered: Map, rings: Sequence[str] = RINGS) -> Mistake:
    """The mistake with what found it, or with an empty ring. Raises `NotPlanted`, and `RuntimeError` if a test that
    failed fails without the mistake, too."""
    found = _look_for(mistake, tree, covered, rings)
    if _fails_without(tree, found.found_by):
        raise RuntimeError(f"{found.found_by} fails without a mistake")
    return found


def _look_for(mistake: Mistake, tree: Tree, covered: Map, rings: Sequence[str]) -> Mistake:
    nearest = covered.of_mistake(mistake, (tree.top / mistake.file).read_text())
    folder = FOLDERS[mistake.file.partition("/")[0]]
    simulated = mistake.file.startswith(SIMULATED) and not mistake.file.startswith(NOT_SIMULATED)
    spent = mistake.seconds
    with tree.mistaken(mistake):
        for ring in rings:
            if ring == SIMULATOR:
                outcome = run_histories(tree) if simulated else Outcome("", 0.0)
            else:
                outcome = run_tests(tree, nearest) if ring == TESTS else run_folder(tree, folder)
            spent += outcome.seconds
            if outcome.found_by.startswith(TIMED) and not run_tests(tree, [outcome.found_by]).found_by:
                outcome = Outcome("", 0.0)  # It failed by itself.
            if outcome.found_by:
                return replace(
                    mistake, ring=ring, found_by=outcome.found_by, seconds=round(spent, 1), ran_out=outcome.ran_out
                )
    return replace(mistake, ring="", found_by="", seconds=round(spent, 1))
