"""What all tests share: the order they run in, and how hypothesis behaves."""

import os
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

TESTS = Path(__file__).resolve().parent

# Cheap and telling first; then, one at a time, what starts processes. Folders that are not named here stand between.
FIRST = ["tidy", "log", "sm", "replication", "cluster"]
LAST = ["processes", "faults"]

# No deadline: the machine may be busy with other things. CI always tries the same examples; a developer, new ones.
settings.register_profile("house", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("house"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "house")

# As a node's own console has them. The default draws a frame around each local variable: a second on a busy machine, in
# which a node in this process hears nobody, and an election timeout passes.
PLAIN = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by folder: FIRST, the others, LAST."""
    items.sort(key=lambda item: _turn(item.path))


def _turn(path: Path) -> int:
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    if folder in FIRST:
        return FIRST.index(folder)
    if folder in LAST:
        return len(FIRST) + 1 + LAST.index(folder)
    return len(FIRST)
