"""Mistakes of one or two lines, each a patch in this folder with the rule that it breaks and what must find it.

A patch begins with three lines: `Bug:` what goes wrong, `Rule:` the rule that it breaks (those of `docs/protocol.md` by
number, others by a word or the page that states them), and `Finder:` `sim`, or the test that fails. It is applied to a
copy of the tree by git, exactly. One that no longer applies is an error: plant the same mistake in the present code.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
COPIED = ("log", "sm", "replication", "cluster", "pipeline", "src", "tests", "pyproject.toml")
BY_SIMULATOR = "sim"
HEAD = re.compile(r"\ABug: (?P<bug>.+)\nRule: (?P<rule>.+)\nFinder: (?P<finder>.+)\n\n")

CHANGED = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


class NotPlanted(Exception):
    """A patch that says too little, or does not apply to the code as it is."""


@dataclass(frozen=True)
class Mistake:
    """A patch and what stands above it."""

    patch: Path
    bug: str
    rule: str
    finder: str

    @property
    def name(self) -> str:
        """What the patch is called."""
        return self.patch.stem

    @property
    def files(self) -> list[str]:
        """What it changes, from the top of the tree."""
        return CHANGED.findall(self.patch.read_text())


def mistakes() -> list[Mistake]:
    """All of them, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def read(path: Path) -> Mistake:
    """One patch. Raises `NotPlanted`."""
    head = HEAD.match(path.read_text())
    if head is None:
        raise NotPlanted(f"{path.name} does not begin with the lines Bug, Rule and Finder")
    return Mistake(path, head["bug"], head["rule"], head["finder"])


@contextmanager
def copy_of_the_tree() -> Generator[Path]:
    """What is needed to run tests, in a folder of its own."""
    with TemporaryDirectory(prefix="planted-") as name:
        copy = Path(name)
        for part in COPIED:
            source = TOP / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, copy / part, symlinks=True, ignore=ignored)
            else:
                shutil.copy2(source, copy / part)
        yield copy


def plant(mistake: Mistake, copy: Path, *, take_out: bool = False) -> None:
    """Apply a patch to a copy, or take it out again. Raises `NotPlanted`."""
    command = ["git", "apply", *(["--reverse"] if take_out else []), str(mistake.patch)]
    # In a folder of another repository git would pass over files that are not that one's.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    before = contents(copy)
    ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode or contents(copy) == before:
        raise NotPlanted(f"{mistake.name} does not apply any more: {ran.stderr.strip() or 'nothing changed'}")


def contents(copy: Path) -> dict[Path, bytes]:
    """The modules of a copy that a mistake may be in."""
    return {path: path.read_bytes() for part in COPIED[:-2] for path in (copy / part).rglob("*.py")}
