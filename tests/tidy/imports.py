"""Import rules: directions between packages and no circles, a core without I/O, simulation apart, one wrapper each."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.tidy.tree import Finding, Source, Tree

# What each package may import of ours. "quire" is the root, whose __init__ offers the client, and what machines need.
MAY_IMPORT = {
    "log": frozenset[str](),
    "sm": frozenset({"log"}),
    "replication": frozenset({"log"}),
    "cluster": frozenset({"quire", "log", "sm", "replication"}),
    "pipeline": frozenset({"quire", "log", "sm", "cluster"}),
    "src": frozenset({"quire", "log", "sm", "cluster", "pipeline"}),
}
PACKAGES = frozenset({"log", "sm", "replication", "cluster", "pipeline"})

# Of cluster, these see no more than its client; the pipeline also reads commands just as the nodes do, escapes what it
# prints, and in its tasks, without the client, shows and verifies what the client does, and matches answers as it does.
CLIENT_ONLY = frozenset({"pipeline", "src"})
READING = frozenset({"access", "request_id", "standard_streams", "terminal", "values"})

ROOT = frozenset({"quire.QuireError", "quire.exports"})  # Each package may have errors, and export names lazily.

CORE = PurePosixPath("replication/core")
CLOCKS = ["datetime", "time"]
CHANCE = ["random", "secrets", "uuid"]
NETWORK = ["aiohttp", "select", "selectors", "socket", "ssl"]
SYSTEM = ["io", "os", "pathlib", "shutil", "signal", "subprocess", "tempfile"]
CONCURRENCY = ["asyncio", "concurrent", "contextvars", "multiprocessing", "threading", "uvloop"]
IMPURE = frozenset([*CLOCKS, *CHANCE, *NETWORK, *SYSTEM, *CONCURRENCY])
IMPURE_CALLS = frozenset({"open", "input", "print"})

UNTYPED = frozenset({"msgpack", "pysyncobj", "toxiproxy"})
CONTROL = PurePosixPath("cluster/control")

# What turns a text or bytes into code that runs: each module that does, and who gives the text. It is never a file that
# somebody hands over, a peer or a store (SECURITY.md): what those name selects among the built-in machines alone.
LOADERS = {
    "cluster/cli/backup.py": frozenset({"recorded_machine"}),  # The operator, by --machine; else it must be built in.
    "cluster/cli/commands.py": frozenset({"import_module"}),  # Its own table.
    "cluster/cli/main.py": frozenset({"import_module"}),  # A constant.
    "cluster/node/node.py": frozenset({"load_machine"}),  # The operator, by --machine or the configuration.
    "cluster/reference.py": frozenset({"import_module"}),  # A developer: the pages of this checkout.
    "pipeline/pieces.py": frozenset({"pickle"}),  # The job's own tasks, on the Spark that its caller named.
    "pipeline/replay/genesis.py": frozenset({"recorded_machine"}),  # The operator; else it must be built in.
    "pipeline/sink/commands.py": frozenset({"recorded_machine"}),  # The operator; else it must be built in.
    "sm/__init__.py": frozenset({"load_machine"}),  # Exports it.
    "sm/machines/registry.py": frozenset({"import_module", "sys.path"}),  # The operator or the program.
    "sm/testing.py": frozenset({"load_machine", "sys.path"}),  # The test that calls it; the child's path is its own.
    "src/quire/__init__.py": frozenset({"import_module"}),  # The packages' own tables.
}
LOADING = frozenset({"exec_module", "import_module", "load_machine", "recorded_machine"})
LOADING_CALLS = frozenset({"__import__", "eval", "exec"})
LOADING_MODULES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "runpy", "shelve", "yaml"})

# What simulates a disk or a cluster: shipped for tests and for those who write state machines, not for a node.
SIMULATION = {
    "quire.log.simulated": PurePosixPath("log/simulated"),
    "quire.cluster.simulator": PurePosixPath("cluster/simulator"),
}


def imported(source: Source) -> Iterator[tuple[int, int, str]]:
    """Every import of a module as (line, level, dotted name); `from a import b` counts as a.b."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, f"{node.module}.{alias.name}" if node.module else alias.name


def directions(tree: Tree) -> Iterator[Finding]:
    """Imports go one way: relative inside a package, `quire.x` across packages, and only as `MAY_IMPORT` allows."""
    for source in tree.modules:
        for line, level, name in imported(source):
            complaint = _relative(source, level) if level else _absolute(source, name)
            if complaint:
                yield Finding(source.path, line, complaint)


def _relative(source: Source, level: int) -> str:
    if source.folder in PACKAGES and level > len(source.path.parts) - 1:
        return "a relative import leaves its package: write quire.<package>"
    return ""


def _absolute(source: Source, name: str) -> str:
    parts = name.split(".")
    if parts[0] in PACKAGES:
        return f"imports {parts[0]} by its folder's name: write quire.{parts[0]}"
    if parts[0] != "quire" or source.folder not in MAY_IMPORT:
        return ""
    target = parts[1] if len(parts) > 1 and parts[1] in PACKAGES else "quire"
    if name in ROOT:
        return ""
    if target == source.folder:
        return f"imports its own package as quire.{target}: imports are relative inside a package"
    if target not in MAY_IMPORT[source.folder]:
        return f"{source.folder} may not import {'quire.' if target != 'quire' else ''}{target}"
    if target == "cluster" and source.folder == "pipeline" and len(parts) > 2 and parts[2] in READING:
        return ""
    if target == "cluster" and source.folder in CLIENT_ONLY and parts[2:3] not in (["client"], ["errors"]):
        return f"{source.folder} may import only quire.cluster.client and quire.cluster.errors"
    return ""


