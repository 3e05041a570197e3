"""A pytest plugin: which tests run each line of the mutated packages, and how much processor time each test takes.

`python -m tests.mutants --cover` loads it. Only what passes counts: a test that fails without a mistake finds none.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

SOURCES = ("replication", "log", "sm", "cluster/node")
"""Folders at the top of the tree."""


class Covering:
    """Switches the context of the coverage with each test, and writes what it saw at the end."""

    def __init__(self, top: Path, target: Path) -> None:
        self._top = top
        self._target = target
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = Coverage(data_file=None, source=[str(top / name) for name in SOURCES], config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Give what runs from here on to this test."""
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = round(time.process_time() - began, 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed or was skipped."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        self._coverage.stop()
        data = self._coverage.get_data()
        passed = {name: seconds for name, seconds in self._seconds.items() if name not in self._failed}
        number = {name: at for at, name in enumerate(passed)}
        lines: dict[str, dict[int, list[int]]] = {}
        for measured in data.measured_files():
            name = Path(measured).resolve().relative_to(self._top.resolve()).as_posix()
            by_line = data.contexts_by_lineno(measured)
            lines[name] = {line: [number[test] for test in tests if test in number] for line, tests in by_line.items()}
        self._target.write_text(json.dumps({"seconds": passed, "lines": lines}))


def pytest_configure(config: pytest.Config) -> None:
    """Begin before any module of the packages is imported."""
    target = Path(os.environ["MUTANTS_COVERED"])
    config.pluginmanager.register(Covering(Path(os.environ["MUTANTS_TOP"]), target))
