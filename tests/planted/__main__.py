"""Look for the planted mistakes: `python -m tests.planted`, `python -m tests.planted NAME ... --seeds 1000`."""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue

from tests.planted.finding import NotFound, find
from tests.planted.mistake import PAGE, Copy, Mistake, NotPlanted, copy_of_the_tree, mistakes, page_of

SEEDS = 1_000
"""How many histories to look for a mistake in; all are found in far fewer."""


def look(mistake: Mistake, copies: "Queue[Copy]", seeds: int) -> str:
    """Look for a mistake in a copy that is free, print what came of it, and return why it was not found, or ""."""
    copy = copies.get()
    try:
        print(f"{mistake.name}: {find(mistake, copy, seeds)}", flush=True)
    except (NotFound, NotPlanted) as error:
        print(f"NOT FOUND {error}", flush=True)
        return str(error)
    finally:
        copies.put(copy)
    return ""


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="patches in tests/planted; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="histories to look for each mistake in")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--page", action="store_true", help="look for nothing; write the page's table")
    arguments = parser.parse_args()
    planted = {mistake.name: mistake for mistake in mistakes()}
    if arguments.page:
        PAGE.write_text(page_of(PAGE.read_text(), planted.values()))
        return 0
    if unknown := set(arguments.names) - planted.keys():
        parser.error(f"unknown patch: {', '.join(sorted(unknown))}")
    wanted = [planted[name] for name in arguments.names or planted]
    began, copies = time.monotonic(), Queue[Copy]()
    with ExitStack() as made, ThreadPoolExecutor(arguments.jobs) as pool:
        for _ in range(arguments.jobs):
            copies.put(made.enter_context(copy_of_the_tree()))
        missed = [why for why in pool.map(lambda each: look(each, copies, arguments.seeds), wanted) if why]
    print(f"{len(wanted) - len(missed)} of {len(wanted)} are found, in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
