"""One mistake in the campaign, the record of all of them, and how one is put into a copy of the tree.

The record is of one commit, which it names: later commits may have changed the lines that it shows.
"""

import json
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.planted.mistake import TOP, Copy, NotPlanted

RECORD = Path(__file__).resolve().parent / "mistakes.json"
PAGES = ("docs", "examples", "deploy", "README.md", "CONTRIBUTING.md", "Makefile")
"""What some tests read besides what `Copy` copies."""
BY_TOOL, BY_HAND = "cosmic-ray", "hand"


@dataclass(frozen=True)
class Mistake:
    """Lines of a file and what stands there in their place; who drew it; and, once it was looked for, who found it.

    `ring` is that of the first run: "tests", "histories" or "more tests"; "" if it found nothing, None before its end.
    `found_by` and `seconds` (of processor time) belong to it. `ran_out` says that the tests ran into a limit of time.
    A survivor has a verdict: `test`, written for it, which was seen to fail with it; or `same`: why the program behaves
    as before.
    """

    file: str
    line: int
    old: str
    new: str
    by: str
    operator: str
    ring: str | None = None
    found_by: str = ""
    seconds: float = 0.0
    ran_out: bool = False
    test: str = ""
    same: str = ""

    @property
    def is_found(self) -> bool:
        """Whether a test fails with it now."""
        return bool(self.ring or self.test)

    @property
    def has_verdict(self) -> bool:
        """Whether a test was written for it, or it is known to change nothing."""
        return bool(self.test or self.same)


def recorded(path: Path = RECORD) -> tuple[str, list[Mistake]]:
    """The commit that the mistakes were drawn from, and all of them."""
    if not path.exists():
        return "", []
    record = json.loads(path.read_text())
    return record["commit"], [Mistake(**each) for each in record["mistakes"]]


def record(commit: str, mistakes: Sequence[Mistake], path: Path = RECORD) -> None:
    """Write the record."""
    rows = [asdict(mistake) for mistake in mistakes]
    path.write_text(json.dumps({"commit": commit, "mistakes": rows}, indent=1, ensure_ascii=False) + "\n")


def with_mistake(source: str, mistake: Mistake) -> str:
    """The file with the mistake in it. Raises `NotPlanted` if its lines are not there any more."""
    lines, old = source.split("\n"), mistake.old.split("\n")
    places = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
    if not places:
        raise NotPlanted(f"{mistake.file}:{mistake.line} has changed")
    at = min(places, key=lambda place: abs(place - mistake.line + 1))
    return "\n".join([*lines[:at], *mistake.new.split("\n"), *lines[at + len(old) :]])


class Tree:
    """A copy of the tree in which a mistake can be, one at a time."""

    def __init__(self, top: Path) -> None:
        self.top = top
        Copy(top)
        for name in PAGES:
            if (TOP / name).is_dir():
                shutil.copytree(TOP / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(TOP / name, top / name)

    @contextmanager
    def mistaken(self, mistake: Mistake) -> Generator[None]:
        """The mistake is in the copy as long as the context lasts. Raises `NotPlanted`."""
        path = self.top / mistake.file
        source = path.read_text()
        self._write(path, with_mistake(source, mistake))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source)
        # Compiled modules are judged by times in seconds: none may stay.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


@contextmanager
def copy_of_the_tree() -> Generator[Tree]:
    """A copy, removed afterwards."""
    with TemporaryDirectory(prefix="mutants-") as name:
        yield Tree(Path(name))
