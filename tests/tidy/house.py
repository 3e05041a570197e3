"""Rules on the repository: its top level, the size of its rooms, package links, machine paths, cited pages."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.tidy.tree import Finding, Source, Tree

PACKAGES = ["cluster", "log", "pipeline", "replication", "sm"]
FOLDERS = [*PACKAGES, "src", "tests", "benchmarks", "deploy", "docs", "examples", "findings", ".ci"]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"]
FILES = [*PAGES, "pyproject.toml", "Makefile", ".gitignore", ".dockerignore", ".pre-commit-config.yaml"]
TOP_LEVEL = frozenset([*FOLDERS, *FILES])
LINKS = {PurePosixPath(f"src/quire/{name}"): f"../../{name}" for name in PACKAGES}
ROOM_MODULES = 14
SMALL_LINES = 40
SMALL_MODULES = 14
# Pages that a text may cite are files here: neither sections of documents kept elsewhere nor numbered issues.
ELSEWHERE = re.compile(r"\b(?:DESIGN|STYLE)\b(?!\.md)(?: \d+)?|\b[Ii]ssue \d{1,2}\b|(?<![\w/])shared/[\w./-]*")
PAGE = re.compile(r"(?<![\w./-])(?<!://)[\w.-][\w./-]*\.md\b")
MACHINE_PATH = re.compile(r"(?<![\w.~}$*)-])/(?:work|root)(?:/|\b)")


def top_level(tree: Tree) -> Iterator[Finding]:
    """The top level holds the folders and files that `TOP_LEVEL` lists, and nothing else."""
    for name in sorted({path.parts[0] for path in tree.paths} - TOP_LEVEL):
        yield Finding(PurePosixPath(name), 1, "the top level is fixed: put it into one of its folders")


def room_sizes(tree: Tree) -> Iterator[Finding]:
    """No folder of the product holds more modules than a reader can survey (`__init__` aside)."""
    rooms = Counter(source.path.parent for source in _product(tree))
    for room, modules in sorted(rooms.items()):
        if modules > ROOM_MODULES:
            yield Finding(room, 1, f"{modules} modules; no folder has over {ROOM_MODULES}")


def small_modules(tree: Tree) -> Iterator[Finding]:
    """Few modules of the product are very small: what changes together, or only forwards, is one file."""
    small = [source for source in _product(tree) if len(source.text.splitlines()) <= SMALL_LINES]
    if len(small) > SMALL_MODULES:
        for source in small:
            lines = len(source.text.splitlines())
            yield Finding(source.path, 1, f"{lines} lines, one of {len(small)} this small; allowed are {SMALL_MODULES}")


def _product(tree: Tree) -> list[Source]:
    return [source for source in tree.modules if source.folder in PACKAGES and source.path.stem != "__init__"]


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
        yield Finding(path, 1, "is a link, but not to one of the packages")


def machine_paths(tree: Tree) -> Iterator[Finding]:
    """No committed text names a directory of the machine it was written on."""
    for source in tree.texts:
        if source.path == PurePosixPath("tests/tidy/house.py"):
            continue  # the pattern above
        for number, line in enumerate(source.text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                yield Finding(source.path, number, f"names a path of one machine: {line.strip()[:80]}")


def citations(tree: Tree) -> Iterator[Finding]:
    """The repository stands by itself: each page that a text names is in it, by its path or by its name."""
    for source in tree.texts:
        if source.path == PurePosixPath("tests/tidy/house.py"):
            continue  # the patterns above
        for number, line in enumerate(source.text.splitlines(), 1):
            pages = (page for page in PAGE.findall(line) if not _is_in(tree, page))
            for cited in [*ELSEWHERE.findall(line), *pages]:
                yield Finding(source.path, number, f"cites {cited}, which is not in the repository")


def _is_in(tree: Tree, page: str) -> bool:
    """Whether a page exists; `../docs/limits.md` and `limits.md` name `docs/limits.md` as well."""
    name = page.removeprefix("./")
    while name.startswith("../"):
        name = name.removeprefix("../")
    return any(f"/{path}".endswith(f"/{name}") for path in tree.paths)
