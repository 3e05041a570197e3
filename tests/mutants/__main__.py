"""The campaign: `python -m tests.mutants --draw 100 --seed 1`, `--cover`, `--run`, `--page`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.mutants.campaign import Map, look_for
from tests.mutants.mistake import RECORD, copy_of_the_tree, record, recorded
from tests.mutants.page import PAGE, page_of
from tests.planted.mistake import TOP, NotPlanted

COVERED = TOP / ".cache" / "mutants" / "covered.json"
SOURCES = ("log", "sm", "golden", "replication", "paper", "linear", "cluster", "sim")
"""Folders of tests in the map; the others start processes, which it cannot see into."""


def draw_more(number: int, seed: int) -> None:
    """Add drawn mistakes to the record."""
    from tests.mutants.drawing import draw  # Needs cosmic-ray; the rest does not.

    commit, known = recorded()
    if not commit:
        asked = ["git", "-C", str(TOP), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    record(commit, [*known, *draw(number, seed)])


def cover() -> None:
    """Make the map of which tests run which line: ten minutes."""
    COVERED.parent.mkdir(parents=True, exist_ok=True)
    with copy_of_the_tree() as tree:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tree.top / 'src'}{os.pathsep}{tree.top}",
            "TESTS_PROFILE": "ci",
            "MUTANTS_TOP": str(tree.top),
            "MUTANTS_COVERED": str(COVERED),
        }
        options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "tests.mutants.covering", "-m", "not full"]
        command = [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors"]
        command += [f"tests/{folder}" for folder in SOURCES]
        subprocess.run(command, cwd=tree.top, env=environment, check=False)


def run(maps: list[Path], prefix: str) -> None:
    """Look for every mistake that was not looked for yet; record each result at once."""
    covered = Map(*maps)
    commit, mistakes = recorded()
    with copy_of_the_tree() as tree:
        for place, mistake in enumerate(mistakes):
            if mistake.ring is None and not mistake.has_verdict and mistake.file.startswith(prefix):
                try:
                    mistakes[place] = found = look_for(mistake, tree, covered)
                except NotPlanted as gone:  # It stays as not looked for, which counts as not found.
                    print(f"{gone}: not looked for", flush=True)
                    continue
                record(commit, mistakes)
                print(f"{found.file}:{found.line} {found.ring or 'NOT FOUND'} {found.found_by}", flush=True)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--draw", type=int, default=0, metavar="N", help=f"draw N mistakes into {RECORD.name}")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--cover", action="store_true", help="make the map of which tests run which line")
    parser.add_argument(
        "--map",
        type=Path,
        nargs="*",
        default=[COVERED],
        help="maps to choose tests by; it may be none",
    )
    parser.add_argument("--run", action="store_true", help="look for the mistakes that were not looked for yet")
    parser.add_argument("--only", default="", metavar="FOLDER", help="look only for mistakes in this folder")
    parser.add_argument("--page", action="store_true", help="write the page's tables from the record")
    arguments = parser.parse_args()
    if arguments.draw:
        draw_more(arguments.draw, arguments.seed)
    if arguments.cover:
        cover()
    if arguments.run:
        run(arguments.map, arguments.only)
    if arguments.page:
        PAGE.write_text(page_of(PAGE.read_text(), *recorded()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
