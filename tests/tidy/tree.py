"""The files that the tidy rules look at, and what a rule reports."""

import ast
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

GIT_TIMEOUT_S = 30

# The bad samples break every rule on purpose.
SAMPLES = PurePosixPath("tests/tidy/samples")


@dataclass(frozen=True)
class Source:
    """One file of the tree, by its path from the top."""

    path: PurePosixPath
    text: str

    @property
    def folder(self) -> str:
        """The top-level folder the file stands in; empty for a file at the top."""
        return self.path.parts[0] if len(self.path.parts) > 1 else ""

    @property
    def is_test(self) -> bool:
        """Whether the file belongs to the tests."""
        return self.folder == "tests"

    @cached_property
    def syntax(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the parsed module."""
        return list(ast.walk(self.syntax))


@dataclass(frozen=True)
class Finding:
    """One place where the tree breaks a rule."""

    path: PurePosixPath
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Tree:
    """The files under one top: sources by path, and the links among them."""

    top: Path
    paths: tuple[PurePosixPath, ...]

    @classmethod
    def of_checkout(cls, top: Path) -> "Tree":
        """What git tracks or would track in a checkout: ignored files are no part of it."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        run = subprocess.run(command, cwd=top, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"the tidy tests need a git checkout: git says: {run.stderr.strip()}")
        names = sorted({name for name in run.stdout.split("\0") if name})
        paths = (PurePosixPath(name) for name in names)
        return cls(top, tuple(path for path in paths if (top / path).exists() and not path.is_relative_to(SAMPLES)))

    @classmethod
    def of_folder(cls, top: Path) -> "Tree":
        """Every file and link under a folder."""
        found = (path for path in top.rglob("*") if path.is_symlink() or path.is_file())
        return cls(top, tuple(sorted(PurePosixPath(path.relative_to(top)) for path in found)))

    @cached_property
    def links(self) -> dict[PurePosixPath, str]:
        """Where each symbolic link points."""
        return {path: str((self.top / path).readlink()) for path in self.paths if (self.top / path).is_symlink()}

    @cached_property
    def texts(self) -> list[Source]:
        """Every file that is text."""
        sources: list[Source] = []
        for path in self.paths:
            if path in self.links:
                continue
            try:
                sources.append(Source(path, (self.top / path).read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue  # golden bytes, pictures
        return sources

    @cached_property
    def modules(self) -> list[Source]:
        """Every Python module."""
        return [source for source in self.texts if source.path.suffix == ".py"]


Rule = Callable[[Tree], Iterator[Finding]]
