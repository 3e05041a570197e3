"""Look for the planted mistakes: `python -m tests.planted`, `python -m tests.planted NAME ... --seeds 1000`."""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue

from tests.planted.finding import Finding, NotFound, find
from tests.planted.mistake import Copy, Mistake, NotPlanted, copy_of_the_tree, mistakes
from tests.planted.page import PAGE, page_of, record, recorded

SEEDS = 1_000
"""How many histories to look for a mistake in; all recorded ones are found in far fewer."""


def look(mistake: Mistake, copies: "Queue[Copy]", seeds: int) -> Finding | str:
    """What found a mistake in a copy that is free, or why nothing did."""
    copy = copies.get()
    try:
        return find(mistake, copy, seeds)
    except (NotFound, NotPlanted) as error:
        return str(error)
    finally:
        copies.put(copy)


def look_for(wanted: list[Mistake], seeds: int, jobs: int) -> tuple[dict[str, Finding], list[str]]:
    """Look for mistakes, `jobs` at a time; print each finding. Returns findings by name, and why others have none."""
    found: dict[str, Finding] = {}
    missed: list[str] = []
    copies: Queue[Copy] = Queue()
    with ExitStack() as made, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            copies.put(made.enter_context(copy_of_the_tree()))
        for mistake, answer in zip(wanted, pool.map(lambda each: look(each, copies, seeds), wanted), strict=True):
            if isinstance(answer, str):
                missed.append(answer)
                print(f"NOT FOUND {answer}", flush=True)
            else:
                found[mistake.name] = answer
                after = f" (after {answer.after} seeds)" if answer.after else ""
                print(f"{mistake.name}: {answer.found_by}{after}", flush=True)
    return found, missed


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="patches in tests/planted; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="histories to look for each mistake in")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--record", action="store_true", help="record what is found, and write the page's table")
    parser.add_argument("--page", action="store_true", help="look for nothing; write the page's table from the record")
    arguments = parser.parse_args()
    planted = {mistake.name: mistake for mistake in mistakes()}
    if unknown := set(arguments.names) - planted.keys():
        parser.error(f"unknown patch: {', '.join(sorted(unknown))}")
    known = {name: found for name, found in recorded().items() if name in planted}
    missed: list[str] = []
    if not arguments.page:
        began = time.monotonic()
        wanted = [planted[name] for name in arguments.names or planted]
        found, missed = look_for(wanted, arguments.seeds, arguments.jobs)
        print(f"{len(found)} of {len(wanted)} planted mistakes are found, in {time.monotonic() - began:.0f} s")
        known |= found
    if arguments.record:
        record(known)
    if arguments.page or arguments.record:
        PAGE.write_text(page_of(PAGE.read_text(), planted.values(), known))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