def core_without_io(tree: Tree) -> Iterator[Finding]:
    """The protocol core imports no clock, socket, file, thread or random of its own, and calls none."""
    for source in tree.modules:
        if not source.path.is_relative_to(CORE):
            continue
        for line, level, name in imported(source):
            if not level and name.split(".")[0] in IMPURE:
                yield Finding(source.path, line, f"the core does no I/O, but imports {name}")
        for node in source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                yield Finding(source.path, node.lineno, f"the core does no I/O, but calls {node.func.id}()")


def simulation_apart(tree: Tree) -> Iterator[Finding]:
    """Only the simulation's own folders import the simulator and the faulty storage: no node runs on them."""
    for source in tree.modules:
        if source.folder not in MAY_IMPORT or any(source.path.is_relative_to(room) for room in SIMULATION.values()):
            continue
        for line, level, name in imported(source):
            full = _full_name(source, level, name)
            for simulation in SIMULATION:
                if full == simulation or full.startswith(f"{simulation}."):
                    yield Finding(source.path, line, f"imports {simulation}, which simulates: nodes do not run on it")


def _full_name(source: Source, level: int, name: str) -> str:
    """The absolute name of what a module imports."""
    if not level:
        return name
    return ".".join(["quire", *source.path.parts[:-level], name])


def one_wrapper_each(tree: Tree) -> Iterator[Finding]:
    """A dependency without types is imported by one module, which gives it types; pysyncobj's is in cluster/control."""
    importers: dict[str, list[tuple[Source, int]]] = defaultdict(list)
    for source in tree.modules:
        seen: set[str] = set()
        for line, level, name in imported(source):
            package = name.split(".")[0]
            if not level and package in UNTYPED and package not in seen:
                seen.add(package)
                importers[package].append((source, line))
    for package, places in sorted(importers.items()):
        if len(places) > 1:
            others = ", ".join(str(source.path) for source, _ in places)
            for source, line in places:
                yield Finding(source.path, line, f"{package} has no types: one module wraps it, not {others}")
        for source, line in places:
            if package == "pysyncobj" and not source.path.is_relative_to(CONTROL):
                yield Finding(source.path, line, f"only {CONTROL} may import pysyncobj")


def code_by_name(tree: Tree) -> Iterator[Finding]:
    """Only the modules in LOADERS turn a text or bytes into code, each in the way that is noted there."""
    for source in tree.modules:
        if source.folder not in MAY_IMPORT:
            continue
        noted, found = LOADERS.get(str(source.path), frozenset()), dict(_loading(source))
        for name, line in found.items():
            if name not in noted:
                yield Finding(source.path, line, f"{name} may run what a file or a peer names: see LOADERS, {__name__}")
        for name in noted - found.keys():
            yield Finding(source.path, 1, f"LOADERS notes {name}, which is not used any more")


def _loading(source: Source) -> Iterator[tuple[str, int]]:
    """What a module uses that may load code, each with its line."""
    for line, _, name in imported(source):
        parts = name.split(".")
        if parts[-1] in LOADING:
            yield parts[-1], line
        elif parts[0] in LOADING_MODULES:
            yield parts[0], line
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in LOADING:
            yield node.attr, node.lineno
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            yield "sys.path", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOADING_CALLS:
            yield node.func.id, node.lineno


def no_circles(tree: Tree) -> Iterator[Finding]:
    """No module of a package imports itself through others; what only a type checker imports counts, too.

    So each module can be read, and used in a test, without those that stand above it.
    """
    modules = {_module_name(source): source for source in tree.modules if source.folder in PACKAGES}
    targets = {name: _imported_modules(source, modules) for name, source in modules.items()}
    reached = {name: _reached_from(name, targets) for name in modules}
    for name, source in sorted(modules.items()):
        for target, line in targets[name].items():
            if name in reached[target]:
                yield Finding(source.path, line, f"imports {target}, which imports it back, perhaps through others")


def _module_name(source: Source) -> str:
    """The dotted name of a module; a package's `__init__` has the package's."""
    parts = source.path.with_suffix("").parts
    return ".".join(["quire", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _imported_modules(source: Source, modules: Mapping[str, Source]) -> dict[str, int]:
    """The modules of its own package that a module imports, each with the line of the first import."""
    found: dict[str, int] = {}
    for line, level, name in imported(source):
        full = _full_name(source, level, name)
        target = full if full in modules else full.rpartition(".")[0]
        if target in modules and modules[target].folder == source.folder:
            found.setdefault(target, line)
    return found


def _reached_from(name: str, targets: Mapping[str, Mapping[str, int]]) -> set[str]:
    """The module itself, and every one that it imports, directly or through others."""
    reached, next_ones = {name}, [name]
    while next_ones:
        new = targets[next_ones.pop()].keys() - reached
        reached |= new
        next_ones += new
    return reached
