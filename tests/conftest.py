"""What all tests share: the order they run in, which of them run alone, and how hypothesis behaves.

Three tiers, each a target of make, choose tests by their marks:

- `make check` runs the side-by-side tests without `slow` or `full`;
- `make test` runs all tests without `full`;
- `make test-all` runs all tests but those marked `soak`.

`slow`, `full` and `soak` are set where a test is defined. `alone` is set here: all of those run in one worker, one
after the other, while the other worker runs the rest.
"""

import gc
import inspect
import os
from collections import defaultdict
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from quire.cluster.data_dir import file_system
from tests.tuned import no_mount

TESTS = Path(__file__).resolve().parent

# Cheap and telling first, those that start processes last. Folders that are not named run in between.
FIRST = ["tidy", "log", "sm", "replication", "cluster"]
LAST = ["processes", "overload", "faults"]

# These start processes, and measure or wait for time: one runs at a time.
ALONE = frozenset({"processes", "overload", "faults", "filesystems"})
# Here only the tests with one of these fixtures do: a session of Spark, or a cluster of processes.
ALONE_IF_FIXTURE = {
    "backup": frozenset({"cluster", "clusters", "small", "gateway"}),
    "pipeline": frozenset({"spark", "cluster"}),
}
# Modules with coroutines here start nodes with sockets and timeouts; the others run side by side.
ALONE_IF_ASYNC = frozenset({"cluster", "replication", "control", "deploy"})

# No deadline: the machine may be busy with other things. CI always tries the same examples; a developer, new ones.
settings.register_profile("house", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("house"), derandomize=True)
# Workers inherit the choice.
settings.load_profile(os.environ.setdefault("TESTS_PROFILE", "ci" if os.environ.get("CI") else "house"))

# With one of these, pytest explains a failed comparison by its whole difference: minutes for two lists of a MiB each.
for variable in ("CI", "BUILD_NUMBER"):
    os.environ.pop(variable, None)

# Tracebacks as on a node's own console. The default renderer prints every local variable in a box, which takes a second
# on a busy machine: long enough for a node in this process to miss an election timeout.
PLAIN = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])


file_system.mount_of = no_mount


@pytest.hookimpl(tryfirst=True)  # Before pytest chooses by marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by folder (FIRST, the others, LAST), mark and group those that run alone, leave out a soak's."""
    if config.option.markexpr and "soak" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    items.sort(key=lambda item: _turn(_folder(item.path)))
    modules: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        modules[item.path].append(item)
    for path, its_items in modules.items():
        folder = _folder(path)
        starts_nodes = folder in ALONE or (folder in ALONE_IF_ASYNC and any(map(_is_coroutine, its_items)))
        for item in its_items:
            fixtures = ALONE_IF_FIXTURE.get(folder, frozenset())
            if starts_nodes or not fixtures.isdisjoint(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.alone)
                item.add_marker(pytest.mark.xdist_group("alone"))


def pytest_collection_finish() -> None:
    """Exempt the tests themselves from garbage collection: ten thousand take a good part of a second each time."""
    gc.collect()
    gc.freeze()


def _folder(path: Path) -> str:
    """The folder of `tests` that a test is in; empty for one that is elsewhere."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def _turn(folder: str) -> int:
    if folder in FIRST:
        return FIRST.index(folder)
    if folder in LAST:
        return len(FIRST) + 1 + LAST.index(folder)
    return len(FIRST)


def _is_coroutine(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function)
