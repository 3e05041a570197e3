"""Rules on the house itself: the top level, the links that give the packages their import name, machine paths."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.tidy.tree import Finding, Tree

PACKAGES = ["cluster", "log", "pipeline", "replication", "sm"]
FOLDERS = [*PACKAGES, "src", "tests", "benchmarks", "deploy", "docs", "examples", ".ci"]
FILES = ["pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", ".dockerignore"]
TOP_LEVEL = frozenset([*FOLDERS, *FILES])
LINKS = {PurePosixPath(f"src/quire/{name}"): f"../../{name}" for name in PACKAGES}
MACHINE_PATH = re.compile(r"(?<![\w.~}$*)-])/(?:work|root)(?:/|\b)")


def top_level(tree: Tree) -> Iterator[Finding]:
    """Nothing stands at the top level that DESIGN 2 does not name."""
    for name in sorted({path.parts[0] for path in tree.paths} - TOP_LEVEL):
        yield Finding(PurePosixPath(name), 1, "the top level is fixed: put it into one of its folders")


def links(tree: Tree) -> Iterator[Finding]:
    """src/quire holds one link for each package, and there are no other links."""
    for path, target in sorted(LINKS.items()):
        if path not in tree.links:
            yield Finding(path, 1, f"is missing: it must be a link to {target}")
        elif tree.links[path] != target:
            yield Finding(path, 1, f"points to {tree.links[path]}, not {target}")
        elif not (tree.top / path).is_dir():
            yield Finding(path, 1, f"points to {target}, which is not there")
    for path in sorted(set(tree.links) - set(LINKS)):
        yield Finding(path, 1, "is a link that is none of the packages'")


def machine_paths(tree: Tree) -> Iterator[Finding]:
    """No committed text names a directory of the machine it was written on."""
    for source in tree.texts:
        if source.path == PurePosixPath("tests/tidy/house.py"):
            continue  # the pattern above
        for number, line in enumerate(source.text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                yield Finding(source.path, number, f"names a path of one machine: {line.strip()[:80]}")
