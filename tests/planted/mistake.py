"""Mistakes of one or two lines, each a patch in this folder with the rule that it breaks and what must find it.

A patch begins with three lines: `Bug:` what goes wrong, `Rule:` the rule that it breaks (those of `docs/protocol.md` by
number, others by a word or the page that states them), and `Finder:` `sim`, or `sim --permanent KIND` (histories in
which a minority has that permanent fault), or the test that fails. It is applied to a
copy of the tree by git, exactly. One that no longer applies is an error: plant the same mistake in the present code.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
PAGE = TOP / "docs" / "reliability.md"
BEGIN = "<!-- planted mistakes: made by `python -m tests.planted --page` -->\n"
END = "<!-- end of planted mistakes -->\n"
COPIED = ("log", "sm", "replication", "cluster", "pipeline", "src", "tests", "pyproject.toml")
BY_SIMULATOR = "sim"
PERMANENT = "sim --permanent "
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
    def is_for_simulator(self) -> bool:
        """Whether the simulator must find it, and no test."""
        return self.finder == BY_SIMULATOR or self.finder.startswith(PERMANENT)

    @property
    def fault(self) -> str:
        """The permanent fault whose histories find it; "" if any histories do."""
        return self.finder.removeprefix(PERMANENT) if self.finder.startswith(PERMANENT) else ""

    @property
    def told_finder(self) -> str:
        """What finds it, for the page."""
        if self.is_for_simulator:
            return f"the simulator, with `{self.fault}` for good" if self.fault else "the simulator"
        return f"`{self.finder.rpartition('::')[2].partition('[')[0]}`"

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


def page_of(page: str, planted: Iterable[Mistake]) -> str:
    """The page with a new table of these; the text around the table stays."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(f"| {each.bug} | {each.rule} | {each.told_finder} |\n" for each in planted)
    return f"{before}{BEGIN}\n| mistake | rule | found by |\n|---|---|---|\n{rows}\n{END}{after}"


class Copy:
    """What is needed to run tests, in a folder of its own. Mistakes are planted in it, one at a time.

    Programs that run in it may leave compiled modules, which spare the next one most of its start. Python judges by the
    time and size of the source whether those are current, so each change of a file gives it a time that it never had.
    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self._changes = 0
        for part in COPIED:
            source = TOP / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, top / part, symlinks=True, ignore=ignored)
            else:
                shutil.copy2(source, top / part)

    @contextmanager
    def planted(self, mistake: Mistake) -> Generator[None]:
        """The mistake is in the copy as long as the context lasts. Raises `NotPlanted`."""
        self._apply(mistake)
        try:
            yield
        finally:
            self._apply(mistake, "--reverse")

    def _apply(self, mistake: Mistake, *flags: str) -> None:
        # In a folder of another repository git would skip files that do not belong to that one.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.top.parent)}
        before = self._contents(mistake)
        ran = subprocess.run(
            ["git", "apply", *flags, str(mistake.patch)],
            cwd=self.top,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or self._contents(mistake) == before:
            raise NotPlanted(f"{mistake.name} does not apply any more: {ran.stderr.strip() or 'nothing changed'}")
        self._changes += 1
        for path in mistake.files:
            os.utime(self.top / path, (self._changes, self._changes))

    def _contents(self, mistake: Mistake) -> list[bytes]:
        return [(self.top / path).read_bytes() for path in mistake.files if (self.top / path).exists()]


@contextmanager
def copy_of_the_tree() -> Generator[Copy]:
    """A copy, removed afterwards."""
    with TemporaryDirectory(prefix="planted-") as name:
        yield Copy(Path(name))
